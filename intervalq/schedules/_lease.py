"""The run of an occurrence that holds the lease of its schedule, so that no other run begins meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from intervalq.errors import StoreUnavailable
from intervalq.schedules._records import Records
from intervalq.schedules.rules import Record, end, renew

log: Final = logging.getLogger("intervalq")

LEASE: Final = 60_000_000
"""How long a lease lasts, in microseconds. If its process dies, the next run may begin after this time."""

_TIMES: Final = 3
"""How many times a lease is renewed while it lasts, so that one or two may fail."""

_AGAIN: Final = 30
"""How many times a renewal is tried in that time while the store can't be reached."""

MARGIN: Final = 10
"""A run that can't renew its lease is cancelled when one part in so many of the lease is left, in which it
can end."""

_ENDING: Final = 5.0
"""The maximum time, in seconds, that a process that is being ended takes to give its lease back."""


def left(records: Records, until: int, lease: int) -> float:
    """The seconds for which a run may go on: it has to end before another one may begin.

    The time counts from before the store was asked, however late its answer came.
    """
    return max(0.0, (until - records.latest_now() - lease // MARGIN) / 1e6)


async def extend(records: Records, name: str, holder: str, lease: int) -> Record | None:
    """Renew the lease of a run, unless it is lost; returns the record after that."""

    def renewed(record: Record | None, now: int) -> Record | None:
        return None if record is None else renew(record, holder, now, lease)

    return await records.change(name, renewed)


async def keep(records: Records, name: str, taken: Record, lease: int, scope: anyio.CancelScope) -> None:
    """Renew the lease of the run in `scope`, whose deadline it sets: in time if the store doesn't answer."""
    usual = lease / _TIMES / 1e6
    known: Record | None = taken
    pause = usual
    while known is not None and known.holder == taken.holder and known.running:
        rest = left(records, known.until, lease)
        scope.deadline = anyio.current_time() + rest
        await anyio.sleep(pause if pause < rest else rest / 2)
        try:
            known, pause = await extend(records, name, taken.holder, lease), usual
        except StoreUnavailable:
            known, pause = records.get(name), lease / _AGAIN / 1e6
    scope.deadline = anyio.current_time()


async def run(
    records: Records,
    name: str,
    taken: Record,
    function: Callable[[], Awaitable[None]],
    following: int | None = None,
) -> None:
    """Run a function under the lease that was taken; it is cancelled if the lease is lost.

    From `following` on, the next occurrence waits for the end. None: none does.
    """
    finished = False

    async def kept(scope: anyio.CancelScope) -> None:
        try:
            await keep(records, name, taken, LEASE, scope)
        finally:
            if anyio.current_time() >= scope.deadline:
                log.error("schedule %r: a run has lost its lease, and is cancelled", name)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(kept, group.cancel_scope)
            try:
                await function()
                finished = not group.cancel_scope.cancel_called
            except Exception:
                finished = True  # it failed, which is an end, too
                raise
            finally:
                group.cancel_scope.cancel()
    finally:
        await _give_back(records, name, taken.holder, finished=finished, following=following)


async def run_beside(
    records: Records, name: str, holder: str, function: Callable[[Callable[[], None]], Awaitable[None]]
) -> None:
    """Run a function that may overlap others; once it has begun, nobody reports its occurrence as abandoned.

    The function's argument is a function that it calls when it begins.
    """
    begun, failed = anyio.Event(), None

    async def note() -> None:
        await begun.wait()
        await _give_back(records, name, holder, finished=True)

    async with anyio.create_task_group() as group:
        group.start_soon(note)
        try:
            await function(begun.set)
        except Exception as error:  # noqa: BLE001 - raised below, when that is noted
            failed = error
        if not begun.is_set():
            group.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _give_back(
    records: Records, name: str, holder: str, *, finished: bool, following: int | None = None
) -> None:
    def ended(record: Record | None, now: int) -> Record | None:
        waited = following is not None and now >= following
        return None if record is None else end(record, holder, now, finished=finished, waited=waited)

    with anyio.move_on_after(_ENDING, shield=True):
        try:
            await records.change(name, ended)
        except StoreUnavailable as error:
            log.warning("schedule %r: its lease can't be given back, so it ends by itself: %s", name, error)
