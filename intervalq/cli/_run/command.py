"""`intervalq run`: its options and their meaning."""

from __future__ import annotations

import re
from pathlib import Path

import click

from intervalq._timing.rates import AUTO
from intervalq.cli._options import (
    BeforeCommand,
    cost_option,
    examples,
    limit_option,
    pace_options,
    store_option,
)
from intervalq.cli._run.session import Request, run_session
from intervalq.cli._run.shells import refuse_scripts
from intervalq.errors import InvalidOption


class RunCommand(BeforeCommand):
    """Shows `{}` in its usage."""

    command_shown = "[-- COMMAND {}]"


@click.command(
    cls=RunCommand,
    epilog=examples(
        "seq 9 | intervalq run --name numbers --interval 200ms -- echo {}",
        "intervalq run jobs.txt --name api --rate 5/s --output results.jsonl",
        "intervalq run jobs.txt --name api --rate 5/s --resume results.jsonl",
        "intervalq run users.jsonl --name api --rate 5/s -- echo {id} {email}",
        "intervalq run jobs.txt --name api --rate 5/s --plain",
    ),
)
@click.argument("jobs", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--name", required=True, help="Name of the queue. Everybody who uses this name shares its pace."
)
@pace_options
@limit_option
@cost_option
@click.option(
    "--shards",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    help="Processes that start jobs. If one dies, the others go on.",
)
@store_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Append results to FILE, one JSON object per job. Default: print them.",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Skip the jobs that succeeded in these results, and append to them unless --output is given.",
)
@click.option(
    "--lookahead",
    metavar="N|all",
    help="Waiting jobs of a shard that may hold a ticket. Default: 16, or fewer if the pace is slow.",
)
@click.option(
    "--tolerance",
    metavar="D",
    help="How late after its slot a job may start. Default: a tenth of the interval, times the burst.",
)
@click.option(
    "--burst", type=click.IntRange(1), metavar="N", help="Jobs that may start at once after an idle time."
)
@click.option(
    "--max-running",
    type=click.IntRange(1),
    metavar="N",
    help="Jobs of the queue that may run at the same time, in all processes together.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    show_default=True,
    help="Further attempts at a job that fails, each after a pause and in its own slot.",
)
@click.option(
    "--plain",
    is_flag=True,
    help="Print what each job wrote when it ends, as it is, instead of a JSON object; see --output.",
)
@click.option(
    "--progress/--no-progress",
    default=None,
    help="Show progress always, or never. Default: unless --json is given or results are printed beside it.",
)
@click.option("--json", "as_json_", is_flag=True, help="Print the final report as a JSON object.")
@click.pass_context
def run(
    ctx: click.Context,
    *,
    jobs: str | None,
    name: str,
    interval: str | None,
    rate: str | None,
    limits: tuple[str, ...],
    costs: tuple[str, ...],
    shards: int,
    store: str | None,
    output: Path | None,
    resume: Path | None,
    lookahead: str | None,
    tolerance: str | None,
    burst: int | None,
    max_running: int | None,
    retries: int,
    plain: bool,
    progress: bool | None,
    as_json_: bool,
    command: tuple[str, ...],
) -> None:
    """Run jobs at the pace of a queue, over several processes.

    JOBS is a file with one job per line. Without it, or with -, jobs come from standard input.

    Each line is a command. With -- COMMAND {}, the line replaces {} in COMMAND instead; a line that is a JSON
    object also fills {name} with its fields. No shell runs in between. Scripts (of sh -c,
    python -c and the like, and what ssh runs) may not contain {}, because they would execute the text of the
    line: write -- sh -c 'echo "$1"' sh {} instead. A line that begins with - may be taken for an option:
    write -- before {} for programs that know it.

    --cost may contain {} and {name}, too: --cost tokens={tokens} takes a field of each line.

    Each finished job writes one line of JSON: job, shard, ticket, due, started, ended (seconds since 1970 on
    the store's clock), exit_code, stdout, stderr, attempt. The run ends with a report of the pacing on
    standard error.

    After Ctrl-C no more jobs start, and running jobs end; a second Ctrl-C kills them. The exit code is 0 if
    all jobs exited with 0, else 1; 2 for wrong use; 130 after Ctrl-C.
    """
    refuse_scripts(command)
    if rate == AUTO:
        raise InvalidOption(
            "--rate auto is not for run, because a command can't say that a server refused it: create the "
            "queue in Python, and run without --rate"
        )
    if limits and interval is None and rate is None:
        raise InvalidOption(
            "--limit needs --interval or --rate here, which space the starts of a run: limits alone let them "
            "begin in bursts"
        )
    request = Request(
        name=name,
        interval=interval,
        rate=rate,
        limits=limits,
        costs=costs,
        store=store,
        shards=shards,
        lookahead=_lookahead(lookahead),
        tolerance=tolerance,
        burst=burst,
        max_running=max_running,
        retries=retries,
        jobs=None if jobs == "-" else jobs,
        command=command,
        output=output,
        resume=resume,
        plain=plain,
        progress=progress,
        as_json=as_json_,
    )
    ctx.exit(run_session(request))


def _lookahead(text: str | None) -> int | None:
    """A number of tickets; 0 means all, None a number that suits the pace."""
    if text is None:
        return None
    if text == "all":
        return 0
    if not re.fullmatch("[0-9]{1,7}", text) or not 1 <= int(text) <= 1_000_000:
        raise InvalidOption(f"--lookahead {text!a} must be a whole number from 1 to 1000000, or all")
    return int(text)
