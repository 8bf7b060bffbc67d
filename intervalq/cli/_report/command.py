"""`intervalq report`: its options and their meaning."""

from __future__ import annotations

from pathlib import Path

import click

from intervalq._page.html import save
from intervalq._show import warn
from intervalq._spec import parse
from intervalq._watch.log import read
from intervalq.cli._options import examples
from intervalq.cli._report.figures import figures
from intervalq.cli._report.page import charts_of, page
from intervalq.errors import InvalidOption

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    epilog=examples(
        "intervalq report results.jsonl",
        "intervalq report results.jsonl --interval 200ms --output results.html --png charts",
    )
)
@click.argument("logs", nargs=-1, required=True, type=_FILE, metavar="LOG...")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    metavar="FILE",
    help="The page to write.",
)
@click.option(
    "--png",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Also write each chart as a PNG file into FOLDER.",
)
@click.option(
    "--interval",
    metavar="D",
    help="The interval of results of `intervalq run`, which don't have it. Default: guessed from the slots.",
)
@click.option(
    "--tolerance", metavar="D", help="Likewise, how late a job may start. Default: a tenth of the interval."
)
def report(
    *, logs: tuple[Path, ...], output: Path, png: Path | None, interval: str | None, tolerance: str | None
) -> None:
    """Write a page about the starts in execution logs.

    LOG is a file that IntervalQueue(log=...) or intervalq run --output has written; several are taken
    together. The page is one HTML file that loads nothing: starts by shard, gaps against the promise,
    lateness, used and unused slots, limits. It needs the extra `report`.
    """
    queues = read(
        logs,
        interval=None if interval is None else parse.interval(interval) / 1e6,
        tolerance=None if tolerance is None else parse.duration(tolerance, what="tolerance") / 1e6,
    )
    if not queues:
        raise InvalidOption(f"{', '.join(map(str, logs))}: there are no starts in these logs yet")
    found = []
    for number, queue in enumerate(queues, 1):
        made = figures(queue)
        found.append((queue, made, charts_of(queue, made, number, png=png is not None)))
        if made.short:
            warn(f"queue {queue.name!r}: gaps shorter than promised: {made.short}")
    save(output, page(found).encode())
    click.echo(output)
    if png is not None:
        png.mkdir(parents=True, exist_ok=True)
        for _, _, charts in found:
            for chart in charts:
                save(png / f"{chart.name}.png", chart.png)
                click.echo(png / f"{chart.name}.png")
