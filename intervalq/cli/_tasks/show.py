"""Tasks, their queues and sessions in forms for people and for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from intervalq._show import bare_table, cell, escaped, seconds
from intervalq._watch.working import process, report, reported
from intervalq.tasks import Outcome, QueueStats, Task, UnreadableValue, WorkerSession
from intervalq.tasks._spec.outcome import is_dead
from intervalq.tasks.rules import COUNTED

if TYPE_CHECKING:
    from rich.table import Table

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


def value_of(task: Task | Outcome) -> Any:  # noqa: ANN401 - any JSON value
    """A task's value; the stored text if a codec wrote it or it is damaged."""
    try:
        return task.value
    except UnreadableValue:
        return task._row.json.strip('"')


def checkpoint_of(task: Task) -> Any:  # noqa: ANN401 - any JSON value
    """A task's checkpoint; None also if another codec wrote it or it is damaged."""
    try:
        return task.checkpoint
    except UnreadableValue:
        return None


def condition(task: Task, now: float) -> str:
    """The present state of a task in words, by the clock of this machine."""
    row = task._row
    if row.cancelled:
        return "cancelled, ending"
    if row.is_held(round(now * 1e6)):
        return "claimed"
    if is_dead(row.queue):
        return "dead"
    if row.waiting:
        return f"waiting for {many(row.awaits)}" if row.awaits else "waiting for its key"
    if task.at > now:
        return f"in {seconds(task.at - now)}"
    return "ready"


def task_table(tasks: Sequence[Task]) -> Table:
    """Tasks, one per line."""
    made = table_of("id", "queue", "key", "priority", "state", "attempt", "progress", "value")
    now = time.time()
    for task in tasks:
        made.add_row(
            cell(task.id),
            cell(task.queue),
            cell(task.key or ""),
            str(task.priority or ""),
            condition(task, now),
            str(task.attempt),
            cell(report(task), WIDEST // 2),
            cell(json.dumps(value_of(task)), WIDEST),
        )
    return made


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
    """Queues, one per line."""
    made = table_of("queue", "tasks", "ready", "claimed", "future", "inbox", "most claims")
    for queue in queues:
        figures = (queue.size, queue.ready, queue.claimed, queue.future, queue.inbox, queue.most_claims)
        made.add_row(cell(queue.name), *(_about(figure, exact=queue.exact) for figure in figures))
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


def facts(task: Task, sessions: Mapping[str, WorkerSession]) -> list[tuple[str, str]]:
    """One task as names and values."""
    row, now = task._row, time.time()
    rows = [
        ("task", escaped(task.id)),
        ("queue", escaped(task.queue)),
        ("state", condition(task, now)),
        ("version", str(task.version)),
        ("attempt", f"{task.attempt} ({task.claims} claims)"),
    ]
    if row.at > row.created and not is_dead(row.queue):
        rows.insert(4, ("not before", moment(task.at)))
    if not row.is_plain:
        rows += [("created", moment(task.created)), ("modified", moment(task.modified))]
    if task.key is not None:
        rows.insert(2, ("key", escaped(task.key)))
    if task.priority:
        rows.append(("priority", str(task.priority)))
    if row.keep_for:
        rows.append(("kept for", seconds(row.keep_for / 1e6)))
    if row.dedupe is not None:
        rows.append(("dedupe key", escaped(row.dedupe)))
    if row.follow_up:
        rows.append(("follow-up", escaped(row.follow_up)))
    if task.claimant is not None:
        until = "" if row.until is None else f", until {moment(row.until / 1e6)}"
        rows.append(("claimed by", f"{holder(task.claimant, sessions)}{until}"))
    if said := report(task):
        rows += [("progress" if not index else "", escaped(line)) for index, line in _lines(said)]
    if (checkpoint := checkpoint_of(task)) is not None:
        rows.append(("checkpoint", json.dumps(checkpoint)))
    if task.error:
        rows += [("error" if not index else "", escaped(line)) for index, line in _lines(task.error)]
    rows += [
        ("value" if not index else "", line) for index, line in _lines(json.dumps(value_of(task), indent=2))
    ]
    return rows


def holder(session: str, sessions: Mapping[str, WorkerSession]) -> str:
    """The process that holds a claim."""
    known = sessions.get(session)
    return f"session {escaped(session)}" + ("" if known is None else f" ({process(known)})")


def moment(at: float) -> str:
    """A time in ISO form, for people and programs."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError):  # outside of the calendar's range
        return f"{at:.0f} seconds after 1970"


def many(count: int, what: str = "task") -> str:
    """A count with its noun, in the singular or plural."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lines(text: str) -> Iterable[tuple[int, str]]:
    return enumerate(text.split("\n"))


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
