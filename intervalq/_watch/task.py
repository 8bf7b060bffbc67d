"""A task in words: its state, who has claimed it, its attempts and its value."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from intervalq._show import escaped, seconds
from intervalq._watch.working import process, report
from intervalq.tasks import FailedAttempt, Outcome, Task, UnreadableValue, WorkerSession
from intervalq.tasks._claim.values import depth
from intervalq.tasks._spec.outcome import is_dead

_MAX_INDENTED: Final = 8_192
"""The maximum size of a value that is shown in several lines, in bytes."""
_MAX_NAMED: Final = 10
_MAX_DEPTH: Final = 30
"""The deepest nesting that is indented: each line of a deeper value would mostly be spaces."""


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


def facts(task: Task, sessions: Mapping[str, WorkerSession], *, value: bool = True) -> list[tuple[str, str]]:
    """One task as names and values. `value`: whether it was read with its value."""
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
        rows.append(("checkpoint", escaped(json.dumps(checkpoint))))
    if task.error:
        rows += [("error" if not index else "", escaped(line)) for index, line in _lines(task.error)]
    return [*rows, *value_lines(task)] if value else rows


def value_lines(task: Task) -> list[tuple[str, str]]:
    """The value of a task as names and values; if it is long or deep, the stored text."""
    written = task._row.json
    is_plain = len(written) <= _MAX_INDENTED and depth(written) <= _MAX_DEPTH
    lines = _lines(json.dumps(value_of(task), indent=2) if is_plain else written)
    return [("value" if not index else "", escaped(line)) for index, line in lines]


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


def named(ids: Sequence[str]) -> str:
    """Tasks by their ids, of which at most ten are shown."""
    more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
    return f"task{'' if len(ids) == 1 else 's'} {', '.join(ids[:_MAX_NAMED])}{more}"


def history(errors: Sequence[FailedAttempt]) -> list[tuple[str, str]]:
    """Failed attempts as names and values: when each failed, and why."""
    rows: list[tuple[str, str]] = []
    for error in errors:
        rows.append(
            (f"attempt {error.attempt}", "failed" if error.at is None else f"failed {moment(error.at)}")
        )
        rows += [("", escaped(line)) for line in error.error.split("\n")]
    return rows


def _lines(text: str) -> Iterable[tuple[int, str]]:
    return enumerate(text.split("\n"))
