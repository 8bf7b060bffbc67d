"""A run of a pipeline: completes what earlier runs left unfinished, then calls the missing rows."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812

from intervalq.errors import InvalidOption, QueueNotFound, StoreUnavailable, TooManyFailures
from intervalq.pipeline._function import Function
from intervalq.pipeline._guard import Guard
from intervalq.pipeline._judge import judge, write_report
from intervalq.pipeline._layout import Layout, Pass, answers_of
from intervalq.pipeline._publish import publish
from intervalq.pipeline._published import Tables
from intervalq.pipeline._reasons import Sample, reasons_kept
from intervalq.pipeline._requests import PRINT, REASON, Requests, requests, tally
from intervalq.pipeline._watch import Looks, Outcome, Published, Watch
from intervalq.spark._compat import cause, first_line, struct_of
from intervalq.spark._paced.paced import paced
from intervalq.spark._paced.progress import progress, seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from intervalq.pipeline._spec import Spec
    from intervalq.spark._audit.result import Audit
    from intervalq.spark._paced.paced import Transform

_LOOK: Final = 0.5
"""Seconds between two queries of the store."""


def run(
    spec: Spec,
    *,
    spark: SparkSession | None = None,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Call every row of the input that has no result, publish, and audit the whole log.

    It may be killed at any moment and repeated: calls whose end was known are not made again.

    Args:
        spec: the result of `read_spec`.
        spark: a session, possibly of Spark Connect. None: the active one, or a new local one.
        watch: receives the progress.
        stop: once set, no further call begins, calls in flight end, and the rest waits for the next run.

    Raises:
        InvalidOption: the input, the schema or a condition isn't usable; or another run is active.
        ConfigMismatch, QueueNotFound, StoreError: as for queues.
        PySparkException, Py4JError: the Spark job failed; the calls made so far are recorded.
    """
    return _Run(spec, _session(spec, spark), watch or Watch(), stop or threading.Event()).run()


def audit(spec: Spec, *, spark: SparkSession | None = None) -> tuple[Audit | None, str]:
    """Audit the log again, and write the report; returns the audit (None: no log) and the page's place."""
    session = _session(spec, spark)
    layout = Layout(spec.output, session)
    tables = Tables(session, spec, layout)
    found = judge(session, spec, tables)
    return found, write_report(tables, layout, found, {"pipeline": spec.name})


def stage_of(spec: Spec, *, canary: bool = True) -> Transform:
    """The Spark stage that makes the calls; this also lets `paced` check the spec. `canary`: see `paced`.

    Raises:
        InvalidOption: `paced` refuses something.
    """
    call = spec.call
    for function in (call.function, call.setup, call.cost, call.settle):
        if isinstance(function, Function):
            function.may_travel()
    try:
        return paced(
            call.function.call,
            call.schema,
            queue=spec.queue,
            cost=call.cost.call if isinstance(call.cost, Function) else call.cost,
            settle=None if call.settle is None else call.settle.call,
            key=spec.input.key,
            columns=call.columns,
            run=spec.name,
            large_answers=answers_of(spec.output),
            concurrency=call.concurrency,
            window=call.window,
            on_unknown=call.on_unknown,
            errors="column",
            stop_after=call.stop_after,
            version=call.version,
            replay=call.replay,
            canary=canary,
            retries=call.retries,
            setup=None if call.setup is None else call.setup.call,
        )
    except InvalidOption as error:
        raise InvalidOption(f"{spec.file.name}: [call] {error}") from None


def _session(spec: Spec, spark: SparkSession | None) -> SparkSession:
    if spark is not None:
        return spark
    from intervalq.spark._runtime.session import session  # noqa: PLC0415 - takes a moment

    return session(f"intervalq pipeline {spec.name}")


class _Run:
    def __init__(self, spec: Spec, spark: SparkSession, watch: Watch, stop: threading.Event) -> None:
        self._spec = spec
        self._spark = spark
        self._watch = watch
        self._stop = stop
        self._layout = Layout(spec.output, spark)
        self._tables = Tables(spark, spec, self._layout)
        self._passes: list[Published] = []
        self._restarts = 0

    def run(self) -> Outcome:
        """Do the whole run, or as much as is possible until it is stopped."""
        stage = stage_of(self._spec)
        self._check_schema()
        self._tables.check()
        # Once results of this function and schema are published, the rows that are left may all be unusual
        # ones: they need no trial.
        if self._tables.has("results") and self._layout.published_call() == self._call_text:
            stage = stage_of(self._spec, canary=False)
        self._interval = self._pace()
        with Guard(self._spec, self._layout, self._watch) as guard:
            self._restarts = self._recover(guard)
            if not self._restarts:
                guard.forget_unfit(self._spec.call.schema)
            found = requests(self._spark, self._spec, self._tables)
            to_call, before, same, rejected = tally(found.counts())
            outcome = Outcome(
                name=self._spec.name,
                rows=to_call + before + same + sum(rejected.values()),
                duplicates=same,
                rejected=rejected,
                before=before,
                restarts=self._restarts,
                passes=(),
                audit=None,
                report=None,
                stopped=True,
            )
            self._tell(outcome, to_call)
            if not self._stop.is_set() and (to_call or (rejected and not found.rejects().isEmpty())):
                self._one(guard, found, stage, to_call, outcome)
            if self._stop.is_set():
                return replace(outcome, passes=tuple(self._passes))
        return self._judged(replace(outcome, passes=tuple(self._passes), stopped=False))

    def _check_schema(self) -> None:
        call = f"{self._spec.file.name}: [call] schema = {self._spec.call.schema!r}"
        try:
            given = struct_of(self._spec.call.schema)
        except Exception as error:  # noqa: BLE001 - errors of Spark's parser, and of Connect
            raise InvalidOption(
                f'{call} is not valid DDL such as "status int, body string": {first_line(error)}'
            ) from None
        taken = [
            name for name in given.fieldNames() if name.lower() in {"day", "pass"} or name.startswith("_iq")
        ]
        if taken:
            raise InvalidOption(f"{call} has {', '.join(taken)}, which the output uses: choose other names")
        target, version = self._spec.call.function.target, self._spec.call.version
        described = {"function": target, "schema": given.simpleString(), "version": version}
        self._call_text = json.dumps(described, indent=1)

    def _pace(self) -> float:
        """Seconds between two starts; asks the queue, so that a mismatch is reported before anything runs."""
        try:
            state = seen(self._spec.queue)
        except QueueNotFound:
            if self._spec.interval is None:
                raise
            return self._spec.interval
        if not state.has_pace:
            raise InvalidOption(
                f"{self._spec.file.name}: [queue] {self._spec.queue.name} has only limits, and starts are "
                "audited by a pace: choose a queue that has one, or give rate or interval"
            )
        return state.interval

    def _recover(self, guard: Guard) -> int:
        """Complete passes of earlier runs; returns how many were interrupted, and have to be repeated."""
        interrupted = 0
        for one in list(self._layout.passes()):
            if one.published:
                self._end(guard, one)
            elif one.complete:
                self._watch.note(f"pass {one.id} had been called, but not published: publishing it")
                self._publish(guard, one)
            else:
                self._watch.note(
                    f"pass {one.id} was interrupted: restarting it; completed calls come from the ledger"
                )
                self._layout.remove(one.id)
                interrupted += 1
        return interrupted

    def _tell(self, outcome: Outcome, to_call: int) -> None:
        parts = [f"{outcome.rows:,} rows", f"{outcome.before:,} have results"]
        parts += [f"{count:,} rejected ({name})" for name, count in outcome.rejected.items()]
        if outcome.duplicates:
            parts.append(f"{outcome.duplicates:,} duplicates")
        self._watch.note(f"{', '.join(parts)}: {to_call:,} to call")

    def _one(self, guard: Guard, found: Requests, stage: Transform, to_call: int, outcome: Outcome) -> None:
        """Call the missing rows, and publish them."""
        id_ = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}"
        tasks = self._tasks(to_call)
        called = found.to_call().repartition(tasks).transform(stage)
        nothing = F.lit(None).cast("string")
        called = called.withColumns({REASON: nothing, PRINT: nothing})
        rows = called.unionByName(found.rejects(), allowMissingColumns=True)
        if to_call:
            seconds = to_call * self._interval
            self._watch.note(f"calling in {tasks} tasks: at least {seconds:,.1f} s at the queue's pace")
        try:
            self._call(guard, rows, self._layout.work(id_), to_call)
        except Exception as error:
            if TooManyFailures.__name__ in str(error):
                self._explain(guard, outcome, error)
                guard.forget_errors()  # the next run tries them again
                self._layout.remove(id_)
            raise
        if not self._stop.is_set():
            self._publish(guard, Pass(id_, complete=True, published=False))
            if self._passes[-1].results:
                self._layout.note_call(self._call_text)

    def _explain(self, guard: Guard, outcome: Outcome, error: Exception) -> None:
        """Write on the page why rows failed, and that no more were called."""
        reasons = reasons_kept(self._spec.name, self._spec.store)
        failed = sum(one["rows"] for one in reasons)
        more = {"error": cause(error), "reasons": reasons, "failed": failed, "kept": guard.results()}
        place = write_report(self._tables, self._layout, None, outcome.to_dict() | more)
        self._watch.note(f"why rows failed: {place}")

    def _tasks(self, to_call: int) -> int:
        """The number of Spark tasks that make calls: no more than there are rows."""
        call = self._spec.call
        if call.tasks is not None:
            wanted = call.tasks
        elif call.latency is not None:
            wanted = math.ceil(call.latency / self._interval / call.concurrency)
        else:
            # Spark's default number of partitions; with Connect there is no other way to ask for it.
            wanted = self._spark.range(10_000).select(F.spark_partition_id()).distinct().count()
        return max(1, min(wanted, to_call))

    def _call(self, guard: Guard, rows: DataFrame, path: str, to_call: int) -> None:
        """Run the job in another thread, and supervise it in this one."""
        ended = threading.Event()
        failure: list[BaseException] = []

        def write() -> None:
            try:
                rows.write.mode("overwrite").parquet(path)
            except BaseException as error:  # noqa: BLE001 - raised below
                failure.append(error)
            finally:
                ended.set()

        threading.Thread(target=write, name="intervalq-pipeline", daemon=True).start()
        looks, sample = Looks(to_call), Sample(self._spec.name, self._spec.store)
        speak: Callable[[], None] | None = None
        cancelled = False
        try:
            while not ended.wait(_LOOK):
                if self._stop.is_set() and speak is None:
                    self._watch.note("stopping: calls in flight end, and their results are kept")
                    speak = self._hush()
                with suppress(QueueNotFound, StoreUnavailable):
                    if self._stop.is_set() and not cancelled:
                        guard.cancel()
                        cancelled = True
                    look = looks.add(progress(self._spec.queue, self._spec.name))
                    self._watch.looked(replace(look, reason=sample.at(look.failed)))
        finally:
            self._watch.called()
            if speak is not None:
                speak()
        if failure and not self._stop.is_set():
            raise failure[0]

    def _hush(self) -> Callable[[], None]:
        """Keep Spark from logging stack traces for each ending task; returns a function that undoes it."""
        try:
            context: Any = self._spark.sparkContext
            log = context._jvm.org.apache.logging.log4j.LogManager.getRootLogger()  # noqa: SLF001 - no other way
            before = log.getLevel().toString()
            context.setLogLevel("OFF")
        except Exception:  # noqa: BLE001 - with Connect there is nothing to silence
            return lambda: None
        return lambda: context.setLogLevel(before)

    def _publish(self, guard: Guard, one: Pass) -> None:
        work = self._spark.read.parquet(self._layout.work(one.id))
        self._passes.append(publish(work, self._spec, self._tables, one, self._interval))
        self._layout.mark_published(one.id)
        self._end(guard, one, has_unfit=self._passes[-1].unfit > 0)

    def _end(self, guard: Guard, one: Pass, *, has_unfit: bool = True) -> None:
        """Forget what is published."""
        guard.forget(has_unfit=has_unfit)
        self._layout.remove(one.id)

    def _judged(self, outcome: Outcome) -> Outcome:
        self._watch.note("auditing the log")
        found = judge(self._spark, self._spec, self._tables)
        outcome = replace(outcome, audit=None if found is None else found.to_dict())
        place = write_report(self._tables, self._layout, found, outcome.to_dict())
        return replace(outcome, report=place)
