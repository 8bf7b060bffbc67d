"""The buffer of a stream: tasks that were claimed for it, by number, until its checkpoint has them.

A stream must be able to read a planned batch again, by the numbers in its checkpoint, after its driver has
died. Claims are not enough: they end with the process, and the next one gets other tasks. So the driver moves
tasks from the queue to a queue of its own, `intervalq.stream.NAME`: one change deletes some claimed tasks,
inserts as many whose ids are derived from their numbers, and increases the number in the stream's *head*,
which is a task of that queue, too. Whatever dies, a task is either in the queue or in the buffer, under one
number. A second change removes tasks from the buffer when the checkpoint has them, and records that in the
head.

A reader writes its name into the head, and so takes the buffer over from the previous one: two drivers that
read the same stream can't both continue.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import anyio

from intervalq.errors import DependencyError, IntervalqError, InvalidOption
from intervalq.spark._source.options import StreamOptions
from intervalq.spark._source.publish import CHUNK_BYTES, NEVER, patiently
from intervalq.spark._source.values import derived
from intervalq.tasks import Claim, Task, Tasks
from intervalq.tasks.rules import Change, Delete, Insert, Row

BUFFERS: Final = "intervalq.stream."
"""The prefix of queues that are buffers."""

_MOVED: Final = 480
"""The most tasks moved by one change, which may have a thousand parts: two for each task, and the head."""

_REMOVED: Final = 900
_BYTES: Final = 1 << 22
"""Bytes of values after which a change is full."""

_FIELDS: Final = Row._fields


class BufferTaken(IntervalqError):
    """Another query reads the stream now; `stream` is its name."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        super().__init__(
            f"stream {stream!r} was taken over by another query, so this one ends: give each query a "
            "stream of its own, and also each use of the DataFrame within one query"
        )


@dataclass(frozen=True, slots=True)
class Head:
    """The progress of a stream, as numbers of tasks, which begin at 1."""

    moved: int = 0
    """The last task that was moved to the buffer."""
    committed: int = 0
    """The last task that the checkpoint has and that was removed from the buffer."""
    owner: str = ""


class _Found(NamedTuple):
    head: Head
    task: Task | None


class StreamBuffer:
    """The buffer of one stream, used by one reader in one event loop."""

    def __init__(self, options: StreamOptions, owner: str) -> None:
        self._options = options
        self._owner = owner
        self._has_it = False
        self._tasks = Tasks(options.store, max_bytes=CHUNK_BYTES)
        self._queue = f"{BUFFERS}{options.stream}"

    async def head(self) -> Head:
        """The progress of the stream, for all of its readers."""
        return (await patiently(self._find)).head

    async def fill(self, begun: int, upto: int, wait: float = 0) -> int:
        """Move ready tasks until the number `upto` is reached; returns the last number in the buffer.

        Args:
            begun: the number up to which the buffer is known to be filled.
            upto: the last number to reach.
            wait: seconds to wait for the first task after `begun`.

        Raises:
            BufferTaken: another reader took it over. Nothing was moved.
        """
        try:
            while True:
                found = await patiently(self._own)
                most = min(_MOVED, upto - found.head.moved)
                pause = wait if found.head.moved <= begun else 0
                if most <= 0 or not await self._move(found, most, pause):
                    return found.head.moved
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._tasks.aclose()  # gives back claims that were not moved
            raise

    async def ready(self) -> int:
        """How many tasks of the queue could be claimed now."""
        stats = await patiently(lambda: self._tasks.queues(self._options.queue))
        return sum(queue.ready for queue in stats)

    async def rows(self, first: int, last: int) -> list[Row]:
        """The tasks with these numbers, as they were in their queue.

        Raises:
            InvalidOption: some no longer exist.
        """
        ids = [self._id(number) for number in range(first, last + 1)]
        found = await patiently(lambda: self._tasks.tasks(ids=ids))
        if len(found) < len(ids):
            raise InvalidOption(
                f"of the tasks {first} to {last} of stream {self._options.stream!r} only {len(found)} are "
                f"left: another query has committed them, or somebody deleted tasks of {self._queue}; start "
                "with a new checkpoint, which begins with those that are left"
            )
        return [Row._make(task.value[field] for field in _FIELDS) for task in found]

    async def commit(self, upto: int) -> None:
        """Remove all tasks up to this number, because the checkpoint has them."""
        while True:
            found = await patiently(self._own)
            first = found.head.committed + 1
            last = min(upto, first + _REMOVED - 1, found.head.moved)
            if last < first:
                return
            await patiently(partial(self._forget, found, first, last))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._tasks.aclose()

    # --- the head -----------------------------------------------------------------------------------

    def _id(self, number: int | str) -> str:
        return derived("stream", self._options.stream, number)

    async def _find(self) -> _Found:
        found = await self._tasks.tasks(ids=[self._id("head")])
        return _Found(Head(**found[0].value), found[0]) if found else _Found(Head(), None)

    async def _own(self) -> _Found:
        """The head, with the name of this reader.

        Raises:
            BufferTaken: it has another reader's name by now.
        """
        while True:
            found = await self._find()
            if found.head.owner == self._owner:
                self._has_it = True
                return found
            if self._has_it:
                raise BufferTaken(self._options.stream)
            await self._change(found, replace(found.head, owner=self._owner))

    async def _change(self, found: _Found, head: Head, parts: list[Any] | None = None) -> bool:
        """Change the head and other tasks, unless the head has changed; returns whether that was done."""
        value = asdict(head)
        part: Insert | Change
        if found.task is None:
            part = self._tasks.new(self._queue, value, id=self._id("head"), at=NEVER)
        else:
            part = found.task.change(value, at=NEVER)
        try:
            await self._tasks.modify(part, *(parts or ()))
        except DependencyError:
            return False  # done by an earlier try whose answer was lost, or by others: read the head again
        return True

    async def _forget(self, found: _Found, first: int, last: int) -> None:
        ids = [self._id(number) for number in range(first, last + 1)]
        there = await self._tasks.tasks(ids=ids, values=False)
        await self._change(found, replace(found.head, committed=last), [task.delete() for task in there])

    # --- from the queue to the buffer ----------------------------------------------------------------

    async def _move(self, found: _Found, most: int, wait: float) -> bool:
        """Move up to `most` tasks; False: none is ready."""
        pull = self._tasks.pull(
            self._options.queue, name=f"spark.{self._options.stream}", max_ack_pending=None
        )
        claims = await pull.fetch(most, timeout=wait)
        if not claims:
            return False
        moved: list[Claim] = []
        size = 0
        for claim in claims:
            if claim._row.is_plain or size > _BYTES:
                # A plain task can't be settled together with other changes; given back, it becomes an
                # ordinary one.
                await claim.release()
                continue
            moved.append(claim)
            size += len(claim._row.json)
        head = replace(found.head, moved=found.head.moved + len(moved))
        parts: list[Insert | Delete] = [claim.delete() for claim in moved]
        for number, claim in enumerate(moved, found.head.moved + 1):
            value = claim._row._replace(session=None, until=None)._asdict()
            parts.append(self._tasks.new(self._queue, value, id=self._id(number), at=NEVER))
        if moved:
            await patiently(lambda: self._moved(found, head, parts))
        return True

    async def _moved(self, found: _Found, head: Head, parts: list[Any]) -> None:
        if not await self._change(found, head, parts):
            await self._tasks.aclose()  # gives back claims that were not moved
