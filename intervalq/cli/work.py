"""`intervalq work`: runs the workers of a module, in this process or in several."""

from __future__ import annotations

import sys
from collections import Counter
from typing import NoReturn

import anyio
import click

from intervalq._spec import parse
from intervalq.cli import _work_run
from intervalq.cli._options import examples
from intervalq.cli._show import as_json, warn
from intervalq.cli._work_fleet import Fleet


@click.command(
    epilog=examples(
        "intervalq work app:tasks --until-empty", "intervalq work app --processes 2 --until-empty"
    )
)
@click.argument("target", metavar="MODULE[:NAME]")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    metavar="N",
    help="Tasks of each worker that run at a time in a process, unless the worker says itself.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="With more than one, another process begins when one dies.",
)
@click.option("--until-empty", is_flag=True, help="End when the queues have no tasks.")
@click.option(
    "--grace",
    default="30s",
    show_default=True,
    metavar="D",
    help="How long running tasks may go on after the first signal.",
)
@click.option("--json", "as_json_", is_flag=True, help="Make the summary at the end one JSON object.")
def work(
    *, target: str, concurrency: int, processes: int, until_empty: bool, grace: str, as_json_: bool
) -> None:
    """Run the workers of a module on their tasks.

    MODULE is imported, from the working directory or from where packages are; NAME is the Tasks in it,
    "tasks" if it isn't given. It knows its store by itself, or by INTERVALQ_STORE.

    SIGTERM, or Ctrl-C, begins no more tasks and lets those that run end; what has not ended after --grace is
    cancelled and given back. A second one ends them at once. Failures are logged on standard error, and what
    was done is said at the end. The exit code is 0, also after a signal; 1 if the store or the module can't
    be used, 2 for wrong use, 128 and the signal's number after a second one.
    """
    seconds = parse.duration(grace, what="grace") / 1e6
    plan = _work_run.Plan(
        target=target, concurrency=concurrency, until_empty=until_empty, grace=seconds, alone=processes == 1
    )
    if processes > 1:
        fleet = Fleet(plan, processes)
        code = anyio.run(fleet.run)
        _end(fleet.counts, code, as_json_=as_json_)
    handle = _work_run.load(target)
    _work_run.log_to_stderr(process=False)
    code = anyio.run(_work_run.run, handle, plan)
    _end(handle.counts, code, as_json_=as_json_)


def _end(counts: Counter[str], code: int, *, as_json_: bool) -> NoReturn:
    if as_json_:
        names = ("done", "failed", "dead", "given back", "lost")
        sys.stderr.write(as_json({name.replace(" ", "_"): counts[name] for name in names}) + "\n")
    else:
        warn(_work_run.summary(counts))
    _work_run.end(code)
