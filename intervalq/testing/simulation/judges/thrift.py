"""Judges of thrift: where nothing goes wrong, no slot passes empty while jobs wait, and few questions do."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Final

from intervalq.testing.simulation.facts import Miss, ObservedJob, Start
from intervalq.testing.simulation.judges.starts import Findings, Starts, blur, named
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan

_AHEAD: Final = 4
"""A caller that came back at once so many times may stay away the next time: its slot passes empty."""

_TRIPS: Final = 12
"""In so many round trips a process can learn the store's clock, take a ticket and ask about its slot."""

_EACH: Final = 3
"""Questions for a job at most: for a ticket, about its slot, and now and then to know the clock better."""

_SHORT: Final = 0.001
"""Seconds: with shorter intervals, a process looks at the store's clock again before many of its slots."""

_FIRST: Final = 8
"""Questions until a process knows the store's clock."""

_LOOKS: Final = 5
"""So many times in a row a process looks at the store's clock that knows it too badly for the tolerance."""

_SILENT: Final = 0.25
"""Seconds: after so long without an answer, a process may look at the store's clock before it asks."""

_LATE: Final = 0.01
"""Seconds: timers of healthy processes, and microseconds that are rounded."""


def wasted(seen: Observer, plan: Plan) -> Findings:
    """While a job waits, starts follow each other by an interval and the tolerance at most.

    The job must have come before the earlier start: an interval is then long enough to ask for the next slot.
    """
    if not _is_calm(seen, plan):
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
            continue  # too far away: it asks more, and waits, or begins when its slot may have come
        # A slot that is granted at once may be used before it comes.
        slot = max([first.at, *(grant.slot for grant in first.grants if grant.at_once)])
        over = second.at - slot - step - second.grants[-1].latest - _LATE
        # One begins earlier, another later, by as much as they know the store's clock.
        over -= max(3 * known.error(first.at, second), far)
        over -= _looks(seen, second.job.process) * _slowest(seen)
        if over > 0 and step > enough and _waits(seen, first.at, second.at):
            empty.append((first, second, over))
    if len(empty) > _may_stay_away(seen, plan):
        first, second, over = empty[-1]
        late = f"ticket {second.ticket} began {over:.6f} s too late after ticket {first.ticket}"
        yield second.at, f"{len(empty)} times a slot passed empty while a job waited: {late}"


def expected(seen: Observer, plan: Plan) -> Findings:
    """A job begins with the ticket that its caller was told, where no job came before it later."""
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
                f"job {start.job.number} was told of ticket {ticket}, and began with {start.ticket}",
            )


def turns(seen: Observer, plan: Plan) -> Findings:
    """With a `lookahead` of one, processes take turns: none begins twice while another one's job waits.

    It waited for two intervals by then, and before the second one was taken, or the first one granted: what
    was taken before it came is used before it. A ticket in the place of one that was missed is no second one,
    and a process that misses a ticket from before the second one has had its turn. If the first ticket was
    granted more than an interval before it began, the second one was taken that much ahead of its turn: then
    a process that began something since has had its turn, too.
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
    """Whether a missed ticket was before that of a start, though it may be missed only afterwards."""
    if since <= miss.at <= second.at:
        return True
    is_before = miss.slot[0] == second.record and miss.slot[1] < second.ticket
    return is_before and miss.at > second.at and seen.issues[miss.slot][0] < second.at


def _is_waiting(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a job of a process waits from one instant to another."""
    return any(job.process is process and job.added < begin and _left(job) >= end for job in seen.jobs)


def asked(seen: Observer, plan: Plan) -> Findings:
    """A process asks a few times for a job at most, once more when nobody waits any more, and at first.

    What it knows of the store's clock ages, so it may look there first after a silence. What its users ask is
    not its own.
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
        if len(questions) > most:
            yield (
                questions[-1],
                f"{process.name} asked {len(questions)} times for {began[process]} jobs, {most:.0f} will do",
            )


def _lost_to_late_timers(seen: Observer, plan: Plan) -> Counter[Process]:
    """How many slots processes did not use or were granted again, where timers may be late for a slot."""
    late = _late_by(plan, plan.interval / 2)
    used = {start.slot for start in seen.starts}
    lost: Counter[Process] = Counter()
    for slot, grants in seen.grants.items():
        if grants[-1].process.name in late:
            lost[grants[-1].process] += len(grants) - (slot in used)
    return lost


def _late_by(plan: Plan, seconds: float) -> set[str]:
    """The processes whose timers may be later than so much."""
    return {each.name for each in plan.processes if each.lateness > seconds}


def _slowest(seen: Observer) -> float:
    """The longest round trip of all, in seconds."""
    return max((back - sent for had in seen.exchanges.values() for sent, back in had), default=0.0)


def _looks(seen: Observer, process: Process) -> int:
    """How many times a process looks at the clock before a slot, where its way is long for the tolerance."""
    longest = max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
    return _LOOKS if longest * 3 > min(seen.tolerances.values(), default=0.0) * 2 else 0


def _is_calm(seen: Observer, plan: Plan) -> bool:
    """Whether nothing was in anybody's way, and every job that came was to begin in one slot."""
    news = (
        seen.holds, seen.changes, seen.losses, seen.steps, seen.limited, seen.stalls, seen.reclaims,
        seen.closed, seen.died, seen.copies, any(seen.failures.values()),
    )  # fmt: skip
    if any(news) or any(each.turn is not None or each.lateness > _LATE / 2 for each in plan.processes):
        return False
    if any(job.cancelled or job.came_late for job in seen.jobs):
        return False
    return all(
        job.plan.cost == 1 and job.plan.cancelled_after is None and job.plan.timeout is None
        for job in seen.jobs
    )


def _may_stay_away(seen: Observer, plan: Plan) -> int:
    """How many slots pass empty at most because callers stayed away that had come back again and again.

    They are taken for callers wherever jobs come, or are tried again, while nobody waits in their process.
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
    """When a job was no longer in line for the first time."""
    return job.starts[0].at if job.starts else job.ended if job.outcome is not None else float("inf")


def _rows(seen: Observer, process: Process) -> int:
    """How many times a process began to have jobs that wait."""
    own = sorted((job for job in seen.jobs if job.process is process), key=lambda job: job.added)
    rows, until = 0, float("-inf")
    for job in own:
        rows += job.added > until
        until = max(until, _left(job))
    return rows
