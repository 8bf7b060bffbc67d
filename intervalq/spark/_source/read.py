"""Tasks, queues, ledgers and logs as tables of Spark, read a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from pyspark.sql.datasource import DataSourceReader, InputPartition

from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import UnsupportedOperation
from intervalq.ledger.rules import Look
from intervalq.ledger.store import open_ledger_store
from intervalq.spark._source.log import Piece, pieces, results
from intervalq.spark._source.options import ReadOptions
from intervalq.tasks import Tasks
from intervalq.tasks.rules import QueueStats, Row
from intervalq.tasks.store import open_task_store

A = TypeVar("A")

SCHEMAS: Final = {
    "tasks": (
        "id string, queue string, key string, value string, at timestamp, created timestamp, "
        "modified timestamp, version bigint, claims bigint, attempt bigint, error string, claimant string"
    ),
    "queues": (
        "queue string, size bigint, claimed bigint, ready bigint, future bigint, inbox bigint, "
        "most_claims bigint, exact boolean"
    ),
    "ledger": "ledger string, key string, state string, attempt bigint, value string, at timestamp",
    "log": (
        "job string, shard bigint, ticket bigint, due timestamp, started timestamp, ended timestamp, "
        "exit_code int, stdout string, stderr string, attempt int"
    ),
}
"""The columns of each table. Values and jobs are JSON text (a job that is a text is that text)."""

_PAGE: Final = 1_000
_OURS: Final = "intervalq."
_RANGE: Final = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The range of a `datetime`, in microseconds since 1970."""


@runtime_checkable
class Paging(Protocol):
    """A task store that can be read in pages, even if it changes between two of them."""

    async def page(self, queue: str | None, cursor: str, limit: int) -> tuple[Sequence[Row], str]:
        """Tasks of a queue (None: of all queues), about `limit` of them, and where the next page begins.

        A task that exists all the time and stays in its queue is in exactly one page.

        Args:
            queue: the queue; None: all queues.
            cursor: the one of the previous page; empty: the beginning.
            limit: the approximate number of tasks.

        Returns:
            The tasks, and the next cursor; empty: this was the last page.
        """
        ...


class TableReader(DataSourceReader):
    """`spark.read`: created on the driver, and pickled for the tasks that read."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """One partition; several for logs, which are split into pieces."""
        if self.options.table == "log":
            return list(pieces(self.options.path))
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """The rows of a partition."""
        if isinstance(partition, Piece):
            return results(partition)
        reads: dict[str, Callable[[ReadOptions], AsyncIterator[list[tuple[Any, ...]]]]] = {
            "tasks": _tasks,
            "queues": _queues,
            "ledger": _ledger,
        }
        return _blocking(reads[self.options.table](self.options))


def task_row(row: Row) -> tuple[Any, ...]:
    """A task as a row of the table `tasks`."""
    times = (None, None, None) if row.is_plain else map(instant, (row.at, row.created, row.modified))
    return (
        *(row.id, row.queue, row.key, row.json, *times),
        *(row.version, row.claims, row.attempt, row.error or None, row.session),
    )


def instant(micros: int) -> datetime | None:
    """A time of a store; None: outside of the calendar."""
    if micros not in _RANGE:
        return None
    seconds, rest = divmod(micros, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


async def _tasks(options: ReadOptions) -> AsyncIterator[list[tuple[Any, ...]]]:
    store = open_task_store(options.store)
    if not isinstance(store, Paging):
        raise UnsupportedOperation(
            store.url, "this store of tasks can't be read in pages: use SQLite or Postgres"
        )
    cursor = ""
    try:
        while True:
            rows, cursor = await store.page(options.queue, cursor, _PAGE)
            # Without a queue, queues of intervalq itself are left out: staged rows, buffers of streams.
            yield [task_row(row) for row in rows if options.queue or not row.queue.startswith(_OURS)]
            if not cursor:
                return
    finally:
        await store.aclose()


async def _queues(options: ReadOptions) -> AsyncIterator[list[tuple[Any, ...]]]:
    async with Tasks(options.store) as tasks:
        names = () if options.queue is None else (options.queue,)
        stats: list[QueueStats] = await tasks.queues(*names)
    yield [tuple(one) for one in stats]


async def _ledger(options: ReadOptions) -> AsyncIterator[list[tuple[Any, ...]]]:
    store = open_ledger_store(options.store)
    cursor = ""
    try:
        while True:
            answer = await store.apply(options.ledger, Look(cursor, _PAGE))
            yield [
                (options.ledger, row.key, row.shown, row.attempt, row.value or None, instant(row.at))
                for row in answer.rows
            ]
            cursor = answer.cursor
            if not cursor:
                return
    finally:
        await store.aclose()


def _blocking(pages: AsyncIterator[list[A]]) -> Iterator[A]:
    """The items of pages, for blocking code; one page at a time is in memory."""

    async def following() -> list[A] | None:
        return await anext(pages, None)

    try:
        while (page := BACKGROUND.call(following)) is not None:
            yield from page
    finally:
        BACKGROUND.call(pages.aclose)  # type: ignore[attr-defined]  # they are generators
