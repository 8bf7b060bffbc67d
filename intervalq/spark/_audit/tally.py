"""Adds up what the passes found: by queue and day, by bin of time, and in total. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from intervalq.spark._audit.edges import Edges
from intervalq.spark._audit.facts import DAY, Facts, QueueFacts
from intervalq.spark._audit.kinds import Example, Findings, names
from intervalq.spark._audit.scan.buckets import GAP_BUCKETS, Histogram, bucket_of
from intervalq.spark._audit.scan.order import EDGES

_SHOWN: Final = 200
"""Queues that get lines of their own, those with the most rows; the others count in the total."""


_COUNTED: Final = (
    ("call_refused", "refused"),
    ("call_failed", "failed"),
    ("call_retried", "retries"),
    ("row_replayed", "replays"),
)
"""Kinds that the first scan has already counted, and their names there."""


@dataclass(slots=True)
class Part:
    """The figures of a queue's day, or of the whole log."""

    starts: int = 0
    retries: int = 0
    refused: int = 0
    failed: int = 0
    possible: float = 0.0
    """Slots between the first start and the last."""
    unused: int = 0
    short: int = 0
    inverted: int = 0
    gaps: Histogram = field(default_factory=Histogram)
    """Gaps in intervals, because queues may have different ones."""
    late: Histogram = field(default_factory=Histogram)
    shards: dict[str, int] = field(default_factory=Counter)
    hosts: dict[str, int] = field(default_factory=Counter)
    peak: int | None = None
    """The maximum number of jobs that ran at once; None: not checked."""
    kinds: dict[str, int] = field(default_factory=Counter)
    """Findings by kind. Findings by key count for the whole log only."""


@dataclass(slots=True)
class Minute:
    """A bin of time over all queues."""

    starts: int = 0
    short: int = 0
    possible: float = 0.0
    late: Histogram = field(default_factory=Histogram)


def jain(counts: Iterable[int]) -> float | None:
    """Jain's index: 1 if all have the same, 1/n if one of n has everything; None: nobody has any."""
    values = [count for count in counts if count]
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if values else None


class Tally:
    """All figures of one audit."""

    def __init__(self, facts: Facts, live: set[str]) -> None:
        self.facts = facts
        self.live = live
        self.findings = Findings()
        self.total = Part()
        self.days: dict[tuple[str, int], Part] = {}
        self.minutes: dict[int, Minute] = defaultdict(Minute)
        self._names: dict[int, QueueFacts] = {queue.number: queue for queue in facts.queues.values()}
        largest = sorted(facts.queues.values(), key=lambda queue: -queue.rows)[:_SHOWN]
        self._shown = {queue.number for queue in largest}
        self._of_facts()

    @property
    def intervals(self) -> dict[int, float]:
        """The interval of each queue, in seconds, by its number."""
        return {number: queue.interval for number, queue in self._names.items()}

    def _parts(self, queue: int, day: int | None) -> list[Part]:
        """The tallies to which a figure is added."""
        if queue not in self._shown or day is None:
            return [self.total]
        return [self.total, self.days.setdefault((self._names[queue].name, day), Part())]

    def _day(self, number: int | None) -> int | None:
        return None if number is None else number * self.facts.bin // DAY

    def _add(self, kind: str, count: int, queue: int, day: int | None, where: Example) -> None:
        if kind in self.live and count:
            self.findings.add(kind, count, [where])
            for part in self._parts(queue, day):
                part.kinds[kind] += count

    def _where(self, group: dict[str, Any], what: str = "") -> Example:
        return Example(self._names[group["q"]].name, group["ticket"], group["at"], what)

    def _found(self, group: dict[str, Any], count: int) -> None:
        for name in names(group["flags"] & ~EDGES):
            self._add(name, count, group["q"], self._day(group["bin"]), self._where(group))

    def _of_facts(self) -> None:
        for group in self.facts.groups:
            queue = self.facts.queues[group["queue"]]
            for part in self._parts(queue.number, group["day"]):
                part.starts += group["starts"]
                part.retries += group["retries"]
                part.refused += group["refused"]
                part.failed += group["failed"]
                if group["starts"]:
                    part.shards[group["shard"]] += group["starts"]
                    part.hosts[group["host"]] += group["starts"]
            where = Example(queue.name, None, group["first"])
            for kind, name in _COUNTED:
                self._add(kind, group[name], queue.number, group["day"], where)
        self._slots()
        if "shard_starved" in self.live:
            self._starved()

    def _slots(self) -> None:
        """The number of slots from first to last."""
        spans: dict[tuple[str, int], tuple[float, float]] = {}
        for group in self.facts.groups:
            if group["first"] is not None and group["day"] is not None:
                first, last = spans.get((group["queue"], group["day"]), (group["first"], group["last"]))
                spans[group["queue"], group["day"]] = min(first, group["first"]), max(last, group["last"])
        for (name, day), (first, last) in spans.items():
            if (name, day) in self.days:
                self.days[name, day].possible = round((last - first) / self.facts.queues[name].interval) + 1
        for queue in self.facts.queues.values():
            if queue.first is not None and queue.last is not None:
                self.total.possible += round((queue.last - queue.first) / queue.interval) + 1
                self._possible(queue.first, queue.last, queue.interval)

    def _starved(self) -> None:
        for (name, day), part in list(self.days.items()):
            index = jain(part.shards.values())
            if index is not None and index < 0.5 and part.starts >= 2 * len(part.shards):
                number = self.facts.queues[name].number
                where = Example(name, None, float(day * DAY), f"Jain's index {index:.2f}")
                self._add("shard_starved", 1, number, day, where)

    def _possible(self, first: float, last: float, interval: float) -> None:
        """How many starts fit into each bin, between the first and the last start of a queue."""
        width = self.facts.bin
        for number in range(int(first // width), int(last // width) + 1):
            inside = min(last + interval, (number + 1) * width) - max(first, number * width)
            self.minutes[number].possible += inside / interval

    def rows(self, groups: Iterable[dict[str, Any]]) -> None:
        """Add the groups of rows."""
        for group in groups:
            self._found(group, group["rows"])
            if group["bucket"] is None or group["total"] is None:
                continue
            values = (group["bucket"], group["rows"], group["total"], group["least"], group["most"])
            for part in self._parts(group["q"], self._day(group["bin"])):
                part.late.add(*values)
            if group["bin"] is not None:
                self.minutes[group["bin"]].late.add(*values)

    def order(self, groups: Iterable[dict[str, Any]], *, burst: int, tolerance: float | None) -> None:
        """Add the groups of the order, and join the edges of blocks."""
        edges = Edges()
        for group in groups:
            edges.add(group)
            self._found(group, group["rows"] or group["slots"])
            self._starts(group["q"], group["bin"], group)
        for queue, joined in edges.join(self.intervals, burst=burst, tolerance=tolerance):
            row = joined.row
            for kind in joined.kinds:
                where = Example(self._names[queue].name, row.ticket, row.at)
                self._add(kind, 1, queue, self._day(row.bin), where)
            group = {
                "q": queue,
                "rows": 0,
                "flags": 0,
                "unused": joined.unused,
                "total": joined.gap,
                "bucket": None,
            }
            self._starts(queue, row.bin, group | {"at": row.at, "ticket": row.ticket})

    def _starts(self, queue: int, number: int | None, group: dict[str, Any]) -> None:
        interval = self._names[queue].interval
        kinds = set(names(group["flags"] & ~EDGES))
        unused = group["unused"] or 0
        self._add("tickets_unused", unused, queue, self._day(number), self._where(group, "before it"))
        short = group["rows"] if "gap_short" in kinds else 0
        inverted = group["rows"] if "order_inverted" in kinds else 0
        for part in self._parts(queue, self._day(number)):
            part.unused += unused
            part.short += short
            part.inverted += inverted
            if group["total"] is not None:
                _gaps(part, group, interval)
        if number is not None:
            self.minutes[number].starts += group["rows"]
            self.minutes[number].short += short

    def running(self, groups: Iterable[dict[str, Any]]) -> None:
        """Add the results of `running`."""
        for group in groups:
            day = self._day(group["bin"])
            self._add(
                "over_max_running", group["rows"], group["q"], day, self._where(group, f"{group['peak']} ran")
            )
            for part in self._parts(group["q"], day):
                part.peak = max(part.peak or 0, group["peak"])

    def found(self, kind: str, groups: Iterable[dict[str, Any]]) -> None:
        """Add findings of one kind, by queue and bin of time."""
        for group in groups:
            day = self._day(group["bin"])
            self._add(kind, group["rows"], group["q"], day, self._where(group))

    def keys(self, groups: Iterable[dict[str, Any]]) -> None:
        """Add the groups of keys, with their examples."""
        for group in groups:
            examples = [
                Example(row["queue"] or "", row["ticket"], row["at"], f"key {row['key']}")
                for row in group["examples"]
            ]
            for name in names(group["flags"]):
                self.findings.add(name, group["unused"] if name == "key_twice" else group["rows"], examples)


def _gaps(part: Part, group: dict[str, Any], interval: float) -> None:
    """Add the gaps of a group: a gap at an edge has no bucket yet, and gets the one for its length."""
    total = group["total"] / interval
    if group["bucket"] is None:
        part.gaps.add(bucket_of(total, each=GAP_BUCKETS), 1, total, total, total)
    else:
        least, most = group["least"] / interval, group["most"] / interval
        part.gaps.add(group["bucket"], group["rows"], total, least, most)
