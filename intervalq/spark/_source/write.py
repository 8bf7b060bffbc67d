"""Writes DataFrames and streams as durable tasks: the interface that Spark uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import IntervalqError
from intervalq.spark._source.options import WriteOptions
from intervalq.spark._source.publish import (
    CHUNK_BYTES,
    Write,
    Written,
    chunks,
    clean,
    publish,
    stage,
    write_of_batch,
    write_once,
)
from intervalq.spark._source.values import tasks_of
from intervalq.tasks import Tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # before PySpark 4.1: `streamWriter` refuses it
        DataSourceStreamArrowWriter = object

_SWEEP: Final = 100
"""Batches of a stream between two sweeps of old chunks, each of which counts all tasks of the store."""


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """The message of an attempt to the driver."""

    write: Write
    written: Written


class BatchWriter(DataSourceArrowWriter):
    """`df.write`: created on the driver, and pickled for the tasks."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.identity = write_once(uuid.uuid4().hex, options.run)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of a partition."""
        return _stage(iterator, self.options, self.identity)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish all staged rows."""
        _commit(self.options, self.identity, _written(messages), sweep=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove only staged rows, so that it is safe after a commit, too."""
        del messages
        BACKGROUND.call(_cleaned, self.options, self.identity)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: one instance for each batch, which is identified by its query and number."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Stage the rows of a partition of a batch."""
        context = TaskContext.get()
        query = batch = None
        if context is not None:
            query = context.getLocalProperty("sql.streaming.queryId")
            batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise IntervalqError(
                "Spark does not say which query and batch this is, so that a repeated batch could not be "
                "recognized: use foreachBatch, with df.write and a run that contains the number of the batch"
            )
        return _stage(iterator, self.options, write_of_batch(query, int(batch)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Publish the rows of a batch, unless that was done before."""
        write = _write(messages)
        if write is not None:
            _commit(self.options, write, _written(messages), sweep=batchId % _SWEEP == 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Remove only staged rows, so that it is safe after a commit, too."""
        del batchId
        write = _write(messages)
        if write is not None:
            BACKGROUND.call(_cleaned, self.options, write)


def _write(messages: Sequence[WriterCommitMessage | None]) -> Write | None:
    return next((message.write for message in messages if isinstance(message, Message)), None)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message.written for message in messages if isinstance(message, Message)]


def _stage(batches: Iterator[pa.RecordBatch], options: WriteOptions, write: Write) -> Message:
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    attempt = uuid.uuid4().hex
    tasks = Tasks(options.store, max_bytes=CHUNK_BYTES)
    number = rows = 0
    try:
        for chunk in chunks(tasks_of(batches, options, write.ids, partition)):
            BACKGROUND.call(stage, tasks, write, attempt, number, chunk)
            number += 1
            rows += len(chunk)
    finally:
        BACKGROUND.call(tasks.aclose)
    return Message(write, Written(attempt, number, rows))


def _commit(options: WriteOptions, write: Write, written: list[Written], *, sweep: bool) -> None:
    async def do() -> Any:  # noqa: ANN401 - nothing
        async with Tasks(options.store, max_bytes=CHUNK_BYTES) as tasks:
            await publish(tasks, write, written)
            await clean(tasks, write, sweep=sweep)

    BACKGROUND.call(do)


async def _cleaned(options: WriteOptions, write: Write) -> None:
    async with Tasks(options.store, max_bytes=CHUNK_BYTES) as tasks:
        await clean(tasks, write, sweep=False)
