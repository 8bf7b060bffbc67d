"""`intervalq top`: a live view of queues."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import click
from rich.live import Live
from rich.table import Table

from intervalq._show import can_redraw, console, print_table
from intervalq._watch.reader import Reader
from intervalq.cli._admin.command import look
from intervalq.cli._admin.states import table
from intervalq.cli._options import examples, store_option
from intervalq.errors import InvalidOption, MissingExtra
from intervalq.store import open_store

F = TypeVar("F", bound=Callable[..., Any])


def every_option(function: F) -> F:
    """`--every`."""
    return click.option(
        "--every",
        type=click.FloatRange(0.1, 3600),
        default=1.0,
        show_default=True,
        metavar="SECONDS",
        help="Time between two updates.",
    )(function)


def shows_once(every: float, *, once: bool) -> bool:
    """Whether to show a table only once: because that was asked for, or because the output can't be redrawn.

    Raises:
        InvalidOption: `every` is not a number.
    """
    if math.isnan(every):  # no range excludes it
        raise InvalidOption("--every must be a number of seconds, not nan")
    return once or not can_redraw(sys.stdout)


@click.command(epilog=examples("intervalq top", "intervalq top api --every 0.2", "intervalq top --plain"))
@click.argument("name", required=False)
@every_option
@click.option("--once", is_flag=True, help="Show the queues once and exit.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show gaps, lateness, unused slots and refusals by this log, which IntervalQueue(log=...) writes. "
    "May be repeated.",
)
@click.option("--plain", is_flag=True, help="Show only a table of queues, without keys to press.")
@store_option
def top(
    name: str | None, *, every: float, once: bool, logs: tuple[Path, ...], plain: bool, store: str | None
) -> None:
    """Show queues, tasks, schedules, workers and actions live.

    1 to 5 or the arrows choose a view, and q or Ctrl-C ends it. For the queue under the cursor, it shows the
    rate that was reached and what it waits for. p pauses or resumes a queue or schedule, and f runs a
    schedule now; both ask first. w sets the weight of a key. Enter shows the tasks of a queue, to put them
    back, cancel, move or delete them.

    For each queue, this includes the 20 keys with the most outstanding tickets and the number of other keys,
    how much of each limit is left, and which limit binds. With --plain, or without a keyboard, it is one
    table of queues. Without a terminal, or on one that can't redraw (TERM=dumb), the queues are shown once.
    """
    if shows_once(every, once=once):
        print_table(table(anyio.run(look, store, name)))
    elif plain or not (sys.stdin.isatty() and sys.stderr.isatty()):

        async def again() -> Table:
            return table(await look(store, name))

        anyio.run(live_table, again, every)
    else:
        anyio.run(_interactive, store, name, every, logs)


async def _interactive(store: str | None, name: str | None, every: float, logs: tuple[Path, ...]) -> None:
    try:
        from intervalq.cli._top.app import Top  # noqa: PLC0415 - it takes a while, and may be missing
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtra("intervalq top without --plain", "cli") from missing
    reader = Reader.opened(store, logs)
    try:
        await reader.look(name)  # what is wrong from the start is an error, as in other commands
        app = Top(reader, open_store(store).url, name=name, every=every)
        await _until_signalled(app.run_async, app.exit)  # restores the terminal
    finally:
        with anyio.CancelScope(shield=True):
            await reader.aclose()


async def _until_signalled(action: Callable[[], Awaitable[object]], stop: Callable[[], object]) -> None:
    """Run an action to its end; a signal stops it."""
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    stop()

        group.start_soon(listen)
        await action()
        group.cancel_scope.cancel()


async def live_table(look: Callable[[], Awaitable[Table]], every: float) -> None:
    """Show a table again and again, until a signal."""

    async def show() -> None:
        with Live(console=console(), auto_refresh=False, screen=True) as live:
            while True:
                live.update(await look(), refresh=True)
                await anyio.sleep(every)

    scope = anyio.CancelScope()
    with scope:
        await _until_signalled(show, scope.cancel)
