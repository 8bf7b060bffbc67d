"""The verdict: what the called service and the driver wrote down, against the promises. Pure.

Spacing is judged twice. By *arrivals*: calls reach the service at least an interval less the tolerance apart.
Where they don't, the *last checks* of the two jobs decide: a job that was checked in time and frozen after,
before its first instruction, is the one case that no queue can help. It shows in what the job says: when its
last check was, and that its event loop made no turn since. A check that was itself too early or too late is
never excused by that: the checks must keep the same distance.

Allowances, each counted: see `Verdict`. They are those of `simulation`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

GRAIN: Final = 50
"""Clocks are read in whole microseconds, one after the other, a few times."""


@dataclass(frozen=True, slots=True)
class Start:
    """A call as it arrived; instants are microseconds since boot."""

    at: int
    shard: str
    number: int
    generation: str
    ticket: int
    check: int
    """The reading of the clock at the job's last check."""
    tolerance: int
    """How late after its slot its process allowed it to begin, as `inspect().spacing` would have said."""
    heard: int
    """When its process sent the last question that the store had answered by then."""
    straight: bool
    """Whether its event loop made no turn between the last check and its first instruction."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A process that didn't run (SIGSTOP) until `end` (SIGCONT)."""

    shard: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Loss:
    """The store lost acknowledged writes, at some time between these."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Step:
    """The store's clock was set forward or back by this many microseconds, at some time between these."""

    begin: int
    end: int
    by: int


@dataclass(frozen=True, slots=True)
class Report:
    """The final report of a process that was not killed."""

    shard: str
    begun: int
    """Jobs that began."""
    ended: dict[str, int]
    """How calls ended: `returned`, or the name of a documented error."""
    lost: tuple[int, ...] = ()
    """Calls that never ended."""
    wrong: tuple[str, ...] = ()
    """Undocumented errors, and whatever else went wrong."""
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Log:
    """Everything that is known about a run."""

    interval: int
    starts: Sequence[Start]
    live: Sequence[str] = ()
    """Processes that were not killed, each of which owes a report."""
    reports: Sequence[Report] = ()
    stops: Sequence[Stop] = ()
    losses: Sequence[Loss] = ()
    steps: Sequence[Step] = ()
    last_fault: int = 0
    again: int = 0
    """The number of jobs that must begin after the last fault."""


@dataclass(slots=True)
class Verdict:
    """The findings: broken promises, and how often each allowance was needed."""

    starts: int = 0
    short: int = 0
    """Gaps between arrivals under the interval less the tolerance; each has one of these causes:"""
    stopped: int = 0
    """... the driver stopped one of the two between its last check and its first instruction."""
    frozen: int = 0
    """... the machine froze one of the two there."""
    lost: int = 0
    """... it is the one early start after the store lost acknowledged writes."""
    old: int = 0
    """... a job used a ticket from before such a loss, which its process had not learned of."""
    stepped: int = 0
    """... it is the one early start for a step forward of the store's clock; or a job was granted before a
    step, and its process had not heard from the store since.
    """
    widened: int = 0
    """... its process knew the store's clock too badly for the tolerance; `inspect().spacing` says so."""
    least: float = 0.0
    """The shortest gap between two last checks, in intervals."""
    allowed: list[str] = field(default_factory=list)
    """Starts that were early, each with what allows it."""
    broken: list[str] = field(default_factory=list)

    @property
    def unexplained(self) -> int:
        """Short gaps that no allowance explains."""
        return self.short - sum((self.stopped, self.frozen, self.lost, self.old, self.stepped, self.widened))


def judge(log: Log) -> Verdict:
    """Compare a run with the promises."""
    verdict = Verdict(starts=len(log.starts))
    checked = sorted(log.starts, key=lambda start: start.check)
    if len(checked) > 1:
        verdict.least = (
            min(later.check - earlier.check for earlier, later in pairwise(checked)) / log.interval
        )
    excused = _checks(log, checked, verdict)
    verdict.allowed = [f"{why}: {_named(start)}" for start, why in excused.items() if why != "broken"]
    _arrivals(log, excused, verdict)
    for court in (_slots, _order, _records, _calls, _liveness):
        verdict.broken.extend(court(log, checked))
    return verdict


def _needed(log: Log, one: Start, other: Start) -> int:
    """How far apart two jobs must begin, by what their own processes can guarantee."""
    return log.interval - max(log.interval // 10, one.tolerance, other.tolerance)


def _checks(log: Log, checked: list[Start], verdict: Verdict) -> dict[Start, str]:
    """Judge the distance of last checks; return the starts that an allowance excuses, and which."""
    excused: dict[Start, str] = {}
    losses = list(log.losses)
    forward = [step for step in log.steps if step.by > 0]
    before: Start | None = None
    for start in checked:
        earlier, before = before, start
        if earlier is None or start.check - earlier.check >= _needed(log, earlier, start) - GRAIN:
            continue
        loss = next((loss for loss in reversed(losses) if loss.begin <= start.check), None)
        step = next((step for step in forward if _between(log, step, earlier, start)), None)
        if _outlived(log, start) or _is_unaware(log, start):
            excused[start] = "old" if _outlived(log, start) else "stepped"
            before = earlier  # the next one must keep its distance from the previous one
        elif _outlived(log, earlier) and earlier.generation != start.generation:
            excused[earlier] = "old"
        elif _is_unaware(log, earlier):
            excused[earlier] = "stepped"
        elif loss is not None and earlier.generation != start.generation:
            losses.remove(loss)
            excused[start] = "lost"
        elif step is not None:
            forward.remove(step)
            excused[start] = "stepped"
        else:
            verdict.broken.append(
                f"spacing: {_named(earlier)} and {_named(start)} were checked "
                f"{start.check - earlier.check} us apart; promised are {_needed(log, earlier, start)} us"
            )
            excused[start] = "broken"
    return excused


def _arrivals(log: Log, excused: dict[Start, str], verdict: Verdict) -> None:
    """Sort the short gaps between arrivals by their causes."""
    for start in log.starts:
        if start.at < start.check - GRAIN:
            verdict.broken.append(f"clock: {_named(start)} arrived before it was checked")
        if not start.straight:
            verdict.broken.append(
                f"check: {_named(start)} waited between its last check and its first instruction"
            )
    for earlier, later in pairwise(sorted(log.starts, key=lambda start: start.at)):
        if later.at - earlier.at >= log.interval - log.interval // 10 - GRAIN:
            continue
        verdict.short += 1
        why = excused.get(later) or excused.get(earlier)
        if why == "broken":
            continue  # counted already
        if why is not None:
            setattr(verdict, why, getattr(verdict, why) + 1)
        elif later.at - earlier.at >= _needed(log, earlier, later) - GRAIN:
            verdict.widened += 1
        elif _was_stopped(log, earlier) or _was_stopped(log, later):
            verdict.stopped += 1
        elif abs(later.check - earlier.check) >= _needed(log, earlier, later) - GRAIN:
            verdict.frozen += 1
        # else: an excused start lies between the two


def _was_stopped(log: Log, start: Start) -> bool:
    """Whether the driver stopped its process after the last check, and resumed it before the call."""
    return any(stop.shard == start.shard and start.check <= stop.end <= start.at for stop in log.stops)


def _outlived(log: Log, start: Start) -> bool:
    """Whether a start is on a ticket from before a loss, and comes after it.

    Its process had not learned of the loss: it would know the new generation of a new record.
    """
    first = min((each.check for each in log.starts if each.generation == start.generation), default=0)
    return any(first < loss.begin <= start.check for loss in log.losses)


def _is_unaware(log: Log, start: Start) -> bool:
    """Whether its process had not learned of a step of the store's clock when a job began."""
    return any(step.begin <= start.check and start.heard <= step.end for step in log.steps)


def _between(log: Log, step: Step, earlier: Start, later: Start) -> bool:
    """Whether a step may lie between the time when the earlier one was granted, and the later one."""
    return step.end >= earlier.check - log.interval and step.begin <= later.check


def _slots(log: Log, checked: list[Start]) -> Iterator[str]:
    """Check that a slot starts at most one job."""
    del log
    used: dict[tuple[str, int], Start] = {}
    for start in checked:
        slot = (start.generation, start.ticket)
        if slot in used:
            yield f"slot: {_named(used[slot])} and {_named(start)} used the same slot"
        used[slot] = start


def _order(log: Log, checked: list[Start]) -> Iterator[str]:
    """Check that slots are used in the order of their tickets."""
    last: dict[str, Start] = {}
    for start in checked:
        earlier = last.get(start.generation)
        last[start.generation] = start
        if earlier is None or earlier.ticket < start.ticket:
            continue
        moved = any(_between(log, step, earlier, start) for step in log.steps) or _is_unaware(log, start)
        if start.tolerance < log.interval and not moved and earlier.ticket != start.ticket:
            yield f"order: {_named(start)} began after {_named(earlier)}"


def _records(log: Log, checked: list[Start]) -> Iterator[str]:
    """Check that a record is created anew only when the previous one was lost."""
    made: dict[str, Start] = {}
    for start in checked:
        made.setdefault(start.generation, start)
    for number, start in enumerate(list(made.values())[1:], 1):
        if sum(loss.begin <= start.check for loss in log.losses) < number:
            yield f"record: {_named(start)} is of a record made anew although none was lost"


def _calls(log: Log, checked: list[Start]) -> Iterator[str]:
    """Check that in a live process, every call ends once."""
    calls = Counter((start.shard, start.number) for start in checked)
    for (shard, number), times in calls.items():
        if times > 1:
            yield f"call: job {number} of {shard} was started {times} times"
    arrived: dict[str, int] = defaultdict(int)
    for start in checked:
        arrived[start.shard] += 1
    reports = {report.shard: report for report in log.reports}
    for shard in log.live:
        report = reports.get(shard)
        if report is None:
            yield f"call: {shard} lived, and did not say how its calls ended"
            continue
        for number in report.lost:
            yield f"call: call {number} of {shard} never ended"
        for what in report.wrong:
            yield f"call: {shard}: {what}"
        returned = report.ended.get("returned", 0)
        if report.begun != returned:
            yield f"call: {shard} began {report.begun} jobs, of which {returned} returned"
        if report.begun != arrived[shard]:
            yield f"call: {shard} began {report.begun} jobs, and {arrived[shard]} calls arrived"


def _liveness(log: Log, checked: list[Start]) -> Iterator[str]:
    """Check that the queue starts jobs again after the last fault."""
    after = sum(start.check > log.last_fault for start in checked)
    if after < log.again:
        yield f"liveness: {after} jobs began after the last fault, {log.again} should have"


def _named(start: Start) -> str:
    return f"job {start.number} of {start.shard} (ticket {start.ticket} of {start.generation}, at {start.at})"
