"""Claims on their way to be settled, or renewed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from intervalq._timing.backends import Waker
from intervalq.errors import IntervalqError
from intervalq.tasks._claim.task import Claim
from intervalq.tasks.rules import Change, Delete
from intervalq.tasks.store import MAX_ROWS


class Settle:
    """A claim on its way to be settled."""

    # Of the class until they differ: there are very many, and of most only claim and part matter.
    waker: Waker | None = None
    """Who waits for it."""
    keeps = False
    """It is a renewal."""
    lost = False
    again = False
    """It was sent before, and may have been done then."""
    error: IntervalqError | None = None
    ended: Callable[[], object] | None = None
    """Called when it has ended, whether anybody waits for it or not."""

    def __init__(self, claim: Claim, part: Delete | Change, waker: Waker | None = None) -> None:
        self.claim = claim
        self.part = part
        if waker is not None:
            self.waker = waker
            self.keeps = isinstance(part, Change) and part.keep

    @property
    def is_answered(self) -> bool:
        """Whether who waits has been told."""
        return self.waker is not None and self.waker.done()

    @property
    def lease(self) -> int | None:
        """Of a renewal: for how long."""
        return self.part.lease if isinstance(self.part, Change) else None

    def end(self) -> None:
        """Tell who waits."""
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)
        if self.ended is not None:
            self.ended()

    def check(self) -> None:
        """Raise what came of it, if it wasn't done."""
        if self.error is not None:
            raise self.error
        if self.lost:
            raise self.claim.lost()

    def now(self) -> Delete | Change:
        """What the store is asked for, at the version that renewals have brought."""
        part, version = self.part, self.claim.row.version
        if part.version == version:
            return part
        return replace(part, version=version) if isinstance(part, Change) else Delete(part.id, version)


class Settles:
    """Those that the next call to the store takes along, in the order in which they came."""

    def __init__(self) -> None:
        self.since = 0.0
        """Since when the first of them waits."""
        self.is_urgent = False
        """Whether somebody may wait for one of them."""
        self._waiting: list[Settle] = []
        self._renewals = 0  # about how many of them are; none if 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, settle: Settle, now: Callable[[], float]) -> None:
        """One more; `now` is the session's clock."""
        if not self._waiting:
            self.since = now()
        self._waiting.append(settle)
        self._renewals += settle.keeps
        self.is_urgent |= settle.waker is not None

    def take(self) -> list[Settle]:
        """Those for the next call."""
        some, self._waiting = self._waiting[:MAX_ROWS], self._waiting[MAX_ROWS:]
        if self._renewals:
            some, later = _one_each(some)
            self._waiting = later + self._waiting
            self._renewals = sum(settle.keeps for settle in [*self._waiting, *some])
        self.is_urgent = any(settle.waker is not None for settle in self._waiting)
        return some

    def take_all(self) -> list[Settle]:
        """All of them, which no call is to take along any more."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def back(self, some: list[Settle]) -> None:
        """They are to be sent again, before all others."""
        self.is_urgent = True
        self._waiting[:0] = some


def _one_each(settles: Sequence[Settle]) -> tuple[list[Settle], list[Settle]]:
    """Those for the next call, and those for a later one: a renewal makes another version of its claim."""
    batch: dict[str, Settle] = {}
    later: list[Settle] = []
    for settle in settles:
        if settle.claim.row.id in batch:
            later.append(settle)
        else:
            batch[settle.claim.row.id] = settle
    return list(batch.values()), later
