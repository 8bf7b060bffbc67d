"""Judges of starts: each one against its slot, and all against each other, in true time.

A start is in time from its slot until its tolerance is over. The slot is the one that the store fixed on its
clock in the step that granted it. The only other allowance is the error that the record states at that time
(`inspect().spacing`): by how much shards far from the store may be wrong. `candour` judges that error, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from intervalq.rules import Settings
from simulation.facts import Grant, Start
from simulation.judges.clocks import ClockKnowledge
from simulation.judges.findings import GRAIN, Findings, named
from simulation.observer import Observer
from simulation.plans import Plan

_UNSEEN: Final = 1.0
"""How long a step of the store's clock may stay unnoticed, in seconds."""


@dataclass(slots=True)
class Fault:
    """What docs/promises.md excuses: a step forward of the store's clock, or writes that it lost."""

    at: float
    left: int = 1
    """How many starts it may still excuse."""
    by: float = 0.0
    """How far the clock was stepped, in seconds; 0: writes were lost."""


class Starts:
    """Judges the starts of one run. Excuses are counted over all of its judgements.

    Args:
        seen: what was observed.
        plan: of the run.
    """

    def __init__(self, seen: Observer, plan: Plan) -> None:
        self._seen = seen
        self._rate = 1 + plan.store_ppm / 1e6
        self._ways = ClockKnowledge(seen)
        lost = [Fault(at, 1 + self._beside(at)) for at in seen.losses]
        steps = [Fault(at, 1 + self._granted_before(at), by) for at, by in seen.steps]
        self._faults = sorted([*lost, *steps], key=lambda fault: fault.at)
        self._excused: set[int] = set()
        self._had: dict[int, list[Settings]] = {}

    def judged(self) -> Findings:
        """Every start outside its slot or too close to an earlier one, except the excused ones."""
        early: dict[int, str] = {}
        for start in self._seen.starts:
            if trouble := self._out_of_slot(start):
                early[id(start)] = trouble
        for start in self._seen.starts:
            if id(start) in early and not self._excuses(start, start):
                yield start.at, early[id(start)]
        by_record: dict[str, list[Start]] = defaultdict(list)
        for start in self._seen.starts:
            if self._is_of_lost_record(start):
                continue
            by_record["" if self._seen.losses else start.record].append(start)
        for starts in by_record.values():
            yield from self._too_near(self._by_ticket(starts))

    def _by_ticket(self, starts: list[Start]) -> list[Start]:
        """Starts in ticket order, except where a loss of writes makes tickets incomparable.

        Jobs of a burst may begin in any order, and so may those of shards that know the store's clock worse
        than to an interval. The distance of two slots follows from their tickets.
        """
        ordered: list[Start] = []
        for start in starts:
            place = len(ordered)
            while place and self._is_before(start, ordered[place - 1]):
                place -= 1
            ordered.insert(place, start)
        return ordered

    def _is_before(self, start: Start, other: Start) -> bool:
        """Whether a later start has an earlier ticket than another one."""
        if start.record != other.record or start.ticket >= other.ticket:
            return False
        issued = min([start.at, *self._seen.issues[start.slot], *self._seen.issues[other.slot]])
        return not any(issued <= at <= start.at for at in self._seen.losses)

    def _beside(self, loss: float) -> int:
        """How many starts had tickets that the store, because of a loss, mistook for others.

        It issued them again, or had lost their revocation.
        """
        seen = self._seen
        again = sum(issues[0] < loss < issues[-1] for issues in seen.issues.values())
        dead = seen.revoked_at[loss]
        for start in seen.starts:
            issued = min(seen.issues[start.slot], default=start.at)
            if issued < loss <= start.at and start.ticket <= dead.get(start.record, 0):
                again += 1
        return again

    def _granted_before(self, step: float) -> int:
        """How many starts had slots that were granted before a step of the clock."""
        return sum(
            bool(start.grants) and start.grants[-1].at <= step < start.at for start in self._seen.starts
        )

    def _is_of_lost_record(self, start: Start) -> bool:
        """Whether a job began after its record was lost, with a grant from before that."""
        seen, granted = self._seen, max((grant.at for grant in start.grants), default=start.at)
        gone = [at for at in seen.losses if at not in seen.failovers]
        return any(granted <= at <= start.at for at in gone)

    # --- one start against its slot -----------------------------------------------------------------

    def _out_of_slot(self, start: Start) -> str | None:
        """What is wrong with the instant of a start; None: it is in a slot that was granted to the job."""
        if not start.grants:
            return None  # `places` reports that
        error = self.error(start.grants[-1].at, start)
        begins = [grant.opens for grant in start.grants]
        ends = [max(self._over(grant), self._end(start, grant)) for grant in start.grants]
        for wrong in (error, error + self._ways.unseen(start.job.process, start.at)):
            if any(
                opens - wrong - GRAIN <= start.at <= closes + 2 * wrong + GRAIN
                for opens, closes in zip(begins, ends, strict=True)
            ):
                return None
        if start.at < begins[-1]:
            return f"{named(start)} began {begins[-1] - start.at:.6f} s before its slot"
        return f"{named(start)} began {start.at - ends[-1]:.6f} s after its slot was over"

    def _over(self, grant: Grant) -> float:
        """When a slot is over: its tolerance is measured on the store's clock."""
        return grant.slot + grant.latest / self._rate

    def _end(self, start: Start, grant: Grant) -> float:
        """The latest instant for a job that moves the slots behind its own: the end of the last of them.

        These must directly follow each other, and must have been granted to the same process by then.
        """
        if grant.settings.burst > 1:
            return 0.0
        step, last, ticket = grant.settings.interval / 1e6 / self._rate, grant, start.ticket + 1
        while True:
            behind = [
                other
                for other in self._seen.grants.get((start.record, ticket), ())
                if other.process is grant.process
                and other.heard is not None
                and other.heard <= start.at
                and abs(other.slot - last.slot - step) <= GRAIN
            ]
            if not behind:
                return self._over(last)
            last, ticket = behind[-1], ticket + 1

    def error(self, since: float, start: Start) -> float:
        """The largest error of the store's clock that the record stated between an instant and a start."""
        return self.error_of(start.record, since, start.at)

    def error_of(self, name: str, since: float, until: float) -> float:
        """The largest error that a record stated between two instants."""
        worst = known = 0.0
        for at, record, error, _ in self._seen.errors:
            if record == name and at <= until:
                known = error if at <= since else known
                worst = max(known, error) if at <= since else max(worst, error)
        return max(worst, known) if self._seen.errors else 0.0

    # --- all starts against each other --------------------------------------------------------------

    def _too_near(self, starts: list[Start]) -> Findings:
        """Consecutive starts are an interval each apart, less the tolerance, or twice that for more than two.

        With a burst, it is an interval less for each job that may begin at once. After a change of settings,
        the smaller interval counts between two starts, and the larger burst and tolerance for all. An excused
        start begins a new row, unless it came before its turn: a start with an earlier ticket follows, which
        fits the row before.
        """
        row = _Row(self)
        # the row without the last excused start, and the ticket of that one
        before: tuple[_Row, int] | None = None
        for start in starts:
            near = row.too_near(start)
            if near is not None and before is not None and start.ticket < before[1]:
                row, before = before[0], None
                near = row.too_near(start)
            if near is not None and self._excuses(near[0], start):
                if self._is_out_of_place(start, near[0]):
                    continue
                before, row = (row, start.ticket), _Row(self)
            elif near is not None:
                gap, lacks = start.at - near[0].at, near[1]
                yield (
                    start.at,
                    f"{named(near[0])} and {named(start)} are {gap:.6f} s apart, {lacks:.6f} s too near",
                )
                before, row = None, _Row(self)
            row.add(start)

    def lacks(self, earlier: tuple[Start, float], start: Start, paid: float) -> float:
        """By how much a start is too close to an earlier one, in seconds; 0 or less: it isn't.

        Args:
            earlier: a start, with the sum of the intervals before it.
            start: a later one.
            paid: the sum of the intervals before that.
        """
        first, before = earlier
        burst = max(self.burst(first), self.burst(start))
        interval = max(self._interval(first), self._interval(start))
        wide = max(_tolerance(first), _tolerance(start))
        in_row = paid - before > self.step(first, start) + GRAIN and burst == 1
        error = max(self.error(_granted(first), first), self.error(_granted(first), start))
        needed = paid - before - (burst - 1) * interval - (2 if in_row else 1) * wide - 2 * error
        lacks = needed - (start.at - first.at) * self._rate - GRAIN
        if lacks > 0:
            lacks -= sum(self._ways.unseen(each.job.process, each.at) for each in (first, start))
        return lacks

    def step(self, first: Start, start: Start) -> float:
        """The time from one start to the next by the cost of the first."""
        return first.job.plan.cost * min(self._interval(first), self._interval(start))

    def burst(self, start: Start) -> int:
        """How many jobs might begin at once by the settings that hold for a start."""
        return max((settings.burst for settings in self._settings(start)), default=1)

    def _interval(self, start: Start) -> float:
        return min((settings.interval for settings in self._settings(start)), default=0) / 1e6

    def _settings(self, start: Start) -> list[Settings]:
        """Those of its grants; and if the store lost its ticket, also those with which that was issued.

        If the settings are changed before the store hears of the ticket again, they don't hold for it.
        """
        known = self._had.get(id(start))
        if known is not None:
            return known
        had = [grant.settings for grant in start.grants]
        issued = max(self._seen.issues[start.slot], default=start.at)
        if any(issued < loss <= start.at for loss in self._seen.losses):
            had.append(self._seen.issued[start.slot])
        self._had[id(start)] = had
        return had

    # --- excuses ------------------------------------------------------------------------------------

    def _between(self, first: Start, start: Start) -> float | None:
        """The first fault between the grant of one start and another start."""
        begin = min(_granted(first), _granted(start))
        return next((fault.at for fault in self._faults if begin <= fault.at <= start.at), None)

    def _is_out_of_place(self, start: Start, other: Start) -> bool:
        """Whether this start, and not the other one, is where it is because of a fault."""
        issues = self._seen.issues[start.slot]
        if any(issues[0] < loss < issues[-1] for loss in self._seen.losses if issues):
            return True  # its ticket was issued again
        fault = self._between(other, start)
        return fault is not None and _granted(start) <= fault < start.at and _granted(other) > fault

    def _excuses(self, first: Start, start: Start) -> bool:
        """Whether a fault excuses this start. A fault excuses a start once, whatever promises that breaks.

        The fault must have happened since the tickets were issued, or shortly before: a step shorter than the
        latency is noticed late. It excuses no start with a grant from before it if an answer had shown the
        step to the process.
        """
        if id(start) in self._excused:
            return True
        asked = (*self._seen.issues[first.slot], *self._seen.issues[start.slot])
        begin = min(_granted(first), _granted(start), *asked)
        for fault in self._faults:
            if not fault.left or not begin - _UNSEEN <= fault.at <= start.at:
                continue
            if not any(self._knew(each, fault) for each in (first, start)):
                fault.left -= 1
                self._excused.add(id(start))
                return True
        return False

    def _knew(self, start: Start, fault: Fault) -> bool:
        """Whether a start had a grant from before a step of the clock of which its process knew."""
        granted = start.grants[-1].at if start.grants else start.at
        return (
            granted < fault.at < start.at
            and fault.by != 0
            and self._ways.shown(start.job.process, fault.at, start.at)
        )


def _granted(start: Start) -> float:
    return min((grant.at for grant in start.grants), default=start.at)


def _latest(start: Start) -> float:
    return max((grant.latest for grant in start.grants), default=0.0)


def _tolerance(start: Start) -> float:
    """How late a job may begin, without burst credit."""
    return max(
        (grant.latest - (grant.settings.burst - 1) * grant.settings.interval / 1e6 for grant in start.grants),
        default=0.0,
    )


class _Row:
    """Starts that are promised to be an interval apart, each with the sum of the intervals before it."""

    def __init__(self, judge: Starts) -> None:
        self._judge = judge
        self._kept: list[tuple[Start, float]] = []

    def add(self, start: Start) -> None:
        """Append a start."""
        self._kept.append((start, self._paid(start)))

    def too_near(self, start: Start) -> tuple[Start, float] | None:
        """A start of the row that this one is too close to, and by how much, in seconds; None: none."""
        paid = self._paid(start)
        for each in self._candidates():
            if (lacks := self._judge.lacks(each, start, paid)) > 0:
                return each[0], lacks
        return None

    def _paid(self, start: Start) -> float:
        if not self._kept:
            return 0.0
        last, before = self._kept[-1]
        return before + self._judge.step(last, start)

    def _candidates(self) -> Iterator[tuple[Start, float]]:
        """The last start, and the one before it that demands the most: the latest one for its place."""
        yield from self._kept[-1:]
        if len(self._kept) > 1:
            # settings may differ between starts: the latest one for each
            worst: dict[tuple[float, int], tuple[Start, float]] = {}
            for each in self._kept:
                kind = _latest(each[0]), self._judge.burst(each[0])
                if kind not in worst or each[0].at - each[1] > worst[kind][0].at - worst[kind][1]:
                    worst[kind] = each
            yield from worst.values()
