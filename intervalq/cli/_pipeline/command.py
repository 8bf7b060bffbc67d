"""`intervalq pipeline`: runs the pipeline that a spec describes, and audits its log."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

import click

from intervalq._show import as_json, can_redraw
from intervalq.cli._app import Commands, Failed
from intervalq.cli._options import examples, json_option
from intervalq.cli._pipeline.show import Bar, Lines, show, verdict
from intervalq.errors import MissingExtra
from intervalq.pipeline import Spec, read_spec
from intervalq.pipeline._watch import judged

R = TypeVar("R")


class PipelineCommands(Commands):
    """See `intervalq pipeline --help`."""

    known: ClassVar[dict[str, str]] = {"run": "_pipeline.command:run", "audit": "_pipeline.command:audit"}


@click.group(cls=PipelineCommands, epilog=examples("intervalq pipeline run visits.toml --check"))
def pipeline() -> None:
    """Call an API for each row of a data set, on Spark."""


@click.command(epilog=examples("intervalq pipeline run visits.toml"))
@click.argument("spec", type=click.Path(exists=True, dir_okay=False))
@click.option("--check", is_flag=True, help="Only check SPEC, and start nothing.")
@json_option
def run(spec: str, *, check: bool, as_json_: bool) -> None:
    """Call every row that has no result yet.

    SPEC is a TOML file with the tables [pipeline] name, output; [input] path, format, key; [input.require]
    NAME = "SQL condition"; [call] function = "module:name", schema; [queue] rate or interval, store. It is
    checked as a whole before anything starts.

    The output folder gets results/, rejects/ and log/ (Parquet, by day and pass), report.html and
    report.json. A run may be killed at any moment: the same command continues with what is missing. After
    Ctrl-C, calls in flight end; a second Ctrl-C ends at once.

    The exit code is 0 if every row has a result and the audit found no violation; 1 if rows were rejected or
    failed, if there are violations, or if Spark failed; 2 for wrong use; 130 after Ctrl-C.
    """
    given = read_spec(spec)
    module = _module()
    if check:
        module.stage_of(given)
        click.echo(as_json({"ok": True}) if as_json_ else f"{given.file.name} is fine")
        return
    watch = Bar() if can_redraw(sys.stderr) else Lines()
    with _spark(given, watch.note) as session, _signals() as (stop, code):
        outcome = _explained(lambda: module.run(given, spark=session, watch=watch, stop=stop))
    if as_json_:
        click.echo(as_json(outcome.to_dict()))
    else:
        show(outcome, spec)
    sys.exit(code[0] if outcome.stopped else int(not outcome.ok))


@click.command(epilog=examples("intervalq pipeline audit visits.toml"))
@click.argument("spec", type=click.Path(exists=True, dir_okay=False))
@json_option
def audit(spec: str, *, as_json_: bool) -> None:
    """Audit the log of all runs again.

    Writes report.html and report.json. The exit code is 1 if there are violations.
    """
    given = read_spec(spec)
    module = _module()
    with _spark(given, Lines().note) as session:
        found, page = _explained(lambda: module.audit(given, spark=session))
    if found is None:
        raise Failed(f"pipeline {given.name} has no log yet: run it first")
    content = found.to_dict()
    if as_json_:
        click.echo(as_json({**judged(content), "report": page}))
    else:
        found.show()
        verdict(content, page)
    sys.exit(int(not found.ok))


def _module() -> Any:  # noqa: ANN401 - a module
    """Import the module that needs Spark."""
    try:
        from intervalq.pipeline import _run  # noqa: PLC0415 - an extra
    except ImportError as missing:
        if (missing.name or "").partition(".")[0] in {"pyspark", "pyarrow", "pandas"}:
            raise MissingExtra("a pipeline", "spark") from missing
        raise
    return _run


@contextmanager
def _spark(spec: Spec, note: Callable[[str], None]) -> Iterator[Any]:
    """The session of this process, which is left open, or a new one, which is stopped at the end."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from intervalq.spark._runtime.session import session  # noqa: PLC0415

    there = SparkSession.getActiveSession()
    if there is None:
        note("starting Spark")
    made = session(f"intervalq pipeline {spec.name}")
    try:
        yield made
    finally:
        if there is None:
            made.stop()


@contextmanager
def _signals() -> Iterator[tuple[threading.Event, list[int]]]:
    """Let SIGINT and SIGTERM request an end, instead of Spark's handler, which kills calls in flight."""
    stop, code = threading.Event(), [130]

    def heed(number: int, _frame: object) -> None:
        code[0] = 128 + number
        stop.set()
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop, code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _explained(work: Callable[[], R]) -> R:
    """Run work on Spark; report an error of Spark in one line."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    from intervalq.spark._compat import cause  # noqa: PLC0415 - likewise

    kinds: tuple[type[Exception], ...] = (PySparkException,)
    with suppress(ImportError):  # a client for Spark Connect alone doesn't include it
        from py4j.protocol import Py4JError  # type: ignore[import-untyped] # noqa: PLC0415

        kinds += (Py4JError,)
    try:
        return work()
    except kinds as error:
        raise Failed(
            f"the Spark job failed: {cause(error)}; the calls made so far are recorded: fix the "
            "cause, and run the same command to continue"
        ) from error
