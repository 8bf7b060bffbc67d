"""Changes many tasks: in large steps, each task once, and notes which were refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from intervalq._watch.task import holder, many
from intervalq.errors import DependencyError, StoreTimeout
from intervalq.tasks._handle.worker_session import session_of
from intervalq.tasks._spec.ids import DOCS
from intervalq.tasks._spec.outcome import is_dead, living_queue
from intervalq.tasks.rules import Cancel, Change, Command, Delete, Modify, Row, Select, Sessions
from intervalq.tasks.store import MAX_ROWS

_STEP: Final = MAX_ROWS // 2
"""How many tasks to change in one step: on NATS, a move takes two of the messages that a step may have."""

_TURNS: Final = 5
"""How many times a task is read again if others change it in the meantime."""

Part = Change | Delete | Cancel
Make = Callable[[Row], Part | str]
"""Gives the change of a task, or the reason why it can't be made."""


def retried(row: Row) -> Part | str:
    """A dead-letter task goes back to its queue, is ready at once, and its attempts are counted from 0."""
    queue = living_queue(row.queue)
    if queue == row.queue:
        return f"is in queue {queue}, which is not a dead-letter queue"
    return Change(row.id, row.version, queue=queue, delay=0, attempt=0, error="")


def moved(to: str) -> Make:
    """Tasks go to another queue; attempts of those from a dead-letter queue are counted from 0."""

    def make(row: Row) -> Part | str:
        if row.queue == to:
            return "is already in that queue"
        if row.queue.startswith(DOCS):
            return "is a document of EntroQ's, which belongs to its namespace"
        anew = 0 if is_dead(row.queue) and not is_dead(to) else None
        return Change(row.id, row.version, queue=to, attempt=anew)

    return make


def deleted(row: Row) -> Part | str:
    """A task is deleted."""
    return Delete(row.id, row.version)


def cancelled(row: Row) -> Part | str:
    """A task is removed, or the work on it is stopped."""
    return Cancel((row.id,))


class Edit:
    """Applies a change to tasks. `refused` has the tasks that were not changed, with the reasons.

    Args:
        apply: does a command on the tasks of a store.
        make: gives the change of each task.
        force: see `Modify.force`.
        otherwise: what else can be done about a claimed task, for its reason.
        sees_sessions: whether `apply` may ask who has claimed a task.
    """

    def __init__(
        self,
        apply: Callable[[Command[Any]], Awaitable[Any]],
        make: Make,
        *,
        force: bool = False,
        otherwise: str = "",
        sees_sessions: bool = True,
    ) -> None:
        self.done = 0
        self.refused: dict[str, str] = {}
        self.unsure = 0
        """The number of tasks in a step whose outcome is unknown."""
        self._apply, self._make, self._force = apply, make, force
        self._otherwise, self._sees_sessions = otherwise, sees_sessions

    @property
    def result(self) -> str:
        """How many tasks were changed."""
        return many(self.done) + (f", perhaps {self.unsure} more" if self.unsure else "")

    def goes_on(self) -> bool:
        """Whether to do another step."""
        return True

    def advance(self, count: int) -> None:
        """So many more tasks were looked at."""

    async def these(self, ids: Sequence[str], queue: str | None = None) -> None:
        """Change the tasks with these ids, if they are in this queue. None: in any queue."""
        every = list(dict.fromkeys(ids))
        for start in range(0, len(every), _STEP):
            if not self.goes_on():
                return
            some = every[start : start + _STEP]
            rows = [
                row
                for row in await self._apply(Select(ids=tuple(some), values=False))
                if queue in {None, row.queue}
            ]
            for id_ in set(some) - {row.id for row in rows}:
                self.refused[id_] = "does not exist" if queue is None else f"is not in queue {queue} any more"
            await self._step(rows)
            self.advance(len(some))

    async def all_of(self, queue: str) -> None:
        """Change all tasks of a queue."""
        seen: set[str] = set()  # refused tasks stay in the queue, and changed ones may come back
        limit = _STEP
        while self.goes_on():
            rows = await self._apply(Select(queue=queue, limit=limit, values=False))
            fresh = [row for row in rows if row.id not in seen][:_STEP]
            if not fresh:
                if len(rows) < limit:
                    return
                limit *= 2
                continue
            await self._step(fresh)
            seen.update(row.id for row in fresh)
            self.advance(len(fresh))
            limit = _STEP + len(self.refused)

    async def _step(self, rows: Iterable[Row]) -> None:
        """Change some tasks in one step; leave out those that can't be changed, and retry with the rest."""
        pending = self._parts(rows)
        for _ in range(_TURNS):
            if not pending:
                return
            self.unsure = len(pending)
            try:
                answer = await self._apply(self._command(pending.values()))
            except DependencyError as error:
                self.unsure = 0
                await self._without(pending, error)
            except Exception as error:
                if not isinstance(error, StoreTimeout):
                    self.unsure = 0
                raise
            else:
                self.unsure = 0
                if self._is_cancel(pending.values()):
                    for id_ in pending.keys() - {*answer.removed, *answer.stopping}:
                        self.refused[id_] = "is gone"
                        del pending[id_]
                self.done += len(pending)
                return
        for id_ in pending:
            self.refused[id_] = "is constantly being changed by others: try again"

    def _parts(self, rows: Iterable[Row]) -> dict[str, Part]:
        parts: dict[str, Part] = {}
        for row in rows:
            part = self._make(row)
            if isinstance(part, str):
                self.refused[row.id] = part
            else:
                parts[row.id] = part
        return parts

    @staticmethod
    def _is_cancel(parts: Iterable[Part]) -> bool:
        return any(isinstance(part, Cancel) for part in parts)

    def _command(self, parts: Iterable[Part]) -> Command[Any]:
        parts = list(parts)
        if self._is_cancel(parts):
            return Cancel(tuple(id_ for part in parts if isinstance(part, Cancel) for id_ in part.ids))
        return Modify(
            changes=tuple(part for part in parts if isinstance(part, Change)),
            deletes=tuple(part for part in parts if isinstance(part, Delete)),
            force=self._force,
        )

    async def _without(self, pending: dict[str, Part], error: DependencyError) -> None:
        """Remove claimed and missing tasks from a step, and read those again that others have changed."""
        failed = (*error.claims, *error.changes, *error.deletes)
        rows = {row.id: row for row in await self._apply(Select(ids=failed, values=False))}
        for id_ in failed:
            pending.pop(id_, None)
            if id_ not in rows:
                self.refused[id_] = "is gone"
        changed = [rows[id_] for id_ in (*error.changes, *error.deletes) if id_ in rows]
        pending.update(self._parts(changed))
        if error.claims:
            sessions = await self._apply(Sessions()) if self._sees_sessions else ()
            known = {session.id: session_of(session) for session in sessions}
            for id_ in error.claims:
                if (row := rows.get(id_)) is None:
                    continue
                if row.session is None:
                    self.refused[id_] = "was claimed a moment ago: try again"
                else:
                    who = holder(row.session, known) if self._sees_sessions else "a worker"
                    self.refused[id_] = f"is claimed by {who}: wait until that ends{self._otherwise}"
