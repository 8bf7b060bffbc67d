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
"""How long a lease lasts, in microseconds: so long after the death of its process the next run may begin."""

_RENEWED: Final = 20.0
"""Seconds between two renewals: two may fail before the lease ends."""

_ENDING: Final = 5.0
"""How many seconds a process that is being ended takes at most to give its lease back."""


async def run(records: Records, name: str, holder: str, function: Callable[[], Awaitable[None]]) -> None:
    """Run a function under the lease that `holder` has taken; it is cancelled if the lease is lost."""
    finished = False
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_renew, records, name, holder, group.cancel_scope)
            try:
                await function()
                finished = not group.cancel_scope.cancel_called
            except Exception:
                finished = True  # it failed, which is an end, too
                raise
            finally:
                group.cancel_scope.cancel()
    finally:
        await _give_back(records, name, holder, finished=finished)


async def run_beside(
    records: Records, name: str, holder: str, function: Callable[[Callable[[], None]], Awaitable[None]]
) -> None:
    """Run a function that others may overlap; once it has begun, nobody reports its occurrence as abandoned.

    The function is called with what it calls when it begins.
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


async def _renew(records: Records, name: str, holder: str, scope: anyio.CancelScope) -> None:
    def renewed(record: Record | None, now: int) -> Record | None:
        return None if record is None else renew(record, holder, now, LEASE)

    while True:
        await anyio.sleep(_RENEWED)
        try:
            record = await records.change(name, renewed)
        except StoreUnavailable:
            record = records.get(name)
            if record is not None and record.holder == holder and records.now() < record.until:
                continue
        if record is None or record.holder != holder or not record.running or records.now() >= record.until:
            log.error("schedule %r: a run has lost its lease, and is cancelled", name)
            scope.cancel()
            return


async def _give_back(records: Records, name: str, holder: str, *, finished: bool) -> None:
    def ended(record: Record | None, now: int) -> Record | None:
        return None if record is None else end(record, holder, now, finished=finished)

    with anyio.move_on_after(_ENDING, shield=True):
        try:
            await records.change(name, ended)
        except StoreUnavailable as error:
            log.warning("schedule %r: its lease can't be given back, and ends by itself: %s", name, error)
