"""A shard process with a planted bug, which the storm must find: `broken_shard.py ... --bug NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults import shard_process
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grant, GrantRange
from intervalq._shard.shard import Shard
from intervalq._shard.store_time import StoreTime
from intervalq._timing.clock import SystemClock
from intervalq.rules import FOREVER, Answer, Slot, State
from intervalq.store import Store, open_store
from intervalq_stores.json import queues as json_queues


def instead(owner: object, name: str, bug: Callable[..., Any]) -> None:
    """Replace working code by code with a bug."""
    mock.patch.object(owner, name, bug).start()


def own_timer() -> None:
    """Each process paces itself, and never looks at the store."""
    instead(shard_process, "open_store", lambda _: open_store("memory://"))


def same_ticket() -> None:
    """Every second answer of the store repeats the ticket of the answer before it."""

    def opened(url: str | None = None) -> Store:
        store = open_store(url)
        inner = store.apply
        tickets: list[int] = []

        async def apply(*arguments: Any) -> Answer:
            answer = await inner(*arguments)
            if answer.first is None:
                return answer
            tickets.append(answer.first.ticket)
            if len(tickets) % 2:
                return answer
            return replace(answer, first=Slot(tickets[-2], answer.first.due))

        instead(store, "apply", apply)
        return store

    instead(shard_process, "open_store", opened)


def no_last_check() -> None:
    """A job that is too late for its slot begins all the same."""
    bounded = StoreTime.bounded

    def unbounded(self: StoreTime, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        bounded(self, granted, state, at).before = FOREVER
        return granted

    instead(StoreTime, "bounded", unbounded)


def waits_after_check() -> None:
    """A job waits for something between its last check and its first instruction."""
    slot = Shard.slot

    async def later(self: Shard, *arguments: Any) -> Grant:
        grant = await slot(self, *arguments)
        await anyio.sleep(0.001)
        return grant

    instead(Shard, "slot", later)


def call_lost() -> None:
    """A job that was passed over is forgotten."""
    accept = Dispatcher.accept

    def forgetful(self: Dispatcher, waiter: Any) -> Grant | None:
        grant = accept(self, waiter)
        return None if self.begun == 3 else grant

    instead(Dispatcher, "accept", forgetful)


def own_clock() -> None:
    """A store without a server uses a clock that differs in each process."""
    instead(json_queues, "wall_clock", lambda: SystemClock().now())


BUGS: Final[dict[str, Callable[[], None]]] = {
    "own-timer": own_timer,
    "same-ticket": same_ticket,
    "no-last-check": no_last_check,
    "waits-after-check": waits_after_check,
    "call-lost": call_lost,
    "own-clock": own_clock,
}

if __name__ == "__main__":
    at = sys.argv.index("--bug")
    BUGS[sys.argv[at + 1]]()
    del sys.argv[at : at + 2]
    shard_process.main()
