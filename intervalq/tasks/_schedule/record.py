"""`Stored`: what a store of tasks keeps of a durable schedule, as the value of a row."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from intervalq._hours.zone import local
from intervalq.schedules._choice import Misfire
from intervalq.schedules._times.plan import Plan, plan_of
from intervalq.tasks.rules import Insert, Row

QUEUE: Final = "intervalq:schedules"
"""The queue of the rows. The process that claims a row takes its step."""

CHANGED: Final = -1
"""See `Stored.through`."""

_ID: Final = "schedule/"
_LAYOUT: Final = 1


def row_id(name: str) -> str:
    """The id of the row of a schedule."""
    return _ID + name


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A durable schedule. Instants are microseconds since 1970 on the store's clock."""

    name: str
    plan: Plan
    task: Insert
    """The task of each occurrence, apart from its id."""
    misfire: Misfire
    grace: int | None
    """How late an occurrence may be inserted, in microseconds; None: without limit."""
    through: int | None = None
    """The watermark: occurrences up to it are decided. None: up to the creation of the row; `CHANGED`: up to
    its `at`, which a change of the times, or the end of a pause, has set to the store's clock."""
    last: int | None = None
    """The last occurrence that was inserted."""
    paused: bool = False

    def to_json(self) -> str:
        """The value of its row."""
        task = self.task
        return json.dumps(
            {
                "version": _LAYOUT,
                "plan": self.plan.to_text(),
                "queue": task.queue,
                "value": task.json,
                "key": task.key,
                "replace": task.replace,
                "priority": task.priority,
                "keep_for": task.keep_for,
                "misfire": self.misfire,
                "grace": self.grace,
                "through": self.through,
                "last": self.last,
                "paused": self.paused,
            },
            separators=(",", ":"),
        )

    @classmethod
    def of(cls, row: Row) -> Self:
        """The schedule of a row.

        Raises:
            ValueError: it is none, or one of a newer version.
            InvalidOption: its time zone is not known here.
            MissingExtra: there is no parser for its cron expression.
        """
        try:
            data: Any = json.loads(row.json)
            if not row.id.startswith(_ID) or data["version"] != _LAYOUT:
                raise ValueError("it was not written by this version of intervalq, or an earlier one")
            task = Insert(
                data["queue"],
                data["value"],
                "",
                key=data["key"],
                skip=True,
                replace=data["replace"],
                priority=data["priority"],
                keep_for=data["keep_for"],
            )
            return cls(
                name=row.id.removeprefix(_ID),
                plan=plan_of(data["plan"]),
                task=task,
                misfire=data["misfire"],
                grace=data["grace"],
                through=data["through"],
                last=data["last"],
                paused=data["paused"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a schedule ({error!r})") from error

    def occurrence(self, scheduled: int) -> Insert:
        """The task of an occurrence, which is inserted unless a task has its id."""
        return self.task._replace(id=f"{self.name}/{_instant(scheduled)}")

    def decided(self, row: Row) -> int:
        """Up to which occurrence all are decided."""
        if self.through is None:
            return row.created
        return row.at if self.through == CHANGED else self.through


def put_off(row: Row) -> str | None:
    """The value that lets a row's `at` move while its watermark stays; None: the one that it has."""
    try:
        data: Any = json.loads(row.json)
    except ValueError:
        return None
    if not isinstance(data, dict) or (data.get("version"), data.get("through")) != (_LAYOUT, CHANGED):
        return None
    return json.dumps(data | {"through": row.at}, separators=(",", ":"))


def _instant(scheduled: int) -> str:
    """An instant in UTC, such as `2026-11-22T03:00Z`, no more exact than it needs to be."""
    time: datetime = local(scheduled, UTC)
    exact = "microseconds" if time.microsecond else "seconds" if time.second else "minutes"
    return time.isoformat(timespec=exact).replace("+00:00", "Z")
