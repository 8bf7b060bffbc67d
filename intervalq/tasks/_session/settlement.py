"""Settlements and renewals of claims on their way to the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from intervalq._timing.backends import Waker
from intervalq.errors import IntervalqError
from intervalq.tasks._claim.task import Claim
from intervalq.tasks.rules import Change, Delete, Row
from intervalq.tasks.store import MAX_ROWS


class Settle:
    """The settlement of a claim, on its way to the store."""

    # Defaults in the class: there are very many of these, and most need only claim and part.
    waker: Waker | None = None
    """Wakes the caller that waits for it."""
    keeps = False
    """Whether it is a renewal."""
    lost = False
    again = False
    """Whether it was sent before, and may have been done then."""
    error: IntervalqError | None = None
    ended: Callable[[], object] | None = None
    """Called when it has ended, whether or not anybody waits for it."""

    def __init__(self, claim: Claim, part: Delete | Change, waker: Waker | None = None) -> None:
        self.claim = claim
        self.part = part
        if waker is not None:
            self.waker = waker
            self.keeps = isinstance(part, Change) and part.keep

    @property
    def is_answered(self) -> bool:
        """Whether the waiter has been notified."""
        return self.waker is not None and self.waker.done()

    @property
    def lease(self) -> int | None:
        """The lease of a renewal."""
        return self.part.lease if isinstance(self.part, Change) else None

    def end(self) -> None:
        """Wake the waiter."""
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)
        if self.ended is not None:
            self.ended()

    def check(self) -> None:
        """Raise its error, if it wasn't done."""
        if self.error is not None:
            raise self.error
        if self.lost:
            raise self.claim._lost()

    def renewed(self) -> Row:
        """The task after this renewal. Claimants only use whether there is an `until`, so it is rough."""
        row, part = self.claim._row, self.part
        progress = part.progress if isinstance(part, Change) else None
        return row._replace(
            version=row.version + 1,
            until=self.lease,
            progress=row.progress if progress is None else progress,
        )

    def now(self) -> Delete | Change:
        """The change or deletion to send, at the version after renewals."""
        part, version = self.part, self.claim._row.version
        if part.version == version:
            return part
        return replace(part, version=version) if isinstance(part, Change) else part._replace(version=version)


class Settles:
    """The settlements for the next call to the store, in the order in which they came."""

    def __init__(self) -> None:
        self.since = 0.0
        """Since when the first of them has been waiting."""
        self.is_urgent = False
        """Whether a caller may be waiting for one of them."""
        self._waiting: list[Settle] = []
        self._renewals = 0  # about how many of them are renewals; 0: none

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, settle: Settle, now: Callable[[], float]) -> None:
        """Add a settlement; `now` is the session's clock."""
        if not self._waiting:
            self.since = now()
        self._waiting.append(settle)
        self._renewals += settle.keeps
        self.is_urgent |= settle.waker is not None

    def take(self) -> list[Settle]:
        """Take the settlements for the next call."""
        some, self._waiting = self._waiting[:MAX_ROWS], self._waiting[MAX_ROWS:]
        if self._renewals:
            some, later = _one_each(some)
            self._waiting = later + self._waiting
            self._renewals = sum(settle.keeps for settle in [*self._waiting, *some])
        self.is_urgent = any(settle.waker is not None for settle in self._waiting)
        return some

    def take_all(self) -> list[Settle]:
        """Take all settlements; no call will send them any more."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def back(self, some: list[Settle]) -> None:
        """Put settlements back, to be sent again before all others."""
        self.is_urgent = True
        self._waiting[:0] = some


def _one_each(settles: Sequence[Settle]) -> tuple[list[Settle], list[Settle]]:
    """Settlements for the next call, and those for a later one: a renewal increments its claim's version."""
    batch: dict[str, Settle] = {}
    later: list[Settle] = []
    for settle in settles:
        if settle.claim._row.id in batch:
            later.append(settle)
        else:
            batch[settle.claim._row.id] = settle
    return list(batch.values()), later
