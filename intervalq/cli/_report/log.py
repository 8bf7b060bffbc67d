"""Reads execution logs of queues, and results of `intervalq run`: what started when, by which settings."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from intervalq.errors import IntervalqError, short


class BadLog(IntervalqError, ValueError):
    """A file given to `intervalq report` has a line that is neither a start nor a result."""

    def __init__(self, path: Path, number: int, why: str) -> None:
        self.path, self.number = path, number
        super().__init__(
            f"{path}, line {number}: {why}; report takes what IntervalQueue(log=...) or "
            "intervalq run --output wrote"
        )


class Pace(NamedTuple):
    """Settings of a queue from an instant on. Durations are seconds."""

    at: float
    interval: float | None
    """None: it has only limits."""
    tolerance: float
    burst: int
    limits: tuple[str, ...]


@dataclass(slots=True)
class QueueLog:
    """What the logs say of one queue. Times are seconds since 1970 on the store's clock."""

    name: str
    tickets: array[int] = field(default_factory=lambda: array("q"))
    due: array[float] = field(default_factory=lambda: array("d"))
    started: array[float] = field(default_factory=lambda: array("d"))
    by: array[int] = field(default_factory=lambda: array("l"))
    """The shard of each start, as a place in `shards`."""
    shards: list[str] = field(default_factory=list)
    paces: list[Pace] = field(default_factory=list)
    """In the order of time."""
    is_guessed: bool = False
    """Whether the interval was guessed from the slots."""
    unused: dict[str, Counter[str]] = field(default_factory=dict)
    """Slots that were given up: by shard, by cause."""
    failed: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    def shard(self, name: str) -> int:
        """The place of a shard."""
        if name not in self._places:
            self._places[name] = len(self.shards)
            self.shards.append(name)
        return self._places[name]

    def pace(self, at: float) -> Pace | None:
        """The settings at an instant; before the first ones, those."""
        place = bisect_right(self.paces, at, key=lambda pace: pace.at)
        return self.paces[max(0, place - 1)] if self.paces else None

    def finish(self) -> None:
        """Sort the settings and the starts by time."""
        self.paces.sort(key=lambda pace: pace.at)
        order = sorted(range(len(self.started)), key=lambda at: (self.started[at], self.tickets[at]))
        self.tickets = array("q", (self.tickets[place] for place in order))
        self.due = array("d", (self.due[place] for place in order))
        self.by = array("l", (self.by[place] for place in order))
        self.started = array("d", (self.started[place] for place in order))

    def undo(self, ticket: int) -> None:
        """Take back the last start with this ticket."""
        for place in range(len(self.tickets) - 1, -1, -1):
            if self.tickets[place] == ticket:
                for values in (self.tickets, self.due, self.started, self.by):
                    values.pop(place)
                return


def read(paths: Iterable[Path], *, interval: float | None, tolerance: float | None) -> list[QueueLog]:
    """The queues in some logs, by name.

    Args:
        paths: files; a last line that was cut off is left out.
        interval: that of results of `intervalq run`, which don't have it. None: it is guessed from the slots.
        tolerance: likewise. None: a tenth of the interval.

    Raises:
        BadLog: another line can't be read.
        OSError: a file can't be read.
    """
    queues: dict[str, QueueLog] = {}
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    _add(queues, path.stem, json.loads(line))
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    if line.endswith(b"\n"):
                        why = "is not a JSON object" if isinstance(error, ValueError) else f"lacks {error}"
                        raise BadLog(path, number, why) from None
    for queue in queues.values():
        if not queue.paces:
            queue.is_guessed = interval is None
            known = _guessed(queue) if interval is None else interval
            late = 0.1 * known if tolerance is None and known is not None else tolerance or 0.0
            queue.paces.append(Pace(0.0, known, late, 1, ()))
        queue.finish()
    return [queues[name] for name in sorted(queues) if queues[name].started]


def _add(queues: dict[str, QueueLog], stem: str, line: Any) -> None:  # noqa: ANN401 - any JSON value
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - a broken file, not a wrong type
    name = str(line.get("queue", stem))
    queue = queues.setdefault(name, QueueLog(name))
    shard = str(line["shard"]) if "job" not in line else f"shard {line['shard']}"
    if "unused" in line:
        queue.unused.setdefault(shard, Counter()).update(
            {str(cause): int(count) for cause, count in line["unused"].items()}
        )
    elif "undone" in line:
        queue.undo(int(line["ticket"]))
    elif "started" in line:
        ticket, due, started = int(line["ticket"]), float(line["due"]), float(line["started"])
        queue.tickets.append(ticket)
        queue.due.append(due)
        queue.started.append(started)
        queue.by.append(queue.shard(shard))
        queue.failed += line.get("exit_code", 0) != 0
    else:
        every = line["interval"]
        pace = Pace(
            float(line["at"]),
            None if every is None else float(every),
            float(line["tolerance"]),
            int(line["burst"]),
            tuple([short(limit) if not isinstance(limit, str) else limit for limit in line["limits"]]),
        )
        if not any(known[1:] == pace[1:] for known in queue.paces[-1:]):
            queue.paces.append(pace)


def _guessed(queue: QueueLog) -> float | None:
    """The interval by the slots of consecutive tickets, which are never closer; None: there are none."""
    known = sorted(zip(queue.tickets, queue.due, strict=True))
    steps = [
        later - due
        for (ticket, due), (following, later) in pairwise(known)
        if following == ticket + 1 and later > due
    ]
    return round(min(steps), 6) if steps else None
