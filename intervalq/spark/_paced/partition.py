"""The code in a Python worker: reads the input, passes rows through the event loop, and yields batches."""

from __future__ import annotations

import datetime as dt
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from intervalq import IntervalQueue
from intervalq._timing.background_loop import BACKGROUND
from intervalq.errors import InvalidOption, short
from intervalq.ledger._checks import MAX_KEY
from intervalq.spark._paced.context import prepare
from intervalq.spark._paced.handoff import Exchange, Row
from intervalq.spark._paced.job import Job
from intervalq.spark._paced.results import Builder
from intervalq.spark._paced.row_scheduler import Flow

STAGE: Final = "intervalq_paced"
"""The name of the stage's function, by which Spark's plans show it."""

_COLLECTED: Final = 20_000
"""New objects after which Python looks for garbage while a task runs, unless it is set to more. By default it
looks at the rows in progress, none of which is garbage, so often that it costs a quarter of the time."""


class _Garbage:
    """Raises the threshold while any stage of this process runs: they may overlap in any order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before: tuple[int, int, int] | None = None

    def begin(self) -> None:
        """A stage begins."""
        with self._lock:
            self._running += 1
            now = gc.get_threshold()
            if self._running == 1 and 0 < now[0] < _COLLECTED:
                self._before = now
                gc.set_threshold(_COLLECTED, *now[1:])

    def end(self) -> None:
        """It ended: after the last one, the threshold is as before, unless somebody else has set it."""
        with self._lock:
            self._running -= 1
            if self._running == 0 and self._before is not None:
                if gc.get_threshold() == (_COLLECTED, *self._before[1:]):
                    gc.set_threshold(*self._before)
                self._before = None


_garbage: Final = _Garbage()


def stage(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`."""

    def intervalq_paced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_stage(job, batches)

    assert intervalq_paced.__name__ == STAGE
    return intervalq_paced


def run_stage(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one task, a few rows at a time."""
    prepare(job.function, job.setup)
    exchange = Exchange(job.window, job.most_rows, job.flush_rows, job.flush_s)
    began: Future[Flow] = Future()
    running = BACKGROUND.start(_run, job, exchange, began)
    running.add_done_callback(lambda _: began.cancel())
    builder = Builder(job.columns, job.log)
    _garbage.begin()
    try:
        flow = began.result()
        reader = threading.Thread(target=_read, args=(job, batches, exchange, flow), daemon=True)
        reader.start()
        while rows := exchange.take():
            yield from builder.build(rows)
    except GeneratorExit:
        flow.loop.call_soon_threadsafe(flow.fail, _Enough())
        raise
    except BaseException as error:
        if began.done() and not began.cancelled():
            flow.loop.call_soon_threadsafe(flow.fail, error)
        elif began.cancelled():
            exchange.take()  # raises why it never began
        raise
    finally:
        _garbage.end()
        with suppress(BaseException):
            running.result()


class _Enough(Exception):  # no error: Spark wants no more rows
    pass


async def _run(job: Job, exchange: Exchange, began: Future[Flow]) -> None:
    try:
        await Flow(job, _queue_of(job), exchange).run(began.set_result)
    except BaseException as error:
        exchange.end(error)
        raise


_queues: Final[dict[object, IntervalQueue]] = {}
"""The queues of this process, with their connections, which later tasks use again."""


def _queue_of(job: Job) -> IntervalQueue | None:
    if job.queue is None:
        return None
    options = job.queue._options  # noqa: SLF001 - what makes two handles the same
    kept = _queues.get(options)
    if kept is None or kept._closed:  # noqa: SLF001 - as after a task that failed
        kept = _queues[options] = job.queue._twin()
    return kept


def _read(job: Job, batches: Iterator[pa.RecordBatch], exchange: Exchange, flow: Flow) -> None:
    """Read the input as fast as rows end, in a thread of its own: reading blocks while Spark computes."""
    try:
        for batch in batches:
            for rows in _rows(job, batch, exchange):
                if not exchange.enter(len(rows)):
                    return
                flow.loop.call_soon_threadsafe(flow.feed, rows)
    except BaseException as error:  # noqa: BLE001 - it is raised in the writer's thread
        flow.loop.call_soon_threadsafe(flow.fail, error)
    else:
        flow.loop.call_soon_threadsafe(flow.no_more)


def _rows(job: Job, batch: pa.RecordBatch, exchange: Exchange) -> Iterator[list[Row]]:
    given = batch if job.takes is None else batch.select(job.takes)
    first = 0
    while first < batch.num_rows:
        step = exchange.step
        part = given.slice(first, step).to_pylist()
        keys = [""] * len(part)
        if job.key is not None:
            column = batch.column(job.key).slice(first, step)
            keys = [_text(job.key, value) for value in column.to_pylist()]
        yield [
            Row(batch, index, data, key)
            for index, (data, key) in enumerate(zip(part, keys, strict=True), first)
        ]
        first += step


def _text(column: str, value: Any) -> str:  # noqa: ANN401 - any value of a column
    """A row's key as text."""
    if type(value) is str:
        text = value
    elif isinstance(value, int | Decimal | dt.date) and not isinstance(value, bool):
        text = str(value)
    elif value is None:
        raise InvalidOption(f"the key column {column!r} has a null: drop such rows, or fill them in")
    else:
        raise InvalidOption(
            f"column {column!r} can't be a key, it has a {type(value).__name__}: cast it to string"
        )
    if not 0 < len(text) <= MAX_KEY or "\0" in text:
        raise InvalidOption(
            f"{short(text)} in column {column!r} can't be a key: use 1 to {MAX_KEY} characters without NUL; "
            "for longer text, use a hash such as sha2(column, 256)"
        )
    return text
