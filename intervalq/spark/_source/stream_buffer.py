"""The buffer of a stream: tasks that were claimed for it, by number, until its checkpoint has them.

A stream must be able to read a planned batch again, by the numbers in its checkpoint, after its driver has
died. A claim can't serve: it ends with the process, and the next one gets other tasks. So the driver moves
tasks of the queue to a queue of its own, `intervalq.stream.NAME`: one change deletes some claimed tasks,
inserts as many whose ids are derived from their numbers, and counts up the number in the stream's *head*,
a task of that queue, too. Whatever dies, a task is in the queue or in the buffer, under one number.
A second change removes tasks from the buffer when the checkpoint has them, and keeps up to which in the head.

Who uses a buffer writes its name into the head, and so takes it from whoever had it before: two drivers that
read the same stream can't both go on.
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
"""How the queues begin that are buffers."""

_MOVED: Final = 480
"""Tasks that are moved by one change, which has a thousand parts at most: two for each, and the head."""

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
            "stream of its own, also two uses of one DataFrame in one query"
        )


@dataclass(frozen=True, slots=True)
class Head:
    """How far a stream is: numbers of tasks, which begin at 1."""

    moved: int = 0
    """The last one that was moved to the buffer."""
    committed: int = 0
    """The last one that the checkpoint has, and that is no longer there."""
    owner: str = ""


class _Found(NamedTuple):
    head: Head
    task: Task | None


class StreamBuffer:
    """The buffer of one stream, in the hands of one reader. Lives in one event loop."""

    def __init__(self, options: StreamOptions, owner: str) -> None:
        self._options = options
        self._owner = owner
        self._has_it = False
        self._tasks = Tasks(options.store, max_bytes=CHUNK_BYTES)
        self._queue = f"{BUFFERS}{options.stream}"

    async def head(self) -> Head:
        """How far the stream is, whoever reads it."""
        return (await patiently(self._find)).head

    async def fill(self, begun: int, upto: int, wait: float = 0) -> int:
        """Move what is ready, until the number `upto` is reached; the last number that is there then.

        Args:
            begun: up to where it was known to be filled.
            upto: see there.
            wait: while there is nothing after `begun`, seconds to wait for the first.

        Raises:
            BufferTaken: by another reader. Nothing was moved.
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
                await self._tasks.aclose()  # gives back what it claimed and didn't move
            raise

    async def ready(self) -> int:
        """How many tasks of the queue could be claimed now."""
        stats = await patiently(lambda: self._tasks.queues(self._options.queue))
        return sum(queue.ready for queue in stats)

    async def rows(self, first: int, last: int) -> list[Row]:
        """The tasks of these numbers, as they were in their queue.

        Raises:
            InvalidOption: some are not there any more.
        """
        ids = [self._id(number) for number in range(first, last + 1)]
        found = await patiently(lambda: self._tasks.tasks(ids=ids))
        if len(found) < len(ids):
            raise InvalidOption(
                f"of the tasks {first} to {last} of stream {self._options.stream!r} only {len(found)} are "
                f"there: another query has committed them, or somebody deleted tasks of {self._queue}; start "
                "with a new checkpoint, which begins with what is there"
            )
        return [Row._make(task.value[field] for field in _FIELDS) for task in found]

    async def commit(self, upto: int) -> None:
        """The checkpoint has all up to this number: remove them."""
        while True:
            found = await patiently(self._own)
            first = found.head.committed + 1
            last = min(upto, first + _REMOVED - 1, found.head.moved)
            if last < first:
                return
            await patiently(partial(self._forget, found, first, last))

    async def aclose(self) -> None:
        """Let go of connections."""
        await self._tasks.aclose()

    # --- the head -----------------------------------------------------------------------------------

    def _id(self, number: int | str) -> str:
        return derived("stream", self._options.stream, number)

    async def _find(self) -> _Found:
        found = await self._tasks.tasks(ids=[self._id("head")])
        return _Found(Head(**found[0].value), found[0]) if found else _Found(Head(), None)

    async def _own(self) -> _Found:
        """The head, which has the name of this reader.

        Raises:
            BufferTaken: it has another one by now.
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
        """Change the head with other things, or, if it is not as it was, nothing; whether it was done."""
        value = asdict(head)
        part: Insert | Change
        if found.task is None:
            part = self._tasks.new(self._queue, value, id=self._id("head"), at=NEVER)
        else:
            part = found.task.change(value, at=NEVER)
        try:
            await self._tasks.modify(part, *(parts or ()))
        except DependencyError:
            return False  # by a try whose answer was lost, or by others: who looks again, sees it
        return True

    async def _forget(self, found: _Found, first: int, last: int) -> None:
        ids = [self._id(number) for number in range(first, last + 1)]
        there = await self._tasks.tasks(ids=ids, values=False)
        await self._change(found, replace(found.head, committed=last), [task.delete() for task in there])

    # --- from the queue to the buffer ----------------------------------------------------------------

    async def _move(self, found: _Found, most: int, wait: float) -> bool:
        """Move up to so many tasks; False: none is ready."""
        pull = self._tasks.pull(
            self._options.queue, name=f"spark.{self._options.stream}", max_ack_pending=None
        )
        claims = await pull.fetch(most, timeout=wait)
        if not claims:
            return False
        moved: list[Claim] = []
        size = 0
        for claim in claims:
            if claim.row.is_plain or size > _BYTES:
                # A plain task can't end with other changes. One that is given back is an ordinary one then.
                await claim.release()
                continue
            moved.append(claim)
            size += len(claim.row.json)
        head = replace(found.head, moved=found.head.moved + len(moved))
        parts: list[Insert | Delete] = [claim.delete() for claim in moved]
        for number, claim in enumerate(moved, found.head.moved + 1):
            value = claim.row._replace(session=None, until=None)._asdict()
            parts.append(self._tasks.new(self._queue, value, id=self._id(number), at=NEVER))
        if moved:
            await patiently(lambda: self._moved(found, head, parts))
        return True

    async def _moved(self, found: _Found, head: Head, parts: list[Any]) -> None:
        if not await self._change(found, head, parts):
            await self._tasks.aclose()  # what is still claimed is not in the buffer: back with it
