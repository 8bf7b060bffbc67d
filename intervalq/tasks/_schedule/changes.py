"""`TaskSchedules`: looks at the durable schedules of a store, and changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import anyio

from intervalq._spec import parse
from intervalq.errors import CorruptState, DependencyError, ScheduleNotFound, TransactionConflict
from intervalq.schedules import ScheduleInfo
from intervalq.tasks._schedule.record import CHANGED, QUEUE, Stored, row_id
from intervalq.tasks._schedule.step import REST
from intervalq.tasks._spec.ids import new_id
from intervalq.tasks.rules import Beat, Change, Delete, Depend, Insert, Modify, Row, Select

if TYPE_CHECKING:
    from intervalq.tasks.store import TaskStore

A = TypeVar("A")

_SHOWN: Final = 10
_TRIES: Final = 100
_PAUSE: Final = 0.1
"""Seconds between two tries to change a schedule whose step is being taken, or was when its worker died."""


class Handle(Protocol):
    """What changes need of the handle of tasks."""

    def _here(self) -> TaskStore: ...

    def _wake(self) -> None: ...


class TaskSchedules:
    """The durable schedules in a store of tasks: `tasks.schedules`. See `Tasks.schedule`."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def inspect_all(self, *, upcoming: int = 1) -> list[ScheduleInfo]:
        """The schedules, sorted by name.

        Args:
            upcoming: how many of the next times of each to list.

        Raises:
            StoreError: the store can't be read, or a schedule in it is broken.
            InvalidOption, MissingExtra: a time zone isn't known here, or there is no parser for `cron`.
        """
        rows = await self._handle._here().apply(Select(queue=QUEUE))
        return sorted(_info(self._handle, row, upcoming) for row in rows)

    async def inspect(self, name: str, *, upcoming: int = _SHOWN) -> ScheduleInfo:
        """One schedule.

        Args:
            name: its name.
            upcoming: how many of its next times to list.

        Raises:
            ScheduleNotFound: there is no such schedule.
            StoreError, InvalidOption, MissingExtra: as for `inspect_all`.
        """
        return _info(self._handle, await _found(self._handle, name), upcoming)

    async def pause(self, name: str) -> None:
        """Let a schedule insert nothing until `resume`.

        Raises:
            ScheduleNotFound: there is no such schedule.
            StoreError: as for `inspect_all`.
        """

        def paused(row: Row) -> Modify:
            old = _stored(self._handle, row)
            return _changed(row, replace(old, paused=True, through=old.decided(row)), REST)

        await _change(self._handle, name, paused)

    async def resume(self, name: str) -> None:
        """End a pause. Occurrences in it are not made up for.

        Raises:
            ScheduleNotFound: there is no such schedule.
            StoreError: as for `inspect_all`.
        """

        def resumed(row: Row) -> Modify:
            old = _stored(self._handle, row)
            return _changed(row, replace(old, paused=False, through=CHANGED), 0) if old.paused else _seen(row)

        await _change(self._handle, name, resumed)

    async def drop(self, name: str) -> None:
        """Forget a schedule. What it has inserted stays.

        Raises:
            ScheduleNotFound: there is no such schedule.
            StoreError: as for `inspect_all`.
        """
        await _change(self._handle, name, lambda row: Modify(deletes=(Delete(row.id, row.version),)))

    async def fire(self, name: str) -> str:
        """Insert the task of a schedule now, beside its times, also in a pause; returns the task's id.

        Raises:
            ScheduleNotFound: there is no such schedule.
            StoreError: as for `inspect_all`.
        """
        id_ = f"{name}/{new_id()}"

        def fired(row: Row) -> Modify:
            task = _stored(self._handle, row).task._replace(id=id_)
            return replace(_seen(row), inserts=(task,))

        await _change(self._handle, name, fired)
        return id_


async def put(handle: Handle, new: Stored) -> None:
    """Create a schedule, or change it; occurrences up to now don't count under new times."""
    row = Insert(QUEUE, new.to_json(), row_id(new.name), skip=True, priority=new.task.priority)

    def changed(row: Row) -> Modify:
        old = _stored(handle, row)
        kept = replace(new, paused=old.paused, last=old.last, through=old.through)
        if kept == old:
            return _seen(row)
        through = old.decided(row) if old.plan == new.plan else CHANGED
        return _changed(row, replace(kept, through=through), REST if kept.paused else 0)

    if (await handle._here().apply(Modify(inserts=(row,)))).existing:
        await _change(handle, new.name, changed)
    handle._wake()


async def _change(handle: Handle, name: str, change: Callable[[Row], Modify]) -> None:
    """Change a schedule, again whenever its step was taken meanwhile."""
    store = handle._here()
    for _ in range(_TRIES):
        try:
            await store.apply(change(await _found(handle, name)))
        except DependencyError as error:
            if error.claims:  # of a worker that has died, perhaps, and there may be no other
                await store.apply(Beat(""))
            await anyio.sleep(_PAUSE)
        else:
            handle._wake()
            return
    raise TransactionConflict(store.url, f"schedule {name!r} was always at work, and is unchanged: try again")


def _seen(row: Row) -> Modify:
    """A condition: the row is still as it was read. On NATS, its claimant may read an old one."""
    return Modify(depends=(Depend(row.id, row.version),))


def _changed(row: Row, after: Stored, delay: int) -> Modify:
    return Modify(changes=(Change(row.id, row.version, json=after.to_json(), delay=delay),))


async def _found(handle: Handle, name: str) -> Row:
    store = handle._here()
    rows = await store.apply(Select(ids=(row_id(parse.name(name, what="name of a schedule")),)))
    if not rows or rows[0].queue != QUEUE:
        raise ScheduleNotFound(name, store.url)
    return rows[0]


def _stored(handle: Handle, row: Row) -> Stored:
    try:
        return Stored.of(row)
    except ValueError as error:
        what = f"row {row.id!r} of queue {QUEUE!r} can't be read: {error}"
        raise CorruptState(handle._here().url, what) from error


def _info(handle: Handle, row: Row, upcoming: int) -> ScheduleInfo:
    stored = _stored(handle, row)
    plan, at, times = stored.plan, stored.decided(row), list[datetime]()
    while len(times) < upcoming and (following := plan.after(at)) is not None:
        times.append(plan.time(following))
        at = following
    last = None if stored.last is None else plan.time(stored.last)
    return ScheduleInfo(stored.name, str(plan), stored.paused, False, last, tuple(times), stored.task.queue)
