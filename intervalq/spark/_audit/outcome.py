"""The outcome of an audit, as values and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from intervalq.spark._audit.kinds import BY_NAME, Example, Found
from intervalq.spark._audit.scan.buckets import Histogram
from intervalq.spark._audit.tally import Part, Tally, jain

_HOSTS: Final = 50


class Outcome:
    """Figures only: the log is no longer needed."""

    def __init__(self, tally: Tally, not_checked: dict[str, str], tolerance: float | None) -> None:
        """Made by `audit`."""
        self._tally = tally
        self._tolerance = tolerance
        self.violations: dict[str, Found] = tally.findings.of(violation=True)
        """The count of each kind, and a few examples. A correct log has none."""
        self.notes: dict[str, Found] = tally.findings.of(violation=False)
        """Remarks that are no violations."""
        self.not_checked: dict[str, str] = not_checked
        """Kinds that could not be checked or were not requested, and why: their absence is not proven."""

    def __repr__(self) -> str:
        count = sum(found.count for found in self.violations.values())
        return f"<Audit of {self.starts} starts, {count} violations>"

    @property
    def ok(self) -> bool:
        """Whether there is no violation of any kind that could be checked."""
        return not self.violations

    @property
    def rows(self) -> int:
        """Rows of the log, including replayed ones."""
        return self._tally.facts.rows

    @property
    def starts(self) -> int:
        """Calls that were made."""
        return self._tally.total.starts

    @property
    def tally(self) -> Tally:
        """All the figures, for charts."""
        return self._tally

    def to_dict(self) -> dict[str, Any]:
        """In JSON types: durations in seconds, gaps in intervals, instants as seconds since 1970."""
        tally = self._tally
        return {
            "ok": self.ok,
            "rows": self.rows,
            "starts": self.starts,
            "violations": {name: _found(name, found) for name, found in self.violations.items()},
            "notes": {name: _found(name, found) for name, found in self.notes.items()},
            "not_checked": dict(self.not_checked),
            "queues": [
                {
                    "queue": queue.name,
                    "rows": queue.rows,
                    "interval": queue.interval,
                    "interval_guessed": queue.guessed,
                }
                for queue in tally.facts.queues.values()
            ],
            "total": self._part(tally.total),
            "days": [
                {"queue": queue, "day": day_of(day), **self._part(part)}
                for (queue, day), part in sorted(tally.days.items())
            ],
            "clocks": [
                {"host": clock.host, "offset": clock.offset, "starts": clock.starts}
                for clock in tally.facts.clocks
            ],
            "bin": tally.facts.bin,
            "bins": [
                {
                    "at": number * tally.facts.bin,
                    "starts": minute.starts,
                    "possible": minute.possible,
                    "short": minute.short,
                    "late_p50": minute.late.percentile(50),
                    "late_p99": minute.late.percentile(99),
                }
                for number, minute in sorted(tally.minutes.items())
            ],
        }

    def _part(self, part: Part) -> dict[str, Any]:
        live = self._tally.live
        known_slots = "slots_close" in live
        return {
            "starts": part.starts,
            "possible": part.possible,
            "utilisation": part.starts / part.possible if part.possible else None,
            "retries": part.retries if "call_retried" in live else None,
            "refused": part.refused if "call_refused" in live else None,
            "failed": part.failed if "call_failed" in live else None,
            "tickets_unused": part.unused if "tickets_unused" in live else None,
            "gap_least": part.gaps.least,
            "gap_p1": part.gaps.percentile(1),
            "gap_p50": part.gaps.percentile(50),
            "gap_p99": part.gaps.percentile(99),
            "gaps_short": part.short / part.gaps.count if part.gaps.count and "gap_short" in live else None,
            "inversions": part.inverted if "order_inverted" in live else None,
            **(_lateness(part.late) if known_slots else _lateness(Histogram())),
            "fairness_shards": jain(part.shards.values()) if "shard_starved" in live else None,
            "fairness_hosts": jain(part.hosts.values()) if "clock_off" in live else None,
            "shards": dict(sorted(part.shards.items(), key=lambda item: -item[1])[:_HOSTS]),
            "most_running": part.peak,
            "kinds": dict(part.kinds),
        }


def day_of(number: int) -> str:
    """A day since 1970, formatted."""
    return datetime.fromtimestamp(number * 86_400, UTC).date().isoformat()


def instant(at: float | None) -> str:
    """An instant, formatted in UTC; None: a dash."""
    if at is None:
        return "-"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _found(name: str, found: Found) -> dict[str, Any]:
    return {
        "meaning": BY_NAME[name].meaning,
        "count": found.count,
        "examples": [_example(example) for example in found.examples],
    }


def _example(example: Example) -> dict[str, Any]:
    fields = {"queue": example.queue, "ticket": example.ticket, "at": example.at}
    return fields | ({"what": example.what} if example.what else {})


def _lateness(late: Histogram) -> dict[str, float | None]:
    return {
        "late_p50": late.percentile(50),
        "late_p99": late.percentile(99),
        "late_p999": late.percentile(99.9),
        "late_most": late.most,
    }
