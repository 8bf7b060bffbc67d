"""The progress and the outcome of a run: values, which others may show."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from intervalq.spark._paced.progress import Progress

_RECENT: Final = 10.0
"""The seconds from which the present rate is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The progress of a pass' calls. Times are in seconds."""

    rows: int
    """Rows that are to be called, or were called in an earlier attempt of this pass."""
    done: int
    failed: int
    in_flight: int
    waiting: int
    """Rows that no task holds yet."""
    used: int
    """Slots of the queue that were used since the first look, including those of others who share it."""
    possible: int
    """All slots in this time; 0: the queue has no interval."""
    rate: float
    """Starts a second, recently."""
    left: float | None
    """Time to the end; None: not known yet."""
    is_held: bool
    """Whether the queue is paused or cooling down."""
    reason: str | None = None
    """The commonest reason among failed rows, as far as they were read; None: none is known."""


class Watch:
    """Is notified of a run's progress, in the thread of the run; this base class does nothing."""

    def note(self, text: str) -> None:
        """Called with a sentence at each step."""

    def looked(self, look: Look) -> None:
        """Called with the progress of the calls, about twice a second."""

    def called(self) -> None:
        """Called when the calls have ended, successfully or not."""


@dataclass(slots=True)
class Looks:
    """Turns successive states of the store into looks."""

    rows: int
    first: Progress | None = None
    recent: deque[Progress] = field(default_factory=deque)

    def add(self, now: Progress) -> Look:
        """The progress at one instant."""
        if self.first is None or now.starts == self.first.starts:
            self.first = now  # until calls begin, because no slot could be used while Spark was starting
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
            possible=int((now.at - self.first.at) / now.interval) if now.interval else 0,
            rate=rate,
            left=missing / rate if rate else None,
            is_held=now.is_held,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The outcome of one pass."""

    id: str
    results: int
    failed: int
    """Rows whose last call failed: they are among the rejects, and are called again by the next run."""
    unfit: int
    """Those of them whose answer doesn't fit the schema: the ledger keeps it."""
    reasons: tuple[dict[str, Any], ...]
    """Why rows failed, the commonest reasons first: `reason`, `rows`, and an example's `key` and `error`."""
    rejected: dict[str, int]
    """Rows of the input that were rejected, by reason, except those that earlier passes listed."""
    calls: int
    """Calls of rows that ended in this pass, including retries."""
    replayed: int
    """Rows that were called before the pass was restarted, and not again."""
    rate: float | None
    """Rows started a second, from the first to the last; None for fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run."""

    name: str
    rows: int
    """Rows of the input."""
    duplicates: int
    """Rows that are equal to another one; they are ignored."""
    rejected: dict[str, int]
    """Rows of the input that are rejected, by reason, including those that earlier runs have listed."""
    before: int
    """Rows that already had results."""
    restarts: int
    """Passes of earlier runs that were interrupted, and are repeated by this one."""
    passes: tuple[Published, ...]
    """The passes that were published, including unpublished ones of earlier runs."""
    audit: dict[str, Any] | None
    """See `intervalq.spark.Audit.to_dict`; None: nothing was ever called."""
    report: str | None
    """The place of the page; None: the run was stopped."""
    stopped: bool = False
    """Whether it was stopped, so that the next run has to continue."""

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
        """The outcome as a JSON object, with a summary of the audit."""
        return {
            "pipeline": self.name,
            "ok": self.ok,
            "stopped": self.stopped,
            "rows": self.rows,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "before": self.before,
            "restarts": self.restarts,
            "results": self.results,
            "failed": self.failed,
            "passes": [{name: getattr(one, name) for name in Published.__slots__} for one in self.passes],
            "audit": None if self.audit is None else judged(self.audit),
            "report": self.report,
        }


def judged(audit: dict[str, Any]) -> dict[str, Any]:
    """A summary of an audit."""
    counts = {
        kind: {name: found["count"] for name, found in audit[kind].items()}
        for kind in ("violations", "notes")
    }
    return {"ok": audit["ok"], "starts": audit["starts"], **counts}
