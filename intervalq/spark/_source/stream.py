"""Tasks of a queue as a stream: the interface that Spark uses on the driver and in the tasks that read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import InvalidOption
from intervalq.spark._source.options import StreamOptions
from intervalq.spark._source.read import task_row
from intervalq.spark._source.stream_buffer import StreamBuffer

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
    except ImportError:  # before PySpark 4.2, which asks for no limit: availableNow reads one batch
        ReadMaxRows = SupportsTriggerAvailableNow = object

_PAGE: Final = 200
"""Tasks that are read at a time."""

_SLICE: Final = 1_000
"""Tasks of one partition of a batch."""

_WAIT: Final = 0.2
"""Seconds that each request waits for the first task, because Spark asks a hundred times a second."""


class Slice(InputPartition):
    """Tasks of one partition, by number."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class TaskStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream. Offsets are numbers of tasks: see `StreamBuffer`. Executors only `read`."""

    def __init__(self, options: StreamOptions) -> None:
        self.options = options
        self._buffer: StreamBuffer | None = None
        self._target: int | None = None

    def __getstate__(self) -> StreamOptions:
        return self.options

    def __setstate__(self, options: StreamOptions) -> None:
        self.__init__(options)  # type: ignore[misc]  # as a new one

    @property
    def buffer(self) -> StreamBuffer:
        """The buffer of this process."""
        if self._buffer is None:
            self._buffer = StreamBuffer(self.options, uuid.uuid4().hex)
        return self._buffer

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - as Spark calls it
        """Where a new checkpoint begins: with the first task that no checkpoint had."""
        return {"task": BACKGROUND.call(self.buffer.head).committed}

    def getDefaultReadLimit(self) -> Any:  # noqa: ANN401, N802 - as Spark calls it
        """The maximum number of tasks in a batch."""
        return ReadMaxRows(self.options.max_tasks)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - as Spark calls it
        """Read only what can be claimed now."""
        head = BACKGROUND.call(self.buffer.head)
        self._target = head.moved + BACKGROUND.call(self.buffer.ready)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: ANN401, N802 - Spark's
        """Claim tasks for the next batch, and return the number of its last one."""
        head = BACKGROUND.call(self.buffer.head)
        begun = head.moved if start is None else int(start["task"])
        if begun > head.moved:
            raise InvalidOption(
                f"the checkpoint of stream {self.options.stream!r} is at task {begun}, but its store has had "
                f"{head.moved}: give the store and stream that belong to the checkpoint, or a new checkpoint"
            )
        most = getattr(limit, "max_rows", None) or self.options.max_tasks
        upto = begun + most
        if self._target is not None:
            upto = min(upto, max(begun, self._target))
        wait = _WAIT if self._target is None else 0
        return {"task": min(upto, BACKGROUND.call(self.buffer.fill, begun, upto, wait))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Tasks by number, a thousand a partition."""
        first, last = start["task"] + 1, end["task"]
        return [Slice(low, min(last, low + _SLICE - 1)) for low in range(first, last + 1, _SLICE)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The tasks of a partition."""
        assert isinstance(partition, Slice)
        buffer = StreamBuffer(self.options, "")
        try:
            for low in range(partition.first, partition.last + 1, _PAGE):
                rows = BACKGROUND.call(buffer.rows, low, min(partition.last, low + _PAGE - 1))
                yield from map(task_row, rows)
        finally:
            BACKGROUND.call(buffer.aclose)

    def commit(self, end: dict[str, int]) -> None:
        """Remove the tasks that the checkpoint has."""
        BACKGROUND.call(self.buffer.commit, end["task"])

    def stop(self) -> None:
        """Clean up at the end of the query."""
        if self._buffer is not None:
            BACKGROUND.call(self._buffer.aclose)
