"""Tells an observer of each start of a shard."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, Protocol

from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._shard.wait_queue import Waiter

P = ParamSpec("P")

log: Final = logging.getLogger("intervalq")


def quietly(tell: Callable[P, object]) -> Callable[P, None]:
    """The function, without its errors: jobs go on, and only the first one is logged."""
    failed = False

    @wraps(tell)
    def quiet(*args: P.args, **options: P.kwargs) -> None:
        nonlocal failed
        try:
            tell(*args, **options)
        except Exception:
            if not failed:
                log.warning("what observes jobs failed, and may lack some: jobs go on", exc_info=True)
            failed = True

    return quiet


class Observer(Protocol):
    """Gets notices of starts; it must be quick."""

    def began(self, grant: Grant, started: float, waited: float) -> None:
        """A job began in its slot.

        Args:
            grant: its slot.
            started: the time on the store's clock, in seconds since 1970.
            waited: for how many seconds it waited.
        """
        ...

    def undone(self, grant: Grant) -> None:
        """The job of a slot did not begin after all: its thread came too late."""
        ...


def observe(shard: Shard, observer: Observer, *, takes_ready: bool = True) -> None:
    """Tell the observer of all later starts of a shard.

    It wraps the functions that hand out slots, so that shards without an observer need not ask for one.
    `takes_ready`: whether jobs may begin in ready slots, of whose ends the shard doesn't learn.
    """
    dispatcher, clock, time = shard.dispatcher, shard.clock, shard.time
    enter, accept, take_ready, undo = shard.enter, dispatcher.accept, dispatcher.take_ready, dispatcher.undo
    began, undone = quietly(observer.began), quietly(observer.undone)

    def enter_observed(waiter: Waiter) -> None:
        waiter.since = waiter.since or clock.now()
        enter(waiter)

    def accept_observed(waiter: Waiter) -> Grant | None:
        grant = accept(waiter)
        if grant is not None:
            # Jobs begin with the last check. A thread waits for its slot itself, and begins when that comes.
            last = dispatcher.last.at
            at = max(clock.now(), grant.opens) if waiter.in_thread or last is None else last
            waited = at - (waiter.since or at)
            began(grant, time.now(at), waited / 1e6)
        return grant

    def take_ready_observed() -> Grant | None:
        grant = take_ready() if takes_ready else None
        if grant is not None:
            began(grant, time.now(clock.now()), 0.0)
        return grant

    def undo_observed(grant: Grant, *, again: bool = True) -> bool:
        undone(grant)
        return undo(grant, again=again)

    shard.enter = enter_observed  # type: ignore[method-assign] # for this shard alone
    dispatcher.accept = accept_observed  # type: ignore[method-assign] # likewise
    dispatcher.take_ready = shard.take_ready = take_ready_observed  # type: ignore[method-assign] # likewise
    dispatcher.undo = undo_observed  # type: ignore[method-assign] # likewise
