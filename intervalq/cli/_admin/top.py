"""`intervalq top`: a live view of queues."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import click
from rich.live import Live
from rich.table import Table

from intervalq._show import can_redraw, console, print_table
from intervalq.cli._admin.command import inspect_all
from intervalq.cli._admin.states import table
from intervalq.cli._options import examples, store_option
from intervalq.errors import InvalidOption

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
    """Whether to show a table once: as was asked for, or because it can't be drawn again where it is shown.

    Raises:
        InvalidOption: `every` is no number.
    """
    if math.isnan(every):  # no range excludes it
        raise InvalidOption("--every must be a number of seconds, not nan")
    return once or not can_redraw(sys.stdout)


@click.command(epilog=examples("intervalq top", "intervalq top api --every 0.2"))
@click.argument("name", required=False)
@every_option
@click.option("--once", is_flag=True, help="Show the queues once and exit.")
@store_option
def top(name: str | None, *, every: float, once: bool, store: str | None) -> None:
    """Show queues live, until Ctrl-C.

    For each queue, this includes the 20 keys with the most outstanding tickets and the number of other keys,
    how much of each limit is left, and which limit binds. Without a terminal, or on one that can't redraw
    (TERM=dumb), the queues are shown once.
    """
    if shows_once(every, once=once):
        print_table(table(anyio.run(inspect_all, store, name)))
        return

    async def look() -> Table:
        return table(await inspect_all(store, name))

    anyio.run(live_table, look, every)


async def live_table(look: Callable[[], Awaitable[Table]], every: float) -> None:
    """Show a table again and again, until a signal."""
    async with anyio.create_task_group() as group:

        async def until_signalled() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    group.cancel_scope.cancel()

        group.start_soon(until_signalled)
        with Live(console=console(), auto_refresh=False, screen=True) as live:
            while True:
                live.update(await look(), refresh=True)
                await anyio.sleep(every)
