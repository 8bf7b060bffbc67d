"""Queues, tasks, schedules and workers as rows, for `top` and the page of a service. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from intervalq import QueueState
from intervalq._observe.actions import Action
from intervalq._show import escaped, seconds
from intervalq._watch.follow import Gaps, Logs
from intervalq._watch.rates import Point, Rates
from intervalq._watch.reader import MAX_RECORDS, Looked
from intervalq._watch.task import condition as condition_of
from intervalq._watch.task import facts as facts_of
from intervalq._watch.task import history
from intervalq._watch.words import MAX_KEYS, condition, counted, facts, folded, possible, rate
from intervalq._watch.working import process, report
from intervalq.schedules import ScheduleInfo
from intervalq.schedules._times.plan import MAX_TIMES
from intervalq.tasks import QueueStats, Task, WorkerSession
from intervalq.tasks._handle.outcome import failed_attempts

QUEUES: Final = ("queue", "state", "reached", "possible", "waiting", "running", "left")
TASKS: Final = ("queue", "tasks", "ready", "claimed", "future", "behind a key", "most claims")
SCHEDULES: Final = ("schedule", "state", "next", "last", "missed", "occurs", "does")
WORKERS: Final = ("process", "tasks", "last heartbeat", "started", "working on")
ACTIONS: Final = ("when", "who", "what", "on", "result")
TASKS_OF: Final = ("task", "state", "key", "attempts", "last error")
NUMBERS: Final = {"reached", "possible", "waiting", "running", "attempts", *TASKS[1:]}
"""Columns that are aligned at the right."""

_NAMED: Final = 3


class Row(NamedTuple):
    """A line of a view."""

    key: str
    """Identifies the row: no other row of the view has the same key."""
    cells: tuple[str, ...]
    facts: Sequence[tuple[str, str]] = ()
    """Further facts, as names and values."""
    subject: QueueState | ScheduleInfo | None = None
    """The queue or schedule of the row, if it can be paused."""
    points: Sequence[Point] = ()
    """The rates of a queue, oldest first."""
    gaps: Gaps | None = None
    """The gaps between its last starts; None: no log has them."""


def queue_rows(looked: Looked, rates: Rates, logs: Logs) -> list[Row]:
    """Queues, each with up to 20 of its keys, and what logs say of their last starts."""
    rows, totals = [], defaultdict[str, float](float)
    for state in looked.states:
        name, colon, _ = state.name.partition(":")
        totals[name] += (rates.now(state.name) or 0.0) if colon else 0.0
    for state, more in folded(looked.states, MAX_KEYS):
        left = ", ".join(f"{each.left} of {escaped(each.limit)}" for each in state.limits)
        running = "-" if state.running is None else f"{state.running}/{state.max_running}"
        cells = (
            escaped(state.name), condition(state), rate(rates.now(state.name)), rate(possible(state)),
            str(state.outstanding), running, left or "-",
        )  # fmt: skip
        seen = logs.seen(state.name)
        points = rates.points(state.name, seen.notes)
        known = [*facts(state), *share(state.name, totals, rates), *seen.facts]
        rows.append(Row(state.name, cells, known, state, points, seen.gaps))
        if more:
            waiting = str(sum(key.outstanding for key in more))
            name = state.name.partition(":")[0]
            rows.append(
                Row(f"{name}:", (f"{escaped(name)}: {counted(more)} more", "", "", "", waiting, "", ""))
            )
    if looked.left_out:
        rows.append(Row(":", (f"{looked.left_out} keys weren't read", *[""] * (len(QUEUES) - 1))))
    return rows


def share(name: str, totals: Mapping[str, float], rates: Rates) -> list[tuple[str, str]]:
    """Which part of the recent starts of all keys of a queue a key has; nothing, if there were none."""
    total = totals.get(name.partition(":")[0], 0.0) if ":" in name else 0.0
    return [("share", f"{(rates.now(name) or 0.0) / total:.0%} of the starts of all keys")] if total else []


def task_rows(counts: Iterable[QueueStats]) -> list[Row]:
    """Queues of tasks, by name."""
    rows = [
        Row(
            each.name,
            (
                escaped(each.name),
                *(
                    f"{'' if each.exact else '~'}{number:,}"
                    for number in (each.size, each.ready, each.claimed, each.future, each.inbox)
                ),
                str(each.most_claims),
            ),
        )
        for each in counts
    ]
    if len(rows) > MAX_RECORDS:
        rows[MAX_RECORDS:] = [Row(":", ("further queues weren't read", *[""] * (len(TASKS) - 1)))]
    return rows


def rows_of_tasks(tasks: Iterable[Task], sessions: Mapping[str, WorkerSession], now: float) -> list[Row]:
    """Tasks of a queue, read without their values. `now`: by the clock of this machine."""
    return [
        Row(
            task.id,
            (
                escaped(task.id),
                condition_of(task, now),
                escaped(task.key or "", 40),
                str(task.attempt),
                escaped(task.error, 60),
            ),
            [*facts_of(task, sessions, value=False), *history(failed_attempts(task._row.errors))],
        )
        for task in tasks
    ]


def schedule_rows(schedules: Iterable[ScheduleInfo]) -> list[Row]:
    """Schedules, by name."""
    rows = []
    for info in schedules:
        state = "paused" if info.paused else "running" if info.running else "waiting"
        following = moment(info.upcoming[0] if info.upcoming else None)
        times = following, moment(info.last), missed(info), escaped(info.plan)
        cells = (escaped(info.name), state, *times, what_it_does(info))
        more = [("host", escaped(info.host))] if info.host is not None else []
        rows.append(
            Row(f"{info.name}:{info.queue}", cells, [*zip(SCHEDULES, cells, strict=True), *more], info)
        )
    return rows


def missed(schedule: ScheduleInfo) -> str:
    """How many times of a schedule did not fire since the last one that did, by reason."""
    said = ("skipped", schedule.skipped), ("overdue", schedule.overdue)
    return ", ".join(f"{_some(times)} {what}" for what, times in said if times) or "-"


def _some(times: Sequence[object]) -> str:
    return f"{len(times)}{'+' if len(times) == MAX_TIMES else ''}"


def what_it_does(schedule: ScheduleInfo) -> str:
    """What happens at the times of a schedule."""
    if schedule.queue is not None:
        return f"inserts into {escaped(schedule.queue)}"
    return "runs a command" if schedule.is_command else "calls a function"


def worker_rows(workers: Iterable[tuple[WorkerSession, list[Task]]], now: float) -> list[Row]:
    """Worker processes, and what they work on. `now`: by the clock of this machine."""
    rows = []
    for session, tasks in workers:
        works = []
        for task in tasks:
            said = report(task)
            works.append(
                f"{escaped(task.queue)} {escaped(task.id)}{f' ({escaped(said, 60)})' if said else ''}"
            )
        cells = (
            process(session),
            str(len(tasks)),
            f"{seconds(max(0.0, now - session.beaten))} ago",
            f"{seconds(max(0.0, now - session.started))} ago",
            ", ".join(escaped(task.queue) for task in tasks[:_NAMED]) or "-",
        )
        rows.append(
            Row(session.id, cells, [("session", session.id), *(("works on", work) for work in works)])
        )
    return rows


def action_rows(actions: Iterable[Action], now: float) -> list[Row]:
    """What was done, in the given order. `now`: by the clock of this machine."""
    return [
        Row(
            str(place),
            (f"{seconds(max(0.0, now - each.at))} ago", *(escaped(text, 80) for text in each[:4])),
            [
                ("at", f"{datetime.fromtimestamp(each.at, UTC):%F %T} UTC"),
                *zip(ACTIONS[1:], map(escaped, each[:4]), strict=True),
            ],
        )
        for place, each in enumerate(actions)
    ]


def moment(time: datetime | None) -> str:
    """A time, in its zone."""
    return "never" if time is None else f"{time:%a} {time.isoformat(sep=' ', timespec='seconds')}"
