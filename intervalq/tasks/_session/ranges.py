"""Plain tasks claimed in ranges: each is settled separately, and finished ranges are reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from intervalq.tasks._claim.endings import unused
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._spec.ids import PLAIN
from intervalq.tasks.rules import Change, Failed, Finished, Insert, Range, Row


class OpenRange:
    """A range of plain tasks, some of which are not settled yet."""

    def __init__(self, range_: Range, tasks: Sequence[tuple[int, str]], session: str, *, begun: bool) -> None:
        self.range = range_
        self.is_new = False
        """Whether some settlements have not been reported to the store."""
        self.since = 0.0
        """Since when, on the session's clock."""
        prefix = f"{PLAIN}{range_.part}-"
        queue = range_.queue
        row = Row("", 1, queue, 0, "", claims=1, attempt=begun, session=session, begun=begun)
        middle, end = row[1:4], row[5:]
        # Built by position and in one go, because there are very many.
        new = tuple.__new__
        self.rows = [new(Row, (f"{prefix}{number}", *middle, json, *end)) for number, json in tasks]
        self._reported = 0  # how many, from the first on, the store knows to be settled
        self._open = len(self.rows)
        self._claims: list[Claim] = []
        self._failed: list[Failed] = []

    def claims(self, claims: list[Claim]) -> None:
        """Set the claims of its tasks."""
        self._claims = claims

    def settle(self, claim: Claim, change: Change | None) -> bool:
        """Settle one task: done (None), or not; returns whether it was the last one."""
        if change is not None:
            self._failed.append(Failed(_number(claim._row), _again(claim._row, change)))
        self._open -= 1
        self.is_new = True
        return not self._open

    def done(self, count: int) -> bool:
        """Settle several tasks that are done; returns whether the last one was among them."""
        self._open -= count
        self.is_new = True
        return not self._open

    def finish_now(self) -> list[Row]:
        """Give back the unsettled tasks, and return them."""
        left = [claim for claim in self._claims if claim.open]
        for claim in left:
            self.settle(claim, unused(claim._row))
            claim._lose()
        return [claim._row for claim in left]

    def finished(self) -> Finished:
        """The final report to the store."""
        return Finished(self.range, tuple(self._failed))

    def so_far(self, begun: Iterable[Claim]) -> list[Finished]:
        """The reports before that, if any: the first settled tasks, and those that have begun."""
        first = self._reported
        while self._reported < len(self._claims) and not self._claims[self._reported].open:
            self._reported += 1
        self.is_new = False
        numbers = tuple(_number(claim._row) for claim in begun)
        if self._reported == first and not numbers:
            return []
        until = _number(self.rows[self._reported - 1]) if self._reported > first else self.range.low - 1
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

    def add(self, ranged: OpenRange, claims: list[Claim]) -> None:
        """Add a claimed range, with the claims of its tasks."""
        ranged.claims(claims)
        self._open.append(ranged)

    def settle(self, claim: Claim, change: Change | None, now: Callable[[], float]) -> None:
        """Settle a task of a range: done (None), or not."""
        ranged = claim._range
        assert isinstance(ranged, OpenRange)
        if not ranged.is_new:
            ranged.since = now()
        if ranged.settle(claim, change):
            self._open.remove(ranged)
            self.finished.append(ranged.finished())

    def all_done(self, claims: Sequence[Claim], held: dict[str, Claim], now: Callable[[], float]) -> None:
        """Settle those of the claims that are in ranges and `held`, and remove them there: they are done."""
        counts: dict[OpenRange, int] = {}
        for claim in claims:
            ranged = claim._range
            if isinstance(ranged, OpenRange) and held.pop(claim._row.id, None) is claim:
                claim.open = False
                counts[ranged] = counts.get(ranged, 0) + 1
        for ranged, count in counts.items():
            if not ranged.is_new:
                ranged.since = now()
            if ranged.done(count):
                self._open.remove(ranged)
                self.finished.append(ranged.finished())

    def since(self) -> float:
        """Since when there have been unreported settlements."""
        return min([ranged.since for ranged in self._open if ranged.is_new], default=math.inf)

    def take(self, begun: Sequence[Claim], before: float) -> list[Finished]:
        """The reports to send now: ended ranges, tasks settled before `before`, and those that have begun."""
        for ranged in self._open:
            mine = [claim for claim in begun if claim._range is ranged]
            if mine or (ranged.is_new and ranged.since <= before):
                self.finished += ranged.so_far(mine)
        finished, self.finished = self.finished, []
        return finished

    def finish_now(self) -> list[Row]:
        """Give back the unsettled tasks, and return them."""
        rows: list[Row] = []
        for ranged in self._open:
            rows += ranged.finish_now()
            self.finished.append(ranged.finished())
        self._open.clear()
        return rows

    def clear(self) -> None:
        """Forget all ranges, which are no longer this session's."""
        self._open.clear()
        self.finished.clear()


def _number(row: Row) -> int:
    return int(row.id.rpartition("-")[2])


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
