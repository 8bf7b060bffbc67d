"""The driver's view of a run: its progress, the remaining rows, and how to cancel it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from intervalq import IntervalQueue
from intervalq._queue.inspect import QueueState
from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import InvalidOption, LedgerNotFound, short
from intervalq.ledger import Ledger
from intervalq.spark._compat import condition, first_line
from intervalq.spark._formats import TABLES, lacking, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A queue, and one of its runs, at one instant. It is read from the store, so any driver can do that."""

    at: float
    """The store's clock, in seconds since 1970."""
    interval: float | None
    """Seconds between two starts; None: the queue has only limits."""
    starts: int
    """Slots that were granted since the queue was created."""
    waiting: int
    """Tickets that were taken and not granted."""
    is_held: bool
    """Whether the queue is paused or cooling down."""
    done: int | None
    """Rows of the run that have a result; None: no run was given, or it has not begun."""
    failed: int | None
    """Rows of the run whose error was kept."""
    in_flight: int | None
    """Rows of the run that a live task holds."""
    unknown: int | None
    """Rows of the run that were started by a process that died."""

    def rate(self, since: Progress) -> float:
        """Starts per second since an earlier look; 0 if no time has passed."""
        return (self.starts - since.starts) / (self.at - since.at) if self.at > since.at else 0.0

    def possible(self, since: Progress) -> float | None:
        """The share of possible slots that were used since an earlier look; None: there is no interval."""
        return None if self.interval is None else self.rate(since) * self.interval


def progress(queue: IntervalQueue, run: str | None = None) -> Progress:
    """The progress of a queue and a run. This blocks for one or two round trips to the store.

    Args:
        queue: as given to `paced`.
        run: the run whose rows are counted, too; its ledger must be in the store of the queue.

    Raises:
        QueueNotFound: nothing has started yet.
        StoreError: the store can't be reached, or can't be trusted.
    """
    state = seen(queue)
    info = None
    if run is not None:
        ledger = Ledger(run, queue._options.store_url)  # noqa: SLF001 - its own package

        async def look() -> None:
            nonlocal info
            try:
                info = await ledger.info()
            except LedgerNotFound:
                pass
            finally:
                await ledger.aclose()

        BACKGROUND.call(look)
    return Progress(
        at=state.now,
        interval=state.interval if state.has_pace else None,
        starts=state.current,
        waiting=state.outstanding,
        is_held=state.is_held,
        done=info and info.done,
        failed=info and info.failed,
        in_flight=info and info.claimed + info.started,
        unknown=info and info.unknown,
    )


def seen(queue: IntervalQueue) -> QueueState:
    """The state of the queue in its store."""
    handle = queue._twin()

    async def look() -> QueueState:
        try:
            return await handle.inspect()
        finally:
            await handle.close(drain=False)

    return BACKGROUND.call(look)


_NOTHING: Final = frozenset(
    {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "TABLE_OR_VIEW_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"}
)
"""The names of the errors of Spark and Delta if there is nothing at a place."""


def remaining(df: DataFrame, place: str, key: str, *, format: str = "parquet") -> DataFrame:  # noqa: A002 - as in Spark
    """The rows of `df` whose key isn't among the results published at a place.

    If you call only rows that are missing in the published results, a ledger is needed only until its run
    ends.

    Args:
        df: rows to be called.
        place: a path, or the name of a table; if it doesn't exist, nothing is published yet.
        key: the column that identifies rows, in both.
        format: "parquet" for a folder of such files; "delta" or "iceberg" for a table by its path (with a
            slash) or its name; "table" for one of any format by its name.

    Raises:
        InvalidOption: `key` is not a column of `df` or of the published results; or the session doesn't know
            the format, and the error says what it needs.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    if key not in df.columns:
        raise InvalidOption(f"key={key!r} is not a column: there are {', '.join(df.columns)}")
    if format not in TABLES:
        raise InvalidOption(f"format={short(format)} must be one of {', '.join(TABLES)}")
    try:
        published = read(df.sparkSession.read, place, format)
        columns = published.columns
    except Exception as error:
        if isinstance(error, PySparkException) and condition(error) in _NOTHING:
            return df
        if why := lacking(error, format):
            raise InvalidOption(f"{place} can't be read as {format}: {first_line(error)}{why}") from error
        raise
    if key not in columns:
        raise InvalidOption(f"key={key!r} is not a column of {place}: there are {', '.join(columns)}")
    return df.join(published.select(key), key, "left_anti").select(*df.columns)


def cancel(run: str, *, store: IntervalQueue | str | None = None) -> None:
    """Stop a run on every executor: no further row is claimed or begun, and calls in flight end.

    Its tasks learn of it within about two seconds. They fail with `RunCancelled` together, once no call of
    the run is in flight, or after about twice `drain`, because Spark stops all tasks as soon as one has
    failed. Ended rows are kept in the ledger, and `intervalq ledger uncancel RUN` lets the run go on. (A run
    without a ledger has no name: pause its queue instead.)

    Args:
        run: as given to `paced`.
        store: the queue, or the URL of the store, that has its ledger; None: the default store.

    Raises:
        LedgerNotFound: there is no such run.
        StoreError: the store can't be reached, or can't be trusted.
    """
    url = store._options.store_url if isinstance(store, IntervalQueue) else store  # noqa: SLF001 - as above
    ledger = Ledger(run, url)

    async def stop() -> None:
        try:
            await ledger.cancel()
        finally:
            await ledger.aclose()

    BACKGROUND.call(stop)
