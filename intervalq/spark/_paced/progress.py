"""What a driver asks while a run is on, before it goes on, and to end it: progress, remaining, cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from intervalq import IntervalQueue
from intervalq._queue.inspect import QueueState
from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import InvalidOption, LedgerNotFound
from intervalq.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A queue, and a run of it, at one instant. It is read from the store, so that every driver can."""

    at: float
    """The store's clock, in seconds since 1970."""
    interval: float
    starts: int
    """Slots that were granted since the queue was made."""
    waiting: int
    """Tickets taken and not granted."""
    held: bool
    """Paused or cooling down."""
    done: int | None
    """Rows of the run that have a result; None: no run was named, or it has not begun."""
    failed: int | None
    """Rows of the run whose error was kept."""
    in_flight: int | None
    """Rows of the run that a live task holds."""
    unknown: int | None
    """Rows of the run that a process had started which died."""

    def rate(self, since: Progress) -> float:
        """Starts a second since an earlier look; 0 if no time has passed."""
        return (self.starts - since.starts) / (self.at - since.at) if self.at > since.at else 0.0

    def possible(self, since: Progress) -> float:
        """The share of possible slots that were used since an earlier look."""
        return self.rate(since) * self.interval


def progress(queue: IntervalQueue, run: str | None = None) -> Progress:
    """How far it is. Blocks for a round trip to the store or two.

    Args:
        queue: as given to `paced`.
        run: the run whose rows are to be told, too; its ledger is where the queue is.

    Raises:
        QueueNotFound: nothing has started yet.
        StoreError.
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
        interval=state.interval,
        starts=state.current,
        waiting=state.outstanding,
        held=state.held,
        done=info and info.done,
        failed=info and info.failed,
        in_flight=info and info.claimed + info.started,
        unknown=info and info.unknown,
    )


def seen(queue: IntervalQueue) -> QueueState:
    """The queue as its store has it."""
    handle = queue.twin()

    async def look() -> QueueState:
        try:
            return await handle.inspect()
        finally:
            await handle.close(drain=False)

    return BACKGROUND.call(look)


def remaining(df: DataFrame, path: str, key: str) -> DataFrame:
    """The rows of `df` whose key isn't among the results published under `path`.

    A ledger remembers a run; published results remember for ever. Ask for what they lack first, and a ledger
    need only outlive the run.

    Args:
        df: rows to be called.
        path: a folder of Parquet files; where there is none yet, nothing is published.
        key: the column that tells rows apart, in both.

    Raises:
        InvalidOption: `key` is no column of `df` or of what is published.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    if key not in df.columns:
        raise InvalidOption(f"key={key!r} is no column: there are {', '.join(df.columns)}")
    try:
        published = df.sparkSession.read.parquet(path)
        columns = published.columns
    except AnalysisException as error:
        if error.getCondition() in {"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"}:
            return df
        raise
    if key not in columns:
        raise InvalidOption(f"key={key!r} is no column of {path}: there are {', '.join(columns)}")
    return df.join(published.select(key), key, "left_anti").select(*df.columns)


def cancel(run: str, *, store: IntervalQueue | str | None = None) -> None:
    """Stop a run on every executor: no row of it is claimed or begun any more, calls in flight end.

    Its tasks hear of it within two seconds or so, and fail with `RunCancelled` together, once no call of the
    run is in flight any more, or after twice `drain` or so: Spark stops all tasks as soon as one has failed.
    What ended is kept in its ledger, and `intervalq ledger uncancel RUN` lets the run go on. (A run without a
    ledger has no name: pause its queue.)

    Args:
        run: as given to `paced`.
        store: the queue, or the URL, where its ledger is; None: the default store.

    Raises:
        LedgerNotFound: there is no such run.
        StoreError.
    """
    url = store._options.store_url if isinstance(store, IntervalQueue) else store  # noqa: SLF001 - as above
    ledger = Ledger(run, url)

    async def stop() -> None:
        try:
            await ledger.cancel()
        finally:
            await ledger.aclose()

    BACKGROUND.call(stop)
