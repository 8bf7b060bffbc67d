"""Judges of efficiency: without faults, no slot stays empty while jobs wait, and few requests are sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Final

from intervalq._spec.record import STARTS
from simulation.facts import Miss, ObservedJob, Start
from simulation.judges.clocks import blur
from simulation.judges.findings import Findings, named
from simulation.judges.starts import Starts
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_AHEAD: Final = 4
"""How many times a caller comes back for each time that it may stay away, which leaves a slot empty."""

_TRIPS: Final = 12
"""The round trips in which a process can learn the store's clock, take a ticket and request its grant."""

_EACH: Final = 3
"""The most requests per job: for its ticket, its grant, and sometimes a better estimate of the clock."""

_SHORT: Final = 0.001
"""The interval, in seconds, below which a process reads the store's clock again before many slots."""

_FIRST: Final = 8
"""The requests that a process sends until it knows the store's clock."""

_LOOKS: Final = 5
"""How often a process reads the store's clock in a row if its estimate is too bad for the tolerance."""

_SILENT: Final = 0.25
"""Seconds without an answer after which a process may read the store's clock before its next request."""

_REPEATS: Final = 40
"""The most grants of one slot. Where a process is stopped again and again, there were up to twelve."""

_SETTLED: Final = 4
"""Seconds between two questions whether a slot may come sooner, on average."""

_SLACK: Final = 0.1
"""The part of a window, and of an interval, that a limit may waste."""

_LATE: Final = 0.01
"""Allowance for timers of processes without faults, and for rounding, in seconds."""


def wasted(seen: Observer, plan: Plan) -> Findings:
    """While a job waits, two consecutive starts are at most an interval and the tolerance apart.

    The job must have been added before the earlier start, so that an interval is enough to get the next slot.
    With limits, slots wait for windows.
    """
    if plan.limits or not _is_calm(seen, plan):
        return
    enough = _TRIPS * _slowest(seen)
    rate = 1 + plan.store_ppm / 1e6
    known = Starts(seen, plan)
    empty: list[tuple[Start, Start, float]] = []
    for first, second in pairwise(sorted(seen.starts, key=lambda start: start.at)):
        if not second.grants or first.record != second.record:
            continue
        settings = second.grants[-1].settings
        step = settings.interval / 1e6 / rate
        far = 3 * blur(seen, second.job.process, second.at)
        if far > 2 * second.grants[-1].latest:
            continue  # too far away: it sends more requests, or begins when its slot may have come
        # A slot that is granted with `at_once` may be used before it comes.
        slot = max([first.at, *(grant.slot for grant in first.grants if grant.at_once)])
        over = second.at - slot - step - second.grants[-1].latest - _LATE
        # One job may begin earlier, another later, by their errors of the store's clock.
        over -= max(3 * known.error(first.at, second), far)
        over -= _looks(seen, second.job.process) * _slowest(seen)
        if over > 0 and step > enough and _waits(seen, first.at, second.at):
            empty.append((first, second, over))
    if len(empty) > _may_stay_away(seen, plan):
        first, second, over = empty[-1]
        late = f"ticket {second.ticket} began {over:.6f} s too late after ticket {first.ticket}"
        yield second.at, f"{len(empty)} times a slot passed empty while a job waited: {late}"


def expected(seen: Observer, plan: Plan) -> Findings:
    """A job begins with the ticket that its caller was given, unless a later job could overtake it."""
    if not _is_calm(seen, plan) or seen.misses or len({job.plan.priority for job in seen.jobs}) > 1:
        return
    if _TRIPS * _slowest(seen) > plan.interval:
        return  # a slot may be over by the time that its process knows the clock
    tolerance = min(seen.tolerances.values(), default=0.0)
    if plan.burst > 1 and _slowest(seen) > tolerance:
        return  # the first slot of the credit may be over by the time that its process hears of it
    late = _late_by(plan, tolerance)
    for start in seen.starts:
        ticket = start.job.expects
        if start.job.process.name in late:
            continue
        if ticket is not None and start is start.job.starts[0] and start.ticket != ticket:
            yield (
                start.at,
                f"job {start.job.number} was given ticket {ticket}, and began with {start.ticket}",
            )


def roomy(seen: Observer, plan: Plan) -> Findings:
    """Without faults, a job that comes alone begins an interval after the last one if windows have room.

    All jobs count with their estimates, or with what they took, whichever is more, and for longer than a
    window. With an edge, windows are those of the store's clock; these are not judged.
    """
    rules = [limit.rule() for limit in plan.limits]
    if not rules or any(rule.edge is not None for rule in rules) or any(job.plan.fails for job in seen.jobs):
        return
    if not _is_calm(seen, plan, cancels=True):
        return
    trips, tolerance = _TRIPS * _slowest(seen), min(seen.tolerances.values(), default=0.0)
    for start in seen.starts:
        job = start.job
        others = [each for each in seen.jobs if each is not job and each.added < start.at]
        if any(_left(each) > job.added - trips for each in others) or start is not job.starts[0]:
            continue
        before = [each for each in seen.starts if each.at < start.at]
        soonest = max([job.added, *(each.at + plan.interval for each in before)])
        until = soonest + trips + tolerance + plan.burst * plan.interval * _SLACK + _LATE
        late = [
            (rule.window + rule.jitter) / 1e6 * (1 + _SLACK) + plan.burst * plan.interval + tolerance
            for rule in rules
        ]
        has_room = all(
            _takes(start, rule.unit)
            + sum(_takes(each, rule.unit) for each in before if each.at > soonest - length)
            <= rule.most
            for rule, length in zip(rules, late, strict=True)
        )
        if has_room and start.at > until:
            yield (
                start.at,
                f"{named(start)} came alone at {job.added:.6f}, and could have begun by {until:.6f}",
            )


def _takes(start: Start, unit: str) -> int:
    """What a job takes of a limit at most."""
    if unit == STARTS:
        return start.job.plan.cost
    return max(start.job.plan.units.get(unit, 0), start.took.get(unit, 0))


def turns(seen: Observer, plan: Plan) -> Findings:
    """With a `lookahead` of one, processes take turns: none starts two jobs while another's job waits.

    That job must have waited for two intervals, and since before the second ticket was taken or the first one
    granted, because tickets that were taken before are used before. A ticket that replaces a missed one
    doesn't count as a second one, and a process that misses an earlier ticket has had its turn. If the first
    ticket was granted more than an interval before its job began, the second one was taken that much ahead
    of its turn: then a process that has started a job since has had its turn, too.
    """
    if not _is_calm(seen, plan) or _TRIPS * _slowest(seen) > plan.interval or plan.burst > 1:
        return
    strict = {each.name for each in plan.processes if each.options.get("lookahead") == 1}
    own: dict[Process, list[Start]] = defaultdict(list)
    for start in seen.starts:
        if start.job.process.name in strict:
            own[start.job.process].append(start)
    for process, starts in own.items():
        for first, second in pairwise(starts):
            taken = max([*seen.issues[second.slot][:1], *(grant.at for grant in first.grants[:1])])
            since = min(first.at - 2 * plan.interval, taken)
            is_ahead = any(grant.at < first.at - plan.interval for grant in first.grants[:1])
            if any(miss.process is process and miss.at in seen.issues[second.slot] for miss in seen.misses):
                continue
            for other, others in own.items():
                begin = taken if is_ahead else first.at
                if other is process or any(begin < start.at < second.at for start in others):
                    continue
                if any(miss.process is other and _is_turn(seen, miss, since, second) for miss in seen.misses):
                    continue  # it woke too late for its slot, and has lost its turn
                if _is_waiting(seen, other, since, second.at):
                    yield second.at, f"{named(second)} began after {named(first)}, and {other.name} waits"


def _is_turn(seen: Observer, miss: Miss, since: float, second: Start) -> bool:
    """Whether a missed ticket precedes that of a start, even if it was missed only afterwards."""
    if since <= miss.at <= second.at:
        return True
    is_before = miss.slot[0] == second.record and miss.slot[1] < second.ticket
    return is_before and miss.at > second.at and seen.issues[miss.slot][0] < second.at


def _is_waiting(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a job of a process waits from one instant to another."""
    return any(job.process is process and job.added < begin and _left(job) >= end for job in seen.jobs)


def asked(seen: Observer, plan: Plan) -> Findings:
    """A process sends few requests per job, one more when its last waiting job is gone, and some at first.

    Its estimate of the store's clock ages, so after a silence it may read the clock before it asks. Commands
    of its users don't count.
    """
    if not _is_calm(seen, plan):
        return
    each = _EACH if plan.interval >= _SHORT else 2 * _EACH
    began: dict[Process, int] = defaultdict(int)
    for start in seen.starts:
        began[start.job.process] += 1
    for process, slots in _lost_to_late_timers(seen, plan).items():
        began[process] += slots
    for process, questions in seen.questions.items():
        if process.name == "operator":
            continue
        most = (each + _looks(seen, process)) * began[process] + _rows(seen, process) + _FIRST
        most += sum(who == process.name for _, who, _, _ in plan.verbs)
        most += sum(sent - back > _SILENT for (_, back), (sent, _) in pairwise(seen.exchanges[process]))
        if any(limit.unit != STARTS for settings in seen.issued.values() for limit in settings.limits):
            # A slot far ahead may come sooner, because others' jobs took less: that is asked now and then.
            most += int((questions[-1] - questions[0]) / _SETTLED)
        if len(questions) > most:
            yield (
                questions[-1],
                f"{process.name} asked {len(questions)} times for {began[process]} jobs, {most:.0f} suffice",
            )


def _lost_to_late_timers(seen: Observer, plan: Plan) -> Counter[Process]:
    """How many slots were unused or granted again, for processes whose timers may be late for a slot."""
    late = _late_by(plan, plan.interval / 2)
    used = {start.slot for start in seen.starts}
    lost: Counter[Process] = Counter()
    for slot, grants in seen.grants.items():
        if grants[-1].process.name in late:
            lost[grants[-1].process] += len(grants) - (slot in used)
    return lost


def _late_by(plan: Plan, seconds: float) -> set[str]:
    """The processes whose timers may be late by more than so many seconds."""
    return {each.name for each in plan.processes if each.lateness > seconds}


def _slowest(seen: Observer) -> float:
    """The longest round trip of any process, in seconds."""
    return max((back - sent for had in seen.exchanges.values() for sent, back in had), default=0.0)


def _looks(seen: Observer, process: Process) -> int:
    """How often a process reads the clock before a slot if its round trips are long for the tolerance."""
    longest = max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
    return _LOOKS if longest * 3 > min(seen.tolerances.values(), default=0.0) * 2 else 0


def _is_calm(seen: Observer, plan: Plan, *, cancels: bool = False) -> bool:
    """Whether there were no faults or holds, and every job was to begin in one slot; perhaps not all did."""
    news = (
        seen.holds, seen.changes, seen.losses, seen.steps, seen.limited, seen.stalls, seen.reclaims,
        seen.closed, seen.died, seen.copies, any(seen.failures.values()),
    )  # fmt: skip
    if any(news) or any(each.turn is not None or each.lateness > _LATE / 2 for each in plan.processes):
        return False
    if any((job.cancelled and not cancels) or job.came_late for job in seen.jobs):
        return False
    return all(
        job.plan.cost == 1 and job.plan.timeout is None and (cancels or job.plan.cancelled_after is None)
        for job in seen.jobs
    )


def _may_stay_away(seen: Observer, plan: Plan) -> int:
    """How many slots may stay empty because a caller stayed away that had come back several times before.

    They are taken ahead wherever jobs are added, or retried, while nobody waits in their process.
    """
    if any(each.callers for each in plan.processes):
        return len(seen.starts) // _AHEAD
    again: Counter[Process] = Counter()
    for start in seen.starts:
        again[start.job.process] += start is not start.job.starts[0]
    return sum((_rows(seen, process) + count) // _AHEAD for process, count in again.items())


def _waits(seen: Observer, begin: float, end: float) -> bool:
    """Whether a job waits from before one instant until after another."""
    return any(job.added < begin and _left(job) >= end for job in seen.jobs)


def _left(job: ObservedJob) -> float:
    """When a job first left the wait queue."""
    return job.starts[0].at if job.starts else job.ended if job.outcome is not None else float("inf")


def _rows(seen: Observer, process: Process) -> int:
    """How many times the wait queue of a process became non-empty; a thread that has a slot doesn't wait."""
    own = sorted((job for job in seen.jobs if job.process is process), key=lambda job: job.added)
    rows, until = 0, float("-inf")
    for job in own:
        rows += job.added > until
        until = max(until, job.in_hand[0][0] if job.in_hand else _left(job))
    return rows


def repeats(seen: Observer, plan: Plan) -> Findings:
    """A process isn't granted the same slot again and again, because it can't use it."""
    del plan
    for (_, ticket), grants in seen.grants.items():
        if len(grants) > _REPEATS:
            at, process = grants[_REPEATS].at, grants[_REPEATS].process
            yield at, f"{process.name} was granted ticket {ticket} {len(grants)} times"
