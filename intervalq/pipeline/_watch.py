"""What a run tells of itself while it is on, and what it has come to: values, shown by whoever likes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from intervalq.spark._paced.progress import Progress

_RECENT: Final = 10.0
"""Seconds that the present rate is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How the calls of a pass are going. Times are seconds."""

    rows: int
    """Rows that are to be called, or were in an earlier attempt of this pass."""
    done: int
    failed: int
    in_flight: int
    waiting: int
    """Rows that no task holds yet."""
    used: int
    """Slots of the queue used since the first look, also by others who share it."""
    possible: int
    """Slots that there were in this time."""
    rate: float
    """Starts a second, recently."""
    left: float | None
    """Time to the end; None: not known yet."""
    held: bool
    """Whether the queue is paused or cools down."""


class Watch:
    """Hears how a run is going, on the thread that runs it; this one tells nobody."""

    def said(self, text: str) -> None:
        """A step, in a sentence."""

    def looked(self, look: Look) -> None:
        """How the calls are going, twice a second or so."""

    def called(self) -> None:
        """The calls have ended, well or not."""


@dataclass(slots=True)
class Looks:
    """Makes looks of what the store says at one instant after the other."""

    rows: int
    first: Progress | None = None
    recent: deque[Progress] = field(default_factory=deque)

    def add(self, now: Progress) -> Look:
        """The look at an instant."""
        if self.first is None or now.starts == self.first.starts:
            self.first = now  # until calls begin: Spark takes its time, and no slot of that could be used
        self.recent.append(now)
        while len(self.recent) > 2 and self.recent[1].at <= now.at - _RECENT:
            self.recent.popleft()
        rate = now.rate(self.recent[0])
        done, failed, in_flight = now.done or 0, now.failed or 0, now.in_flight or 0
        missing = max(0, self.rows - done - failed)
        return Look(
            rows=self.rows,
            done=done,
            failed=failed,
            in_flight=in_flight,
            waiting=max(0, missing - in_flight),
            used=now.starts - self.first.starts,
            possible=int((now.at - self.first.at) / now.interval),
            rate=rate,
            left=missing / rate if rate else None,
            held=now.held,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What one pass has come to."""

    id: str
    results: int
    failed: int
    """Rows whose last call failed: they are among the rejects, and are called again by the next run."""
    rejected: dict[str, int]
    """Rows of the input that were rejected, by reason, as far as no earlier pass listed them."""
    calls: int
    """Calls of rows that ended in this pass, retries as well."""
    replayed: int
    """Rows whose call was made before the pass was begun again, and that were not called again."""
    rate: float | None
    """Rows started a second, from the first to the last; None for fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run has come to."""

    name: str
    rows: int
    """Rows of the input."""
    duplicates: int
    """Rows that say the same as another one; they are left aside."""
    rejected: dict[str, int]
    """Rows of the input that are rejected, by reason; those that earlier runs have listed too."""
    before: int
    """Rows whose results were there before."""
    passes: tuple[Published, ...]
    """Passes that were published, those of earlier runs that had not come so far as well."""
    audit: dict[str, Any] | None
    """See `intervalq.spark.Audit.to_dict`; None: nothing was ever called."""
    report: str | None
    """Where the page is; None: there is none, as without matplotlib."""
    stopped: bool = False
    """Whether it was told to stop, and the next run has to go on."""

    @property
    def results(self) -> int:
        """Rows that got a result in this run."""
        return sum(one.results for one in self.passes)

    @property
    def failed(self) -> int:
        """Rows whose call failed in the newest pass."""
        return self.passes[-1].failed if self.passes else 0

    @property
    def ok(self) -> bool:
        """Whether every row has a result, and the audit found no violation."""
        return not (
            self.stopped
            or self.failed
            or sum(self.rejected.values())
            or (self.audit is not None and not self.audit["ok"])
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON; of the audit, what it came to."""
        return {
            "pipeline": self.name,
            "ok": self.ok,
            "stopped": self.stopped,
            "rows": self.rows,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "before": self.before,
            "results": self.results,
            "failed": self.failed,
            "passes": [{name: getattr(one, name) for name in Published.__slots__} for one in self.passes],
            "audit": None if self.audit is None else judged(self.audit),
            "report": self.report,
        }


def judged(audit: dict[str, Any]) -> dict[str, Any]:
    """What an audit came to, in a few fields."""
    counts = {
        kind: {name: found["count"] for name, found in audit[kind].items()}
        for kind in ("violations", "notes")
    }
    return {"ok": audit["ok"], "starts": audit["starts"], **counts}
