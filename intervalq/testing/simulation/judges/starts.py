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

from intervalq.testing.simulation.facts import Grant, Start
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan

GRAIN: Final = 10e-6
"""Allowance for readings that are rounded to microseconds several times, in seconds."""

AGEING: Final = 2 / 2_000
"""How fast the estimate of another clock gets worse, in seconds per second: both may be off by 500 ppm."""

_UNSEEN: Final = 1.0
"""How long a step of the store's clock may stay unnoticed, in seconds."""

Findings = Iterator[tuple[float, str]]


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
        self._ways = Ways(seen)
        lost = [Fault(at, 1 + self._beside(at)) for at in seen.losses]
        steps = [Fault(at, 1 + self._granted_before(at), by) for at, by in seen.steps]
        self._faults = sorted([*lost, *steps], key=lambda fault: fault.at)
        self._excused: set[int] = set()

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
        the smaller interval counts between two starts, and the larger burst and tolerance for all.
        """
        kept: list[tuple[Start, float]] = []  # each with the sum of the intervals before it
        for start in starts:
            paid = kept[-1][1] + _step(kept[-1][0], start) if kept else 0.0
            near = next((each for each in self._candidates(kept) if self._lacks(each, start, paid) > 0), None)
            if near is None:
                kept.append((start, paid))
                continue
            if self._excuses(near[0], start):
                if self._is_out_of_place(start, near[0]):
                    continue
                kept = [(start, 0.0)]
                continue
            gap, lacks = start.at - near[0].at, self._lacks(near, start, paid)
            yield (
                start.at,
                f"{named(near[0])} and {named(start)} are {gap:.6f} s apart, {lacks:.6f} s too near",
            )
            kept = [(start, 0.0)]

    @staticmethod
    def _candidates(kept: list[tuple[Start, float]]) -> Iterator[tuple[Start, float]]:
        """The last start, and the one before it that demands the most: the latest one for its place."""
        if kept:
            yield kept[-1]
        if len(kept) > 1:
            # settings may differ between starts: the latest one for each
            worst: dict[tuple[float, int], tuple[Start, float]] = {}
            for each in kept:
                kind = _latest(each[0]), _burst(each[0])
                if kind not in worst or each[0].at - each[1] > worst[kind][0].at - worst[kind][1]:
                    worst[kind] = each
            yield from worst.values()

    def _lacks(self, earlier: tuple[Start, float], start: Start, paid: float) -> float:
        """By how much a start is too close to an earlier one, in seconds; 0 or less: it isn't."""
        first, before = earlier
        burst = max(_burst(first), _burst(start))
        interval = max(_interval(first), _interval(start))
        wide = max(_tolerance(first), _tolerance(start))
        in_row = paid - before > _step(first, start) + GRAIN and burst == 1
        error = max(self.error(_granted(first), first), self.error(_granted(first), start))
        needed = paid - before - (burst - 1) * interval - (2 if in_row else 1) * wide - 2 * error
        lacks = needed - (start.at - first.at) * self._rate - GRAIN
        if lacks > 0:
            lacks -= sum(self._ways.unseen(each.job.process, each.at) for each in (first, start))
        return lacks

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


class Ways:
    """What processes can know of steps of the store's clock from their round trips."""

    def __init__(self, seen: Observer) -> None:
        self._seen = seen
        self._shown: dict[tuple[Process, float], float] = {}

    def shown(self, process: Process, step: float, at: float) -> bool:
        """Whether an answer must have shown a step by an instant, because it contradicts an earlier answer.

        The bounds from two answers overlap if the step is no longer than both bounds together are wide.
        """
        key = process, step
        if key not in self._shown:
            self._shown[key] = self._first_proof(process, step)
        return self._shown[key] < at

    def unseen(self, process: Process, at: float) -> float:
        """By how much a process may be wrong about the clock because it can't tell steps from delays.

        Bounds from before such a step narrow the later ones until they have aged.
        """
        had = self._seen.exchanges[process]
        return sum(
            abs(by)
            for step, by in self._seen.steps
            if step < at
            and any(step < back <= at for _, back in had)
            and any(sent <= step for sent, _ in had)  # an answer under way may be from before it
            and not self.shown(process, step, at)
        )

    def _first_proof(self, process: Process, step: float) -> float:
        had, steps = self._seen.exchanges[process], self._seen.steps
        length = next(abs(by) for at, by in steps if at == step)
        earlier = max((at for at, _ in steps if at < step), default=float("-inf"))
        later = min((at for at, _ in steps if at > step), default=float("inf"))
        old = [(sent, back) for sent, back in had if earlier < sent and back <= step]
        old = old or [(sent, back) for sent, back in had if earlier < sent <= step]
        for sent, back in sorted(had, key=lambda exchange: exchange[1]):
            if sent <= step or back >= later:
                continue
            known = min((one - zero + AGEING * (back - one) for zero, one in old), default=float("inf"))
            if length > known + back - sent + GRAIN:
                return back
        return float("inf")


def candour(seen: Observer) -> Findings:
    """A shard reports an error only if it is too far from the store, and none larger than follows from that.

    A process can't know the clock better than to its shortest round trip, and its knowledge ages. After a
    step of the clock the longest round trip counts, because nobody knows which of them are from before it.
    """
    for (at, record, error, least), (asked, process) in zip(seen.errors, seen.reports, strict=True):
        if process is None:
            continue
        # Bounds are whole microseconds, rounded up each time. An answer may come at the same instant.
        known = 1.5 * max(blur(seen, process, asked, answered=answered) for answered in (True, False))
        if error > known + GRAIN or (error > 0 and known * 3 < least * 2 - GRAIN):
            yield (
                at,
                f"{process.name} reports an error of {error:.6f} s to {record}, not {known:.6f} s",
            )


def blur(seen: Observer, process: Process, at: float, *, answered: bool = True) -> float:
    """The largest error with which a process may know the store's clock, by its round trips so far.

    Args:
        seen: what was observed.
        process: whose error.
        at: the instant.
        answered: whether an answer that arrives at that very instant counts.
    """
    stepped = max((step for step, _ in seen.steps if step <= at), default=None)
    had = [(sent, back) for sent, back in seen.exchanges[process] if back < at or (answered and back == at)]
    blurs = [
        back - sent + 2e-6 + AGEING * (at - back) for sent, back in had if stepped is None or sent > stepped
    ]
    if stepped is not None:
        return max(blurs or [back - sent + AGEING * (at - back) for sent, back in had[-8:]], default=0.0)
    return min(blurs, default=0.0)


def named(start: Start) -> str:
    """A description of a start."""
    job, ticket = start.job, f"ticket {start.ticket} of {start.record}"
    return f"job {job.number} of {job.process.name} ({ticket}, at {start.at:.6f})"


def _granted(start: Start) -> float:
    return min((grant.at for grant in start.grants), default=start.at)


def _interval(start: Start) -> float:
    return min((grant.settings.interval for grant in start.grants), default=0) / 1e6


def _burst(start: Start) -> int:
    return max((grant.settings.burst for grant in start.grants), default=1)


def _latest(start: Start) -> float:
    return max((grant.latest for grant in start.grants), default=0.0)


def _tolerance(start: Start) -> float:
    """How late a job may begin, without burst credit."""
    return max(
        (grant.latest - (grant.settings.burst - 1) * grant.settings.interval / 1e6 for grant in start.grants),
        default=0.0,
    )


def _step(first: Start, start: Start) -> float:
    """The time from one start to the next by the cost of the first."""
    return first.job.plan.cost * min(_interval(first), _interval(start))
