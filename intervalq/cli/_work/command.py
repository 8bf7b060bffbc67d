"""`intervalq work`: runs the workers of a module, in this process or in several."""

from __future__ import annotations

import sys
from collections import Counter
from typing import NoReturn

import anyio
import click

from intervalq._show import as_json, warn
from intervalq._spec import parse
from intervalq.cli._options import examples
from intervalq.cli._work import worker as _work_run
from intervalq.cli._work.supervisor import Fleet


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
    help="Tasks of each worker that run at the same time in a process, unless the worker sets it.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Worker processes. With more than one, a process that dies is replaced.",
)
@click.option("--until-empty", is_flag=True, help="Exit when the queues have no tasks.")
@click.option(
    "--grace",
    default="30s",
    show_default=True,
    metavar="D",
    help="How long running tasks may continue after the first signal.",
)
@click.option("--json", "as_json_", is_flag=True, help="Print the final summary as a JSON object.")
def work(
    *, target: str, concurrency: int, processes: int, until_empty: bool, grace: str, as_json_: bool
) -> None:
    """Run the workers of a module.

    MODULE is imported from the working directory or from the installed packages. NAME is the Tasks object in
    it; the default is "tasks". The store comes from the module's Tasks(...) or from INTERVALQ_STORE.

    After SIGTERM or Ctrl-C no further task starts, and running tasks may end. Those that still run after
    --grace are cancelled and given back. A second signal ends them at once. Failures are logged on standard
    error, and a summary is printed at the end. The exit code is 0, even after a signal; 1 if the store or the
    module can't be used; 2 for wrong use; 128 plus the signal's number after a second signal.
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
    _end(handle._outcomes, code, as_json_=as_json_)


def _end(counts: Counter[str], code: int, *, as_json_: bool) -> NoReturn:
    if as_json_:
        names = ("done", "failed", "dead", "given back", "snoozed", "cancelled", "lost")
        sys.stderr.write(as_json({name.replace(" ", "_"): counts[name] for name in names}) + "\n")
    else:
        warn(_work_run.summary(counts))
    _work_run.end(code)
