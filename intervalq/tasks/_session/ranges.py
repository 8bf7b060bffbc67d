"""Plain tasks claimed in ranges: each is settled separately, and finished ranges are reported."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from intervalq.tasks._claim.endings import unused
from intervalq.tasks._claim.plain import PlainClaim
from intervalq.tasks._claim.task import Claim, Holder
from intervalq.tasks._spec.ids import PLAIN
from intervalq.tasks.rules import Change, Failed, Finished, Insert, Range, Row


class OpenRange:
    """A range of plain tasks, some of which are not settled yet."""

    def __init__(
        self, range_: Range, tasks: Sequence[tuple[int, str]], owner: Holder, session: str, *, begun: bool
    ) -> None:
        self.range, self.owner, self.session, self.begun = range_, owner, session, begun
        self.is_new = False
        """Whether some settlements have not been reported to the store."""
        self.since = 0.0
        """Since when, on the session's clock."""
        self.claims: list[PlainClaim] = [PlainClaim(self, number, json) for number, json in tasks]
        self._reported = 0  # how many, from the first on, the store knows to be settled
        self._open = len(self.claims)
        self._failed: list[Failed] = []

    def undone(self, claim: PlainClaim, change: Change) -> None:
        """Note that a task, which is settled now, was not done."""
        self._failed.append(Failed(claim._number, _again(claim._row, change)))

    def settled(self, count: int, now: Callable[[], float]) -> bool:
        """Note that this many tasks are settled; returns whether the last one was among them."""
        if not self.is_new:
            self.is_new, self.since = True, now()
        self._open -= count
        return not self._open

    def left(self) -> list[PlainClaim]:
        """The claims that are not settled."""
        return [claim for claim in self.claims if claim.open]

    def finish_now(self) -> Finished:
        """Give back the unsettled tasks, and return the final report."""
        for claim in self.left():
            self.undone(claim, unused(claim._row))
            claim._lose()
        return self.finished()

    def finished(self) -> Finished:
        """The final report to the store."""
        return Finished(self.range, tuple(self._failed))

    def so_far(self, begun: Iterable[PlainClaim]) -> list[Finished]:
        """The reports before that, if any: the first settled tasks, and those that have begun."""
        first = self._reported
        while self._reported < len(self.claims) and not self.claims[self._reported].open:
            self._reported += 1
        self.is_new = False
        numbers = tuple(claim._number for claim in begun)
        if self._reported == first and not numbers:
            return []
        until = self.claims[self._reported - 1]._number if self._reported > first else self.range.low - 1
        failed = tuple(failed for failed in self._failed if failed.number <= until)
        part = Finished(self.range, failed, until, self._reported - first, numbers)
        self._failed = [failed for failed in self._failed if failed.number > until]
        self.range = replace(self.range, low=until + 1)
        return [part]


class OpenRanges:
    """All ranges of a session, and the reports about them."""

    def __init__(self) -> None:
        self.finished: list[Finished] = []
        """Reports for the next call to the store."""
        self._open: list[OpenRange] = []

    def __bool__(self) -> bool:
        """Whether any task is not settled."""
        return bool(self._open)

    def add(self, ranged: OpenRange) -> list[PlainClaim]:
        """Add a claimed range, and return the claims of its tasks."""
        self._open.append(ranged)
        return ranged.claims

    def find(self, id_: str) -> Claim | None:
        """The unsettled claim of a task; None: there is none."""
        for ranged in self._open:
            prefix = f"{PLAIN}{ranged.range.part}-"
            if id_.startswith(prefix):
                for claim in ranged.left():
                    if id_ == f"{prefix}{claim._number}":
                        return claim
        return None

    def settle(self, claim: Claim, change: Change | None, now: Callable[[], float]) -> None:
        """Settle a task of a range: done (None), or not."""
        assert isinstance(claim, PlainClaim)
        claim.open = False
        if change is not None:
            claim._range.undone(claim, change)
        self._settled(claim._range, 1, now)

    def all_done(self, claims: Sequence[Claim], now: Callable[[], float]) -> None:
        """Settle those of the claims that are in ranges: they are done."""
        mine = [claim for claim in claims if claim._range is not None and claim.open]
        for claim in mine:
            claim.open = False
        for ranged, count in Counter([claim._range for claim in mine]).items():
            self._settled(ranged, count, now)

    def _settled(self, ranged: OpenRange, count: int, now: Callable[[], float]) -> None:
        if ranged.settled(count, now):
            self._open.remove(ranged)
            self.finished.append(ranged.finished())

    def since(self) -> float:
        """Since when there have been unreported settlements."""
        return min([ranged.since for ranged in self._open if ranged.is_new], default=math.inf)

    def take(self, begun: Sequence[Claim], before: float) -> list[Finished]:
        """The reports to send now: ended ranges, tasks settled before `before`, and those that have begun."""
        for ranged in self._open:
            mine = [claim for claim in begun if isinstance(claim, PlainClaim) and claim._range is ranged]
            if mine or (ranged.is_new and ranged.since <= before):
                self.finished += ranged.so_far(mine)
        finished, self.finished = self.finished, []
        return finished

    def finish_now(self) -> None:
        """Give back the unsettled tasks."""
        self.finished += [ranged.finish_now() for ranged in self._open]
        self._open.clear()

    def lose_all(self) -> None:
        """Drop all claims, which are no longer this session's."""
        lost, self._open = self._open, []
        self.finished.clear()
        for ranged in lost:
            for claim in ranged.left():
                claim._lose()


def _again(row: Row, change: Change) -> Insert:
    """The ordinary task, with the same id, that an undone plain task becomes."""
    return Insert(
        row.queue if change.queue is None else change.queue,
        row.json,
        row.id,
        delay=change.delay or 0,
        attempt=row.attempt if change.attempt is None else change.attempt,
        error=change.error or "",
        priority=change.priority or 0,
        keep_for=change.kept.keep_for if change.kept else 0,
    )
