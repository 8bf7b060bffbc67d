"""Reads execution logs of queues, and results of `intervalq run`: what started when, by which settings."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from intervalq.errors import IntervalqError, short

ROUNDING: Final = 2e-6
"""Times in a log are whole microseconds, so that a gap may seem shorter than it was."""

_MAX_KEYS: Final = 10_000


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


class Note(NamedTuple):
    """What a shard says at an instant of the time since its last note."""

    at: float
    shard: str
    unused: dict[str, int]
    """Slots that were given up, by cause."""
    refused: int
    """Jobs that the called server refused."""


@dataclass(slots=True)
class QueueLog:
    """What logs say of one queue. Times are seconds since 1970 on the store's clock."""

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
    notes: list[Note] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    """Of a queue whose keys share its rate: the last shards of these keys, whose starts are here, too."""
    failed: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    def shard(self, name: str) -> int:
        """The place of a shard."""
        if name not in self._places:
            self._places[name] = len(self.shards)
            self.shards.append(name)
        return self._places[name]

    @property
    def unused(self) -> dict[str, Counter[str]]:
        """Slots that were given up: by shard, by cause."""
        found: dict[str, Counter[str]] = {}
        for note in self.notes:
            if note.unused:
                found.setdefault(note.shard, Counter()).update(note.unused)
        return found

    @property
    def refused(self) -> int:
        """Jobs that the called server refused."""
        return sum(note.refused for note in self.notes)

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

    def keep(self, most: int) -> None:
        """Forget all but the last starts, and what is older than these; `finish` was called."""
        if (more := len(self.started) - most) <= 0:
            return
        for values in (self.tickets, self.due, self.started, self.by):
            del values[:more]
        first = self.started[0]
        self.notes = [note for note in self.notes if note.at >= first]
        del self.paces[: max(0, bisect_right(self.paces, first, key=lambda pace: pace.at) - 1)]
        names = [self.shards[place] for place in self.by]
        self.shards, self._places = [], {}
        self.by = array("l", map(self.shard, names))

    def gaps(self) -> tuple[list[float], int]:
        """The gaps between starts, in intervals, and how many are too short; `finish` was called."""
        gaps, short = list[float](), 0
        paces = [self.pace(at) for at in self.started]
        for (at, later), (before, pace) in zip(pairwise(self.started), pairwise(paces), strict=True):
            if before is None or pace is None or before.interval is None or pace.interval is None:
                continue
            interval = min(before.interval, pace.interval)
            gaps.append((later - at) / interval)
            late = max(before.tolerance, pace.tolerance)
            short += pace.burst == 1 and later - at < interval - late - ROUNDING
        return gaps, short

    @property
    def promise(self) -> float | None:
        """The shortest gap that is promised now, in intervals; None: none is, as with a burst."""
        last = self.paces[-1] if self.paces else None
        if last is None or not last.interval or last.burst != 1:
            return None
        return 1 - last.tolerance / last.interval

    def undo(self, ticket: int, shard: int) -> None:
        """Take back the last start of a shard with this ticket."""
        for place in range(len(self.tickets) - 1, -1, -1):
            if (self.tickets[place], self.by[place]) == (ticket, shard):
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
                    add(queues, path.stem, json.loads(line))
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


def add(queues: dict[str, QueueLog], stem: str, line: Any) -> list[str]:  # noqa: ANN401 - any JSON value
    """Take in a line of a log, and return the names of the queues that it concerns.

    A start of a key under a common rate is one of the common queue, too.

    Args:
        queues: what is known; added to.
        stem: the name of its queue if it has none.
        line: what was read.

    Raises:
        ValueError, KeyError, TypeError: it is neither a start nor a result.
    """
    if not isinstance(line, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - a broken file, not a wrong type
    name = str(line.get("queue", stem))
    _add(queues.setdefault(name, QueueLog(name)), line)
    common, colon, _ = name.partition(":")
    if not colon:
        return [name]
    if "common" in line:
        keys = queues.setdefault(common, QueueLog(common)).keys
        keys[str(line["shard"])] = None
        for old in [*keys][:-_MAX_KEYS]:
            del keys[old]
        line = {**line, **line["common"]}
    if common not in queues or str(line.get("shard")) not in queues[common].keys:
        return [name]
    _add(queues[common], line)
    return [name, common]


def _add(queue: QueueLog, line: dict[str, Any]) -> None:
    shard = str(line["shard"]) if "job" not in line else f"shard {line['shard']}"
    if "unused" in line:
        unused = {str(cause): int(count) for cause, count in line["unused"].items()}
        queue.notes.append(Note(float(line["at"]), shard, unused, int(line.get("refused", 0))))
    elif "undone" in line:
        queue.undo(int(line["ticket"]), queue.shard(shard))
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


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The smallest value that at least `percent` percent of the values don't exceed; None: there are none."""
    if not ordered:
        return None
    rank = -(-len(ordered) * percent // 100)  # rounded up
    return ordered[max(0, int(rank) - 1)]
