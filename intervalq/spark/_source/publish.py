"""Turns rows of Spark into tasks exactly once: attempts stage them, and one transaction publishes them.

An attempt at a partition may be repeated, copied, or killed at any moment, so it changes nothing that a
worker sees: it *stages* its tasks in chunks, each of which is one task of a queue that nobody works on, with
a time in the year 2200. Its message to the driver names those chunks. The driver's commit is one transaction
in the store of the tasks: for each chunk of the winning attempts, it inserts the tasks and deletes the chunk.
This is correct because a chunk exists until its tasks do, and never longer, whatever dies between two
statements and however often a commit is repeated. Only one chunk at a time is in memory.

Chunks can't show that the same rows were staged again, by a stream that replays its last batch or by a batch
write with a name (`run`). So the transaction also keeps a record, which is a task in the queue
`intervalq.writes`: one for each named write, with the number of its rows; and one for each query, with the
number of its last batch, which is updated at each batch, so that nothing piles up.

Chunks of attempts that didn't win are in the same staging queue, and are removed after the commit or at the
abort. An abort removes nothing else, so it is safe after a publication. What a dead driver has left behind is
removed by a later write, after a week.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from intervalq._timing.outage import LoopOutage
from intervalq.errors import (
    DependencyError,
    InvalidOption,
    InvalidTask,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    short,
)
from intervalq.spark._source.values import Made, derived
from intervalq.tasks import Task, Tasks
from intervalq.tasks.rules import Change, Insert, Select

log: Final = logging.getLogger("intervalq")

A = TypeVar("A")

WRITES: Final = "intervalq.writes"
"""The queue that has a record of each named write, and of each query."""

STAGED: Final = "intervalq.staged."
"""The prefix of queues with chunks."""

NEVER: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""The time of tasks that nobody may claim."""

CHUNK_BYTES: Final = 1 << 28
"""The largest size of a task with a chunk; see `chunks` for the usual size."""

_ROWS: Final = 900
_BYTES: Final = 1 << 20
_OLD: Final = 7 * 86_400
"""In seconds. A younger chunk may belong to a write that is still running."""


@dataclass(frozen=True, slots=True)
class Write:
    """A write, identified by the names under which its parts are kept."""

    ids: str
    """The text from which, with the key or place of a row, ids of its tasks are derived."""
    staging: str
    """The queue that has its chunks."""
    record: str | None = None
    """The name under which its completion is recorded; None: it is never repeated."""
    batch: int | None = None
    """For a stream: the number of the batch. The record of the stream has the last one."""


@dataclass(frozen=True, slots=True)
class Written:
    """What an attempt has staged."""

    attempt: str
    chunks: int
    rows: int


def write_once(token: str, run: str | None) -> Write:
    """A batch write; `token` is different for each execution."""
    record = None if run is None else f"run {run}"
    return Write(record or f"write {token}", f"{STAGED}{token}", record)


def write_of_batch(query: str, batch: int) -> Write:
    """One batch of a stream, which may be repeated by another process."""
    name = f"query {query} batch {batch}"
    return Write(name, f"{STAGED}{derived(name)}", f"query {query}", batch)


# --- in a task of Spark --------------------------------------------------------------------------------


def chunks(rows: Iterable[Made]) -> Iterator[list[Made]]:
    """Groups of rows that are staged and inserted together: 900 rows, or fewer with a megabyte of values."""
    chunk: list[Made] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.insert.json)
        if len(chunk) == _ROWS or size > _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


async def stage(tasks: Tasks, write: Write, attempt: str, number: int, chunk: list[Made]) -> None:
    """Insert a chunk into the staging queue, where nobody works on it."""
    rows = [[row.insert.queue, row.insert.json, row.insert.id, row.insert.key, row.name] for row in chunk]
    id_ = derived("chunk", attempt, number)
    # Skipped if it exists, from an earlier try whose answer was lost.
    await patiently(lambda: tasks.insert(write.staging, rows, id=id_, at=NEVER, skip=True))


# --- on the driver -------------------------------------------------------------------------------------


async def publish(tasks: Tasks, write: Write, written: Sequence[Written]) -> bool:
    """Insert what the winning attempts have staged; False: it was already inserted.

    Args:
        tasks: the store.
        write: the write.
        written: for each partition, what the winning attempt has staged.

    Raises:
        InvalidOption: keys occur twice, or a run of this name had another number of rows. Nothing was done.
        InvalidTask: staged rows are gone. Nothing was done.
        StoreUnavailable: the outcome could not be determined within a minute.
        StoreError: any other; nothing was done.
    """
    tries = 0

    async def step() -> bool:
        nonlocal tries
        tries += 1
        async with tasks.transaction() as connection:
            return await _publish(tasks, connection, write, written, first=tries == 1)

    return await patiently(step)


async def _publish(
    tasks: Tasks,
    connection: Any,  # noqa: ANN401 - of the store's driver
    write: Write,
    written: Sequence[Written],
    *,
    first: bool,
) -> bool:
    if write.record and not await _record(tasks, connection, write, sum(one.rows for one in written)):
        return False
    for one in written:
        for number in range(one.chunks):
            found = await tasks._apply(Select(ids=(derived("chunk", one.attempt, number),)), connection)
            if not found and not first and not write.record:
                return False  # the previous try was committed, and only its answer was lost
            if not found:
                raise InvalidTask(
                    f"rows that were staged for {write.ids} are gone, so none of it was inserted: somebody "
                    f"deleted tasks of {write.staging}, or they were a week old; repeat the write"
                )
            await _insert(tasks, connection, Task(found[0]))
    return True


async def _record(tasks: Tasks, connection: Any, write: Write, rows: int) -> bool:  # noqa: ANN401 - see above
    """Record in the same transaction that the write is done; False: it was already done."""
    id_ = derived("record", write.record)
    found = [Task(row) for row in await tasks._apply(Select(ids=(id_,)), connection)]
    value = {"write": write.record, "rows": rows, "batch": write.batch}
    part: Insert | Change = tasks.new(WRITES, value, id=id_, at=NEVER)
    if found:
        before = found[0].value
        if write.batch is None and before["rows"] != rows:
            raise InvalidOption(
                f"{write.record!r} was written before, with {before['rows']} rows, and these are {rows}; "
                f"none was inserted: give another run, or delete task {id_} of queue {WRITES} to write again"
            )
        if write.batch is None or before["batch"] >= write.batch:
            return False
        part = found[0].change(value, at=NEVER)
    try:
        await tasks.modify(part, connection=connection)
    except DependencyError as error:
        raise _OtherError from error  # once the other is done, this one will see its record
    return True


async def _insert(tasks: Tasks, connection: Any, chunk: Task) -> None:  # noqa: ANN401 - see above
    """Replace a chunk by its tasks."""
    rows = chunk.value
    inserts = [Insert(queue, json, id_, key) for queue, json, id_, key, _ in rows]
    double = [id_ for id_, count in Counter(insert.id for insert in inserts).items() if count > 1]
    if not double:
        try:
            await tasks.modify(*inserts, chunk.delete(), connection=connection)
        except DependencyError as error:
            if not error.inserts:
                raise _OtherError from error
            double = list(error.inserts)
    if double:
        names = {row[2]: row[4] or row[2] for row in rows}
        shown = ", ".join(short(names[id_]) for id_ in double[:3])
        raise InvalidOption(
            "keys occur twice in one write, or have tasks of a run of the same name, so nothing was "
            f"inserted: {shown}{', ...' * (len(double) > 3)}; keep one row of each key "
            "(df.dropDuplicates), or write without key"
        )


class _OtherError(Exception):
    """Another process commits the same write at the same time."""


# --- what is left ------------------------------------------------------------------------------------------


async def clean(tasks: Tasks, write: Write, *, sweep: bool) -> None:
    """Remove the chunks of a write that are no longer needed; with `sweep`, also old ones of other writes."""
    try:
        await _remove(tasks, write.staging, math.inf)
        if sweep:
            for queue in await tasks.queues(prefix=STAGED, limit=100):
                await _remove(tasks, queue.name, time.time() - _OLD)
    except (StoreError, DependencyError) as error:
        # The write is published: a job must not fail because of what a later one can clean up.
        log.warning("staged rows of Spark were left behind; a later write will remove them: %s", error)


async def _remove(tasks: Tasks, queue: str, before: float) -> None:
    while True:
        found = await tasks.tasks(queue, limit=_ROWS, values=False)
        old = [task.delete() for task in found if task.created < before]
        if not old:
            return
        await tasks.modify(*old)


async def patiently(step: Callable[[], Awaitable[A]]) -> A:
    """Repeat an idempotent step until the store answers, for at most a minute."""
    outage = LoopOutage()
    while True:
        try:
            return await step()
        except (StoreUnavailable, TransactionConflict, _OtherError):
            if outage.failed():
                raise
        await outage.pause()
