"""Limits don't count slots that nobody used; keys of several processes use nearly all of their windows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Any, TypeVarTuple
from unittest import mock

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._keys.places import Places
from intervalq._shard import dispatcher
from intervalq._shard.settlements import Issued
from intervalq.rules import Limit, Settings, Settled, Slot, State
from intervalq.testing import virtual
from intervalq.testing.virtual import VirtualLoop
from keyed_world import FarPairs, Log, run

Ts = TypeVarTuple("Ts")


class LateLoop(VirtualLoop):
    """Timers fire late: mostly by less than the tolerance of a millisecond, sometimes by up to 30 ms."""

    def __init__(self, horizon: float = 1e7) -> None:
        super().__init__(horizon)
        self._dice = random.Random(1)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        least, most = self._dice.choices(((0.1, 0.6), (0.6, 4), (4, 30)), (80, 17, 3))[0]
        late = self._dice.uniform(least, most) / 1_000
        return super().call_at(when + late, callback, *args, context=context)


def starts(*, keys: int, late: bool, seconds: float = 6, **options: Any) -> int:
    """How many jobs of 10 tokens four processes with twelve callers each begin in this time.

    Every process has callers of every key; without keys they call the queue itself.
    """

    async def main(store: FarPairs, log: Log) -> None:
        async def caller(queue: IntervalQueue) -> None:
            while True:
                async with queue.slot(cost={"tokens": 10}):
                    log.began("")

        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                for process in range(4):
                    there = FarPairs(store.behind, delay=store.delay, seed=process)
                    queue = IntervalQueue("api", store=there, rate=100, **options)
                    for number in range(12):
                        group.start_soon(caller, queue[f"k{number % keys}"] if keys else queue)

    with (
        mock.patch.object(virtual, "VirtualLoop", LateLoop if late else VirtualLoop),
        mock.patch.object(dispatcher, "run_soon"),
    ):
        return len(run(main).starts)


def test_what_late_processes_miss_is_used_by_others() -> None:
    """If missed slots counted until they left the window, a fifth of it would go unused."""
    assert starts(keys=0, late=True, limits=["600 tokens/2s"]) >= 0.93 * 180


def test_a_key_that_waits_for_others_takes_no_tickets_for_its_own_full_window() -> None:
    """They would be set back with the key while the window opens: a sixth of the common limit went unused."""
    each = ["shared", "250 tokens/2s"]
    assert starts(keys=3, late=False, limits=["600 tokens/2s"], each=each) >= 0.96 * 180


def record(current: int, revoked: int, limits: tuple[Limit, ...]) -> State:
    return State(
        generation="g", settings=Settings(1_000, limits=limits), last_now=0, ticket=9, due=9_000,
        current=current, current_due=1_000 * current, revoked_through=revoked, held_total=70,
    )  # fmt: skip


TOKENS = (Limit(100, 64_000, "tokens"),)


@pytest.mark.parametrize(
    ("current", "revoked", "granted", "is_refunded"),
    [
        (5, 2, False, True),
        (5, 4, False, False),  # it may have been revoked by `reclaim`, which stops counting it
        (5, 4, True, True),
        (3, 2, False, False),  # it may be revoked yet
    ],
)
def test_a_slot_is_refunded_only_if_it_certainly_counts(
    current: int, revoked: int, *, granted: bool, is_refunded: bool
) -> None:
    issued = Issued()
    issued.took([4], [4] if granted else [], 4, record(3, 0, TOKENS))
    state, slot = record(current, revoked, TOKENS), Slot(4, 4_000, 1, (30,))
    assert issued.refundable(slot, state) == (Settled(4_000, 70, ()) if is_refunded else None)
    assert issued.refundable(slot, state) is None, "once"


def test_what_was_counted_by_other_limits_is_not_refunded() -> None:
    issued = Issued()
    issued.took([4], [4], 4, record(3, 0, TOKENS))
    assert issued.refundable(Slot(4, 4_000, 1, (30,)), record(5, 2, (*TOKENS, Limit(5, 1_000)))) is None


def test_a_grant_of_a_record_that_is_gone_is_none_of_a_new_one() -> None:
    """Its tickets have the same numbers: ticket 4 was granted in the old one, and revoked in the new one."""
    issued = Issued()
    issued.took([4], [4], 4, record(4, 0, TOKENS))
    new, revoked = (replace(record(3, through, TOKENS), generation="new") for through in (0, 4))
    issued.took([1], [], 1, new)
    issued.took([4], [], 4, new)
    assert issued.refundable(Slot(4, 4_000, 1, (30,)), revoked) is None


def test_a_place_that_another_one_replaced_is_refunded_unless_the_step_took_it_back() -> None:
    asked = (Slot(1, 1_000, 1, (30,)), Slot(2, 2_000, 1, (40,)))
    places = Places()
    places.learn({1: Slot(3, 3_000), 2: Slot(5, 5_000)}, 1, record(3, 0, TOKENS))
    new = {1: Slot(6, 6_000), 2: Slot(7, 7_000)}
    places.replaced(asked, new, 0)
    places.learn(new, 1, state := record(7, 0, TOKENS))
    assert places.refunds(state) == (Settled(3_000, 70, (-30,)),), "5 was the last one before 6"
    assert places.refunds(state) == ()


def test_a_place_waits_until_it_cannot_be_revoked_any_more() -> None:
    places = Places()
    places.learn({1: Slot(4, 4_000)}, 1, state := record(3, 0, TOKENS))
    places.unused(Slot(1, 1_000, 1, (30,)), 0)
    assert places.refunds(state) == ()
    assert places.refunds(record(5, 0, TOKENS)) == (Settled(4_000, 70, (-30,)),)


def test_places_of_a_request_without_an_answer_are_not_refunded() -> None:
    places = Places()
    places.learn({1: Slot(4, 4_000)}, 1, record(3, 0, TOKENS))
    places.doubt()
    places.unused(Slot(1, 1_000, 1, (30,)), 0)
    assert places.refunds(record(5, 0, TOKENS)) == ()
