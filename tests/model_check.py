"""Checks the protocol exhaustively, in scopes of any size: see `model`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from model.parts import NO_BUGS
from model.planted import PLANTED
from model.scope import SCOPES, Scope
from model.search import Result, search
from model.shown import story

NUMBERS = (
    "shards", "tickets", "records", "ahead", "interval", "tolerance", "burst", "max_running", "lease", "blur",
    "crashes", "copies", "holds", "reclaims", "changes", "steps", "failovers", "drops",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Search the requested scopes; the exit code is 1 if a promise is broken in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scope", action="append", choices=SCOPES, help="default: all of them")
    parser.add_argument("--bug", choices=PLANTED, help="plant this bug, in the scope that finds it")
    parser.add_argument("--most", type=int, default=0, help="stop after so many states")
    for name in NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="instead of the scope's own")
    options = parser.parse_args(arguments)
    changes = {name: value for name in NUMBERS if (value := getattr(options, name)) is not None}
    planted = PLANTED[options.bug] if options.bug else None
    names = options.scope or ([planted.scope] if planted else list(SCOPES))
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    results = []
    for name in names:
        scope = replace(SCOPES[name], **changes)
        if planted is None:
            results.append(_watched(scope, console, options.most))
        else:
            with planted.rules():
                results.append(_watched(scope, console, options.most, bug=options.bug))
    console.print(_table(results))
    for result in results:
        for line in story(result):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return int(any(result.broken for result in results))


def _watched(scope: Scope, console: Console, most: int, *, bug: str = "") -> Result:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(scope.name)

        def show(states: int, transitions: int, depth: int) -> None:
            text = f"{scope.name}: {states:,} states, {transitions:,} transitions, depth {depth}"
            progress.update(task, description=text)

        return search(scope, PLANTED[bug].shard if bug else NO_BUGS, progress=show, most=most)


def _table(results: list[Result]) -> Table:
    table = Table("scope", "bound")
    for name in ("states", "transitions", "starts", "depth", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("outcome")
    for result in results:
        kept = "all promises kept" if result.complete else "stopped"
        table.add_row(
            result.scope.name,
            result.scope.about,
            f"{result.states:,}",
            f"{result.transitions:,}",
            f"{result.begins:,}",
            str(result.depth),
            f"{result.seconds:.1f}",
            result.broken or kept,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
