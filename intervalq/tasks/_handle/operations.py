"""The part of `Tasks` for operators: looks at tasks, queues and sessions; cancels tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Final

from intervalq._queue.options import whole
from intervalq.errors import InvalidOption, short
from intervalq.tasks._claim import values as _values
from intervalq.tasks._claim.task import Task
from intervalq.tasks._handle.worker_session import WorkerSession, session_of
from intervalq.tasks._spec.ids import DOCS
from intervalq.tasks._worker.workers import Workers
from intervalq.tasks.rules import Cancel, Cancelled, Count, QueueStats, Select, Sessions
from intervalq.tasks.store import MAX_ROWS

_USUAL_LIMIT: Final = 100


class Operations(Workers):
    """What operators do with tasks, whether or not these are claimed."""

    async def tasks(
        self,
        queue: str | None = None,
        *,
        ids: Sequence[str] | None = None,
        limit: int | EllipsisType | None = ...,
        values: bool = True,
    ) -> list[Task]:
        """Tasks of a queue, by time, or tasks with given ids, in the order of the ids.

        Plain tasks that the store hands out in ranges have no times and come last. They can be changed, moved
        and deleted like others, which makes them ordinary tasks with the same ids.

        Args:
            queue: the queue; None: all queues.
            ids: only tasks with these ids; the sequence may be empty. None: all ids.
            limit: the most tasks to return; None: all. Default: 100, or with `ids`, all of these.
            values: False: without values (each is `None`).
        """
        if limit is ...:
            limit = _USUAL_LIMIT if ids is None else None
        name = None if queue is None else _values.queue_name(queue)
        most = None if limit is None else whole("limit", limit, 0, 1 << 40)
        self._here()
        if ids is not None and not ids:
            return []
        command = Select(queue=name, ids=tuple(ids or ()), limit=most, values=values)
        return [Task(row, self._form) for row in await self._apply(command)]

    async def queues(self, *names: str, prefix: str = "", limit: int | None = None) -> list[QueueStats]:
        """The queues that have tasks, with their numbers by state: all, those named, or those with a prefix.

        Postgres and SQLite estimate numbers above 10,000: see `QueueStats`.
        """
        most = None if limit is None else whole("limit", limit, 0, 1 << 40)
        prefixes = (prefix,) if prefix else ()
        return await queues_of_tasks(self._apply, Count(names=names, prefixes=prefixes, limit=most))

    async def sessions(self) -> list[WorkerSession]:
        """The worker processes that the store knows, by start."""
        return [session_of(session) for session in await self._apply(Sessions())]

    async def cancel(self, *ids: str) -> Cancelled:
        """Cancel tasks, waiting or running: none of them is done or committed any more.

        Those that nobody has claimed are removed at once. The functions of the others are cancelled, and each
        task is removed when its function has ended; until then it keeps its key, so that the next task of the
        key doesn't run beside it. A worker learns of it at once on Postgres without a pooler, Redis, Valkey
        and in memory, otherwise with its next heartbeat. A plain function can't be interrupted: it continues
        in its thread, and what it returns is dropped.

        Args:
            ids: of at most a thousand tasks.

        Raises:
            InvalidOption: there are too many, or none, or one is not text.
            StoreError: the store can't be reached, or can't be trusted.
        """
        if not 1 <= len(ids) <= MAX_ROWS:
            raise InvalidOption(f"{len(ids)} ids: give from 1 to {MAX_ROWS} ids of tasks to cancel")
        for id_ in ids:
            if not isinstance(id_, str):
                raise InvalidOption(
                    f"{short(id_)} is not the id of a task: cancel(*ids) cancels those of a list"
                )
        return await self._apply(Cancel(tuple(ids)))


async def queues_of_tasks(
    apply: Callable[[Count], Awaitable[tuple[QueueStats, ...]]], command: Count
) -> list[QueueStats]:
    """The queues that have tasks, without those of docs, which a service keeps for clients of EntroQ."""
    found = await apply(command)
    queues = [one for one in found if not one.name.startswith(DOCS)]
    if len(queues) == len(found) or command.limit is None:
        return queues
    every = await apply(replace(command, limit=None))
    return [one for one in every if not one.name.startswith(DOCS)][: command.limit]
