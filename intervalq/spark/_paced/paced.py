"""`paced`: a DataFrame's rows, each called by a function at the pace of one queue over all executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from intervalq import IntervalQueue
from intervalq._queue.options import Cost, Duration, Settle
from intervalq._spec.codec import Codec
from intervalq.errors import InvalidOption
from intervalq.spark._compat import struct_of
from intervalq.spark._paced.job import Errors, Job, Policy
from intervalq.spark._paced.partition import stage
from intervalq.spark._paced.results import LOG_DDL
from intervalq.spark._paced.validate import job_maker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Transform = Callable[["DataFrame"], "DataFrame"]


def paced(
    function: Callable[..., Any],
    schema: str | StructType,
    *,
    queue: IntervalQueue | None,
    cost: Cost | Callable[[dict[str, Any]], Cost] = 1,
    settle: Settle[Any] | None = None,
    key: str | None = None,
    columns: Iterable[str] | None = None,
    run: str | None = None,
    ledger: str | None = "store",
    codec: Codec | None = None,
    large_answers: str | None = None,
    concurrency: int = 16,
    window: int | None = None,
    on_unknown: Policy = "retry",
    errors: Errors = "raise",
    stop_after: int | None = None,
    version: str | None = None,
    replay: bool = False,
    canary: bool = True,
    retries: int | None = None,
    setup: Callable[[], Any] | None = None,
    order_by: str | None = None,
    flush_rows: int = 1_000,
    flush_s: float = 1.0,
    drain: Duration = 30.0,
    log: str | None = "_iq",
    barrier: bool = False,
) -> Transform:
    """A transformation that calls a function for each row, and adds its results as columns.

    `df.transform(paced(fetch, "status int, body string", queue=api, key="id", run="visits-2026-11"))`

    All executors share the queue's pace. With a ledger, the call of a row is effectively once: a row whose
    call has ended is not called again, and takes no slot, when a task is retried, a speculative copy runs, a
    plan is evaluated twice, or the job is run again. It keeps each answer as the function gave it, before
    this is fitted to the schema. Rows come out as they end, in any order. This works on classic Spark and
    Spark Connect, in batch and in streams; intervalq must be installed on the executors.

    Args:
        function: `async def f(row, ctx)`, or a plain function, which runs in a thread. It gets a dict of the
            row and a `CallContext`, and returns a dict of the schema's columns; omitted columns are null.
        schema: the columns of its result, as DDL or StructType.
        queue: the pace; the executors must be able to reach its store. None: no limit.
        cost: what each call takes of the queue's pace and limits, see `IntervalQueue.add`; or a function of
            the row that says it: `lambda row: {"tokens": row["estimate"]}`. A row whose cost can't be had,
            or is more than a limit ever allows, has failed without a call.
        settle: a function of the call's result that says what it really took of limits, by unit; `cost` is
            the estimate then (see `Slot.settle`): `lambda answer: {"tokens": answer["tokens"]}`.
        key: the column whose value identifies a row: text, a whole number, or a date.
        columns: the columns that the function gets in its row. None: all. The others stay in the DataFrame,
            and are not turned into Python values, which takes a while if there are many.
        run: the name of this run and of its ledger: the same name continues it, a new one calls all rows
            anew.
        ledger: `"store"`: in the store of the queue. A URL: in that store. None: no ledger, for calls that
            may be repeated; then key and run are not needed.
        codec: an object with `encode(bytes)` and `decode(bytes)`, which is pickled to the executors. The
            results in the ledger pass through it, for example to be encrypted; keys don't. None: they are
            kept as JSON.
        large_answers: the folder for answers of more than 1 MiB, which a row of a ledger can't hold: a path
            that all executors share, or a URL such as `s3://bucket/folder`. None: beside a ledger in a file;
            with a ledger on a server, the row of such an answer fails.
        concurrency: the most calls in flight in one task, and threads of a plain function; 1 to 10,000. A
            pace needs as many calls in flight as its rate times the latency: see `plan`.
        window: the most rows that one task holds between input and result; at least `concurrency`. None: 64,
            or twice `concurrency` if that is more, and up to 4,000 while rows end within milliseconds.
        on_unknown: what to do with a row that was started by a process that died: `"retry"` calls it again
            (at least once, with the same idempotency key), `"fail"` reports it (at most once; a row whose
            call failed isn't called by a retried task either, only by `retries`).
        errors: `"raise"`: a row whose last attempt failed fails the task, once calls in flight have ended.
            `"column"`: its columns are null, and the log's `error` says why.
        stop_after: with `errors="column"`, how many rows in a row of one task may fail for one reason (equal
            but for numbers and quoted text) before the task fails with it, and the job with the task; 1 to
            1,000,000. None: any number.
        version: a name for this version of the function, as of a queue; None: unnamed. Rows that failed with
            another version are called again.
        replay: whether answers that a ledger kept for another schema, or from another version, are fitted to
            this schema, without a call. Otherwise they are refused with `RunChanged`, except that answers
            which didn't fit are always tried again.
        canary: whether each Python worker calls one row at a time until an answer has fitted the schema, and
            stops after two that don't, if no other row of the run has a result. So a wrong schema costs a
            few calls. False: call as many rows as fit, whatever they answer.
        retries: further attempts of a row within the task, each in a slot of its own. None: the queue's.
        setup: creates `ctx.http` once for each Python worker; its result may be awaitable, and may be a
            context manager. None: an `aiohttp.ClientSession` at first use.
        order_by: a column: each task calls its rows in this order. (Sorting the whole DataFrame would
            evaluate the input twice.)
        flush_rows, flush_s: rows leave a task in batches of this size, or after this many seconds.
        drain: how long calls in flight may take to end when a task fails.
        log: the name of the struct column that says when and where each row started. None: no such column.
        barrier: run all tasks at the same time or none, without speculation.

    A Retry-After of status 429 or 503 (httpx, requests, aiohttp) cools the queue down for every executor.

    Raises:
        InvalidOption, InvalidName: at once.
        BadResult, TooManyFailures, RunChanged, UnknownOutcome, RowFailed, RunCancelled, StoreError: in the
            tasks.
    """
    job_of = job_maker(
        function,
        queue=queue,
        cost=cost,
        settle=settle,
        key=key,
        columns=columns,
        run=run,
        ledger=ledger,
        codec=codec,
        large_answers=large_answers,
        concurrency=concurrency,
        window=window,
        on_unknown=on_unknown,
        errors=errors,
        stop_after=stop_after,
        version=version,
        replay=replay,
        canary=canary,
        retries=retries,
        setup=setup,
        flush_rows=flush_rows,
        flush_s=flush_s,
        drain=drain,
        log=log,
    )

    return lambda df: _transformed(df, schema, job_of, order_by, barrier=barrier)


def _transformed(
    df: DataFrame,
    schema: str | StructType,
    job_of: Callable[[StructType], Job],
    order_by: str | None,
    *,
    barrier: bool,
) -> DataFrame:
    given = struct_of(schema) if isinstance(schema, str) else schema
    job = job_of(given)
    _check_columns(df.columns, given.fieldNames(), job, order_by)
    source = df if order_by is None else df.sortWithinPartitions(order_by)
    return source.mapInArrow(stage(job), _output(df, given, job.log), barrier)


def _output(df: DataFrame, given: StructType, log: str | None) -> StructType:
    """The schema of the resulting DataFrame. `given`: that of the function's results."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - an extra

    output = StructType(list(df.schema.fields))
    for field in given:
        output.add(field.name, field.dataType, nullable=True)
    if log is not None:
        output.add(log, struct_of(f"x {LOG_DDL}").fields[0].dataType)
    return output


def _check_columns(there: list[str], new: list[str], job: Job, order_by: str | None) -> None:
    used = [("key", job.key), ("order_by", order_by), *(("columns", name) for name in job.takes or ())]
    for what, column in used:
        if column is not None and column not in there:
            raise InvalidOption(f"{what}={column!r} is not a column: there are {', '.join(there)}")
    more = [*new, *([] if job.log is None else [job.log])]
    # By default, names of columns are not case-sensitive in Spark.
    taken = {name.lower() for name in there}
    twice = [name for at, name in enumerate(more) if name.lower() in taken | {n.lower() for n in more[:at]}]
    if twice:
        raise InvalidOption(
            f"the result would have two columns {', '.join(twice)}: choose other names in the schema (or in "
            "log=)"
        )
