"""`intervalq tasks top`: a live view of the tasks that are being worked on, and how far they are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from intervalq._show import as_json, cell, console, fitting, print_table, seconds
from intervalq._watch.reader import begun
from intervalq._watch.working import process, reported
from intervalq.cli._admin.top import every_option, live_table, shows_once
from intervalq.cli._options import examples, json_option
from intervalq.cli._tasks.command import none_found, on_tasks, tasks_store_option
from intervalq.cli._tasks.show import WIDEST, fields, table_of
from intervalq.errors import short
from intervalq.tasks import Task, Tasks, WorkerSession
from intervalq.tasks._claim.values import queue_name

_BAR: Final = 10
"""Characters of a bar."""

_COLUMNS: Final = ("id", "queue", "key", "attempt", "process", "changed", "progress", "note")
_LESS: Final = ("process", "attempt", "key", "changed")
"""The columns that are left out where there is no room for all, in this order."""
_NOTE: Final = 20
"""Characters of notes that are shown before other columns are."""

Running = tuple[list[Task], dict[str, WorkerSession]]


@click.command(epilog=examples("intervalq tasks top", "intervalq tasks top reports --once"))
@click.argument("queue", required=False)
@every_option
@click.option("--once", is_flag=True, help="Show the tasks once and exit.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most N tasks of each worker process.",
)
@tasks_store_option
@json_option
def top(
    queue: str | None, *, every: float, once: bool, limit: int, store: str | None, as_json_: bool
) -> None:
    """Show the tasks that are being worked on, until Ctrl-C.

    For each: how far it is and its worker's note, as reported by `in_progress`, the process that works on it,
    and the time since its last report. Those with the most progress come last. With --json, without a
    terminal, or on one that can't redraw (TERM=dumb), the tasks are printed once. Not on NATS, where only
    workers know what they work on.
    """
    if queue is not None:
        queue_name(queue)

    async def look(handle: Tasks) -> Table:
        return running_table(*await running(handle, queue, limit), width=console().width)

    if as_json_:
        for task in on_tasks(store, lambda handle: running(handle, queue, limit))[0]:
            click.echo(as_json(fields(task)))
    elif shows_once(every, once=once):
        found, sessions = on_tasks(store, lambda handle: running(handle, queue, limit))
        if found:
            print_table(running_table(found, sessions, console().width))
        else:
            click.echo(none_found("running tasks" + (f" of queue {short(queue)}" if queue else ""), store))
    else:
        on_tasks(store, lambda handle: live_table(lambda: look(handle), every))


async def running(handle: Tasks, queue: str | None, limit: int) -> Running:
    """The tasks that have begun, and the sessions, by id."""
    found, sessions = await begun(handle, limit)
    found = [task for task in found if queue in {None, task.queue}]
    found.sort(key=lambda task: (reported(task).done or 0.0, task.queue, task.id))
    return found, sessions


def running_table(tasks: Sequence[Task], sessions: Mapping[str, WorkerSession], width: int) -> Table:
    """Running tasks, one per line, with the columns for which there is room."""
    now = time.time()
    rows: list[dict[str, str | Text]] = []
    for task in tasks:
        holder = sessions.get(task.claimant or "")
        done, note, _ = reported(task)
        rows.append(
            {
                "id": cell(task.id),
                "queue": cell(task.queue),
                "key": cell(task.key or ""),
                "attempt": str(task.attempt),
                "process": cell("-" if holder is None else process(holder)),
                "changed": "-" if task._row.is_plain else f"{seconds(max(0.0, now - task.modified))} ago",
                "progress": bar(done),
                "note": cell(note, WIDEST),
            }
        )
    columns = fitting(_COLUMNS, rows, _LESS, {"note": _NOTE}, width)
    made = table_of(*columns)
    for row in rows:
        made.add_row(*(row[name] for name in columns))
    return made


def bar(done: float | None) -> str:
    """A fraction as a bar and a percentage; empty: unknown."""
    if done is None:
        return ""
    full = int(done * _BAR)
    return f"{'█' * full}{'░' * (_BAR - full)} {int(done * 100):3d}%"
