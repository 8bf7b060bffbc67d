"""Changes many tasks for a command: in large steps, each task once, and records which were refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import anyio

from intervalq.cli._tasks.batch import Bar, Interrupt
from intervalq.cli._tasks.show import holder
from intervalq.errors import DependencyError, IntervalqError, StoreTimeout
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Change, Count, Delete, Modify, Row, Select
from intervalq.tasks.store import MAX_ROWS

_STEP: Final = MAX_ROWS // 2
"""How many tasks to change in one step: on NATS, a move takes two of the messages that a step may have."""

_TURNS: Final = 5
"""How many times a task is read again if others change it in the meantime."""


class BulkEdit:
    """Applies a change to tasks. `refused` has the tasks that were not changed, with the reasons."""

    def __init__(
        self, handle: Tasks, make: Callable[[Row], Change | Delete | str], word: str, *, force: bool
    ) -> None:
        self.done = 0
        self.refused: dict[str, str] = {}
        self.unsure = 0
        """The number of tasks in a step whose outcome is unknown."""
        self.error: IntervalqError | None = None
        """The error that ended it early."""
        self._handle, self._make, self._word, self._force = handle, make, word, force
        self._interrupt = Interrupt()

    @property
    def by(self) -> int | None:
        """The signal that ended it early."""
        return self._interrupt.by

    async def these(self, ids: Sequence[str]) -> None:
        """Change the tasks with these ids."""
        every = list(dict.fromkeys(ids))
        await self._in_steps(len(every), lambda bar: self._these(every, bar))

    async def _these(self, ids: list[str], bar: Bar) -> None:
        for start in range(0, len(ids), _STEP):
            if self.by is not None:
                return
            some = ids[start : start + _STEP]
            rows = await self._handle._apply(Select(ids=tuple(some), values=False))
            for id_ in set(some) - {row.id for row in rows}:
                self.refused[id_] = "does not exist"
            await self._step(rows)
            bar.advance(len(some))

    async def all_of(self, queue: str) -> None:
        """Change all tasks of a queue."""
        stats = await self._handle._apply(Count(names=(queue,)))
        total = sum(each.size for each in stats)
        await self._in_steps(total, lambda bar: self._all_of(queue, bar))

    async def _all_of(self, queue: str, bar: Bar) -> None:
        seen: set[str] = set()  # refused tasks stay in the queue, and changed ones may come back
        limit = _STEP
        while self.by is None:
            rows = await self._handle._apply(Select(queue=queue, limit=limit, values=False))
            fresh = [row for row in rows if row.id not in seen][:_STEP]
            if not fresh:
                if len(rows) < limit:
                    return
                limit *= 2
                continue
            await self._step(fresh)
            seen.update(row.id for row in fresh)
            bar.advance(len(fresh))
            limit = _STEP + len(self.refused)

    async def _in_steps(self, total: int, work: Callable[[Bar], Awaitable[None]]) -> None:
        with Bar(self._word, total) as bar:
            async with anyio.create_task_group() as group:
                await group.start(self._interrupt.heed, group.cancel_scope)
                try:
                    await work(bar)
                except IntervalqError as error:
                    self.error = error
                group.cancel_scope.cancel()

    async def _step(self, rows: Iterable[Row]) -> None:
        """Change some tasks in one step; leave out those that can't be changed, and retry with the rest."""
        pending = self._parts(rows)
        for _ in range(_TURNS):
            if not pending:
                return
            self.unsure = len(pending)
            try:
                await self._handle._apply(self._command(pending.values()))
            except DependencyError as error:
                self.unsure = 0
                await self._without(pending, error)
            except IntervalqError as error:
                if not isinstance(error, StoreTimeout):
                    self.unsure = 0
                raise
            else:
                self.unsure = 0
                self.done += len(pending)
                return
        for id_ in pending:
            self.refused[id_] = "is constantly being changed by others: try again"

    def _parts(self, rows: Iterable[Row]) -> dict[str, Change | Delete]:
        parts: dict[str, Change | Delete] = {}
        for row in rows:
            part = self._make(row)
            if isinstance(part, str):
                self.refused[row.id] = part
            else:
                parts[row.id] = part
        return parts

    def _command(self, parts: Iterable[Change | Delete]) -> Modify:
        parts = list(parts)
        return Modify(
            changes=tuple(part for part in parts if isinstance(part, Change)),
            deletes=tuple(part for part in parts if isinstance(part, Delete)),
            force=self._force,
        )

    async def _without(self, pending: dict[str, Change | Delete], error: DependencyError) -> None:
        """Remove claimed and missing tasks from a step, and read those again that others have changed."""
        failed = (*error.claims, *error.changes, *error.deletes)
        rows = {row.id: row for row in await self._handle._apply(Select(ids=failed, values=False))}
        for id_ in failed:
            pending.pop(id_, None)
            if id_ not in rows:
                self.refused[id_] = "is gone"
        changed = [rows[id_] for id_ in (*error.changes, *error.deletes) if id_ in rows]
        pending.update(self._parts(changed))
        if error.claims:
            sessions = {session.id: session for session in await self._handle.sessions()}
            for id_ in error.claims:
                if (row := rows.get(id_)) is None:
                    continue
                if row.session is None:
                    self.refused[id_] = "was claimed a moment ago: try again"
                else:
                    who = holder(row.session, sessions)
                    self.refused[id_] = f"is claimed by {who}: wait until that ends, or give --force"
