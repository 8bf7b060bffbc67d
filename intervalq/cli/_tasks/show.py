"""Tasks, their queues and sessions in forms for people and for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from intervalq._show import bare_table, cell, fitting, seconds
from intervalq._watch.task import checkpoint_of, condition, value_of
from intervalq._watch.working import process, report, reported
from intervalq.tasks import QueueStats, Task, WorkerSession
from intervalq.tasks.rules import COUNTED

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WIDEST: Final = 60
"""The maximum number of characters of a value or an error in a table; `show` prints all of it."""


def fields(task: Task) -> dict[str, Any]:
    """The fields of a task for JSON output."""
    row = task._row
    at, created, modified = (None, None, None) if row.is_plain else (task.at, task.created, task.modified)
    return {
        "id": task.id,
        "version": task.version,
        "queue": task.queue,
        "key": task.key,
        "waiting": row.waiting,
        "awaits": row.awaits,
        "follow_up": row.follow_up or None,
        "at": at,
        "priority": task.priority,
        "value": value_of(task),
        "claimant": task.claimant,
        "claimed_until": None if row.until is None else row.until / 1e6,
        "cancelled": row.cancelled,
        "progress": reported(task).done,
        "note": reported(task).note,
        "checkpoint": checkpoint_of(task),
        "claims": task.claims,
        "attempt": task.attempt,
        "error": task.error,
        "created": created,
        "modified": modified,
        "dedupe_key": row.dedupe,
        "keep": row.keep_for / 1e6 or None,
    }


def task_table(tasks: Sequence[Task]) -> Table:
    """Tasks, one per line, with the columns for which there is room."""
    now = time.time()
    rows: list[dict[str, str | Text]] = [
        {
            "id": cell(task.id),
            "queue": cell(task.queue),
            "key": cell(task.key or ""),
            "priority": str(task.priority or ""),
            "state": condition(task, now),
            "attempt": str(task.attempt),
            "progress": cell(report(task), WIDEST // 2),
            "value": cell(json.dumps(value_of(task)), WIDEST),
        }
        for task in tasks
    ]
    less = ("priority", "progress", "key", "attempt", "queue", "value")
    return fitted(rows, less, {"value": 10, "progress": 10})


def dead_table(tasks: Sequence[Task]) -> Table:
    """Dead-letter tasks and their errors, one per line."""
    made = table_of("id", "queue", "attempts", "died", "error")
    now = time.time()
    for task in tasks:
        made.add_row(
            cell(task.id),
            cell(task.queue),
            str(task.attempt),
            f"{seconds(max(0.0, now - task.modified))} ago",
            cell(task.error, WIDEST),
        )
    return made


def queue_table(queues: Sequence[QueueStats]) -> Table:
    """Queues, one per line, with the columns for which there is room."""
    names = ("tasks", "ready", "claimed", "future", "inbox", "most claims")
    rows = [
        {"queue": cell(queue.name)}
        | {
            name: _about(figure, exact=queue.exact)
            for name, figure in zip(
                names,
                (queue.size, queue.ready, queue.claimed, queue.future, queue.inbox, queue.most_claims),
                strict=True,
            )
        }
        for queue in queues
    ]
    return fitted(rows, ("most claims", "inbox", "future", "claimed", "ready"), {})


def fitted(rows: Sequence[Mapping[str, str | Text]], less: Sequence[str], least: Mapping[str, int]) -> Table:
    """A table of rows with the same columns, as far as there is room: see `fitting`."""
    columns = fitting(rows[0] if rows else (), rows, less, least)
    made = table_of(*columns)
    for row in rows:
        made.add_row(*(row[name] for name in columns))
    return made


def _about(figure: int, *, exact: bool) -> str:
    """A number, marked if it is an estimate."""
    return str(figure) if exact or figure <= COUNTED else f"~{figure}"


def session_table(sessions: Sequence[WorkerSession]) -> Table:
    """Sessions, one per line."""
    made = table_of("session", "process", "consumer", "started", "last heartbeat", "lapses after")
    now = time.time()
    for session in sessions:
        made.add_row(
            cell(session.id),
            cell(process(session)),
            cell(session.consumer or "-"),
            f"{seconds(max(0.0, now - session.started))} ago",
            f"{seconds(max(0.0, now - session.beaten))} ago",
            seconds(session.expiry),
        )
    return made


def table_of(*columns: str) -> Table:
    """An empty table with these columns."""
    made = bare_table()
    figures = {"tasks", "ready", "claimed", "future", "inbox", "most claims"}
    figures |= {"attempt", "attempts", "priority"}
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in figures else "left",
            no_wrap=column not in {"value", "error", "note", "result or error"},  # these are cut to fit
        )
    return made
