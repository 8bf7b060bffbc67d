"""The judges: what an observer wrote down against the promises, with no knowledge of how they are kept."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from intervalq._queue.threads import EARLY
from intervalq._shard.leases import LEASE
from intervalq.testing.simulation.facts import ObservedJob, Start
from intervalq.testing.simulation.judges.ends import closing, fates
from intervalq.testing.simulation.judges.slots import announced, placed, surely, void
from intervalq.testing.simulation.judges.starts import GRAIN, Findings, Starts, candour, named
from intervalq.testing.simulation.judges.thrift import asked, expected, turns, wasted
from intervalq.testing.simulation.judges.wakefulness import freed, outages, unused, wakeups
from intervalq.testing.simulation.judges.windows import windows
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan

_QUESTIONS: Final = 24
"""So many commands at most does a lone caller need to begin: for a ticket, for the next one, about its slot,
and once more as it woke late. Before each, five may only sharpen what it knows of the clock."""

FAR: Final = float("inf")

_TURN: Final = 20e-6
"""Seconds that a turn of the event loop takes, at least."""

_TIMERS: Final = 0.1
"""Seconds by which a process asks earlier because its timers are late, at most."""

_THREAD: Final = EARLY / 1e6
"""Seconds before its slot at which a thread has it, so that no job that comes then is before it."""


def judge(seen: Observer, plan: Plan) -> None:
    """Add every broken promise to the observer's violations."""
    for court in (
        starts,
        announced,
        surely,
        void,
        placed,
        order,
        places,
        holds,
        fates,
        limits,
        leases,
        clocks,
        costs,
        misses,
        progress,
        fairness,
        wakeups,
        unused,
        outages,
        freed,
        closing,
        wasted,
        asked,
        expected,
        turns,
        windows,
    ):
        for at, what in court(seen, plan):
            seen.violated(what, at)
    seen.violations.sort(key=lambda violation: violation.at)


def starts(seen: Observer, plan: Plan) -> Findings:
    """Each start is in its slot, and as far from others as is promised; excuses are counted."""
    yield from Starts(seen, plan).judged()
    yield from candour(seen)


def order(seen: Observer, plan: Plan) -> Findings:
    """Slots are used in ticket order, by every shard; jobs of one shard and priority in the order added."""
    judge_of_starts = Starts(seen, plan)
    by_record: dict[str, list[Start]] = defaultdict(list)
    for start in seen.starts:
        by_record[start.record].append(start)
    for starts in by_record.values():
        for earlier, later in pairwise(starts):
            if later.ticket > earlier.ticket or _disturbed(seen, earlier, later):
                continue
            if _outlived(seen, earlier) or _outlived(seen, later):
                continue
            latest = _late(seen, plan, later)
            if 3 * judge_of_starts.error(earlier.at, later) > plan.interval:
                continue  # the record says that nothing of the spacing holds
            ahead = min((grant.slot - grant.opens for grant in earlier.grants), default=0.0)
            apart = (seen.dues.get(earlier.slot, 0) - seen.dues.get(later.slot, 0)) / 1e6
            if apart - ahead * (1 + plan.store_ppm / 1e6) >= latest:
                yield later.at, f"{named(later)} began after {named(earlier)}"
    yield from _lines(seen)


def _lines(seen: Observer) -> Findings:
    by_process: dict[Process, list[ObservedJob]] = defaultdict(list)
    for start in seen.starts:
        if start.job.starts[0] is start:
            by_process[start.job.process].append(start.job)
    for jobs in by_process.values():
        for number, second in enumerate(jobs):
            if second.came_late:
                continue  # the one behind it had the next slot by then
            for first in jobs[:number]:
                higher = second.plan.priority - first.plan.priority
                began = first.starts[0], second.starts[0]
                if (higher == 0 and second.number < first.number and _handed(began[1]) > began[0].at) or (
                    higher > 0 and second.added < _handed(began[0])
                ):
                    if _is_undecided(seen, first, second):
                        continue
                    yield began[1].at, f"{named(began[0])} began before {named(began[1])}, which was first"


def _is_undecided(seen: Observer, first: ObservedJob, second: ObservedJob) -> bool:
    """Whether one of them had not joined the line when it came, so that the other may begin before it.

    The store may be asked first if a job can begin in time; and a thread's joins in the next turn of the
    loop.
    """
    if second.plan.way == "thread" and first.added <= second.added + _TURN:
        return True
    asked = [end for begin, end in seen.exchanges[second.process] if begin >= second.added]
    return second.plan.timeout is not None and _handed(first.starts[0]) <= min(asked, default=0.0) + _TURN


def _handed(start: Start) -> float:
    """When a job was handed its slot at the earliest: a thread has it early, and may begin late in it."""
    if start.job.plan.way != "thread":
        return start.at
    return start.at - _THREAD - max((grant.latest for grant in start.grants), default=0.0)


def places(seen: Observer, plan: Plan) -> Findings:
    """A slot starts at most one job, and only one that the store has granted."""
    del plan
    used: dict[tuple[str, int], Start] = {}
    times: dict[tuple[str, int], int] = defaultdict(int)
    for start in seen.starts:
        if not start.grants:
            yield start.at, f"{named(start)} was never granted"
        times[start.slot] += 1
        # a failover makes the store issue numbers again that it forgot
        if times[start.slot] > max(1, len(seen.issues[start.slot])):
            yield start.at, f"{named(used[start.slot])} and {named(start)} used the same slot"
        used[start.slot] = start


def holds(seen: Observer, plan: Plan) -> Findings:
    """While the queue is held nothing begins, except what was granted before, and that soon."""
    for begin, length in seen.holds:
        ends = [at for at in (*seen.resumes, *seen.losses) if at > begin]
        if length < float("inf"):
            # a step of the clock moves what is measured on it
            ends.append(begin + length / (1 + plan.store_ppm / 1e6) - sum(max(0, by) for _, by in seen.steps))
        end = min(ends)
        for start in seen.starts:
            if not begin + GRAIN < start.at < end - GRAIN:
                continue
            granted = start.grants[-1].at if start.grants else begin
            notice = max((grant.notice for grant in start.grants), default=0.0)
            lead = _lead(seen, start.job.process, start.at) + notice
            soon = lead + _late(seen, plan, start)
            unaware = seen.limited and bool(start.grants) and start.grants[-1].unaware
            if granted > begin or (start.at > begin + soon and not unaware):
                yield (
                    start.at,
                    f"{named(start)} began {start.at - begin:.6f} s after a hold did, granted {granted:.6f}",
                )


def limits(seen: Observer, _: Plan) -> Findings:
    """With `max_running`, no more jobs of one record run than may, however long they take.

    Those of a process that can't renew its leases count for ten seconds, and so do those of a dead one. What
    began before the store lost writes, or before a step of its clock by seconds, is not counted. Where it
    issued a ticket again that it had lost, two jobs have one lease: it counts until the first of them ends.
    """
    disturbed = [*seen.losses, *(at for at, by in seen.steps if by > LEASE / 4e6)]
    by_record: dict[str, list[tuple[float, int, Start]]] = defaultdict(list)
    for place, start in enumerate(seen.starts):
        if not start.grants or not start.grants[-1].settings.max_running:
            continue
        granted = start.grants[-1].at
        freed = [at for at, most in seen.limits[start.record] if not most]  # from then on nothing is counted
        end = min([start.ended, *(at for at in (*disturbed, *freed) if at >= granted)])
        end = min(end, seen.died.get(start.job.process, FAR))
        end = min(end, _out_of_reach(seen, start.job.process, start.at) + LEASE / 1e6)
        if len(seen.issues[start.slot]) > 1:
            end = min(end, _end_of_lease(seen, start))
        if end > start.at:
            by_record[start.record] += [(start.at, place, start), (end, -1, start)]
    for changes in by_record.values():
        running = 0
        for at, place, start in sorted(changes, key=lambda change: change[:2]):
            running += 1 if place >= 0 else -1
            if place >= 0 and running > (most := seen.may_run(start)):
                yield at, f"{running} jobs run, {most} may"
                break


def _end_of_lease(seen: Observer, start: Start) -> float:
    """When the lease ends of a job whose ticket was issued to others as well; at once, if it is another's."""
    beside = [other for other in seen.starts if other.slot == start.slot and other.ended > start.at]
    first = min(beside, key=lambda other: other.at)
    return min(other.ended for other in beside) if first is start else start.at


def _out_of_reach(seen: Observer, process: Process, since: float) -> float:
    """When a process had the last answer before it could not reach the store for long, or did not run."""
    heard = [at for sent, at in seen.exchanges[process] if at >= since - LEASE / 1e6]
    times = [since, *(at for at in heard if at > since)]
    gaps = [
        first
        for first, second in pairwise(times)
        if second - first > LEASE / 2e6 and _is_kept(seen, process, first, second)
    ]
    cut = [at for at in seen.failures[process] if at > since]
    return min([*gaps, *(at - LEASE / 1e6 for at in cut)], default=FAR)


def leases(seen: Observer, plan: Plan) -> Findings:
    """The jobs of a process that dies count as running for ten seconds at most, whenever it dies."""
    del plan
    for at, length in seen.leases:
        if length > LEASE / 1e6 + GRAIN:
            yield at, f"a job would count as running for {length:.6f} s if its process died now"
            return


def _is_kept(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether something kept a process from talking to the store: it didn't run, or an answer took long."""
    if any(who is process and since < end and until > begin for since, until, who in seen.stalls):
        return True
    return any(begin < back <= end and back - sent > LEASE / 1e7 for sent, back in seen.exchanges[process])


def clocks(seen: Observer, plan: Plan) -> Findings:
    """The queue's clock goes with the store's, but for pauses: they move slots by their own length.

    Late grants and a limit of running jobs are taken off, and so is what a step of the store's clock moves.
    """
    rate = 1 + plan.store_ppm / 1e6
    ends = [at for at, _ in seen.steps] + seen.losses
    for record, readings in seen.readings.items():
        if any(most for _, most in seen.limits[record]):
            continue
        for (first, before), (second, after) in pairwise(readings):
            if any(first <= at <= second for at in ends) or any(at < second for at in ends):
                break  # when a pause ends that was begun on another clock is hard to tell from outside
            passed = (second - first - _held(seen, plan, first, second)) * rate
            if abs(after - before - passed) > 2 * GRAIN:
                yield second, f"the clock of {record} went by {after - before:.6f} s in {passed:.6f} s"
                return


def costs(seen: Observer, plan: Plan) -> Findings:
    """A job that costs several slots takes them all.

    Where the store can be reached and forgets nothing; and a pause forgives what is still owed.
    """
    del plan
    if seen.losses or seen.holds:
        return
    for process, taken in seen.taken.items():
        if process not in seen.died and process not in seen.closed and not seen.failures[process]:
            used = sum(start.job.plan.cost for start in seen.starts if start.job.process is process)
            if used > sum(taken.values()):
                yield seen.time(), f"{process.name} used {used} slots and took {sum(taken.values())}"


def misses(seen: Observer, plan: Plan) -> Findings:
    """A slot is missed only when it is past its tolerance, with all holds since it was issued taken off."""
    if seen.limited or seen.steps or seen.losses:
        return  # what the queue's clock reads is hard to tell from outside
    for miss in seen.misses:
        issued = seen.issues[miss.slot][0]
        rate = 1 + plan.store_ppm / 1e6
        late = (miss.at - issued - _held(seen, plan, issued, miss.at)) * rate - seen.ahead[miss.slot]
        if not miss.void and late < -GRAIN:
            yield miss.at, f"ticket {miss.slot[1]} was missed {-late:.6f} s before its slot"


def progress(seen: Observer, plan: Plan) -> Findings:
    """Where nobody else waits and nothing is in its way, a process asks a few times until a job begins.

    A slot that is too cheap for the job that is next is passed over, which takes a question as well.
    """
    del plan
    if any(job.plan.cost > 1 or job.plan.units for job in seen.jobs):
        return
    for at, process, questions in seen.alone:
        if questions == _QUESTIONS + 1:
            yield at, f"{process.name} waits alone, and has asked {_QUESTIONS} times since anything happened"


def fairness(seen: Observer, plan: Plan) -> Findings:
    """A job that is first in its process's line lets others begin no more jobs than they may hold tickets.

    Judged where nothing was in the way of its process, which asks faster than slots follow each other. What
    others took before its own ticket was issued comes first: `lookahead` of each, and as many again for what
    they take while its question is on its way. Who wakes too late for a slot that it was granted waits anew.
    """
    if any([seen.holds, seen.changes, seen.losses, seen.steps, seen.reclaims, seen.limited]):
        return
    options = {each.name: each.options.get("lookahead", 16) for each in plan.processes}
    lateness = {each.name: each.lateness for each in plan.processes}
    missed = {miss.process for miss in seen.misses}
    ahead: dict[Process, float] = {}
    for start in seen.starts:
        process = start.job.process
        lost = _lost_last(seen, process, start.at, lateness[process.name])
        first = max(start.job.added, ahead.get(process, 0.0), lost)
        ahead[process] = start.at
        # One that stood still came too late for slots and waits again; it may see so itself, without asking.
        if any(who is process and since < start.at and until > first for since, until, who in seen.stalls):
            continue
        if (
            process in missed
            or seen.failures[process]
            or start.job.plan.cost > 1
            or len(start.job.starts) > 1
        ):
            continue
        longest = max((back - sent for sent, back in seen.exchanges[process] if back > first), default=0.0)
        if longest * 2 > plan.interval or plan.interval < 0.05:
            continue
        first += longest
        others: dict[Process, int] = defaultdict(int)
        for other in seen.starts:
            if first < other.at < start.at and other.job.process is not process:
                others[other.job.process] += 1
        for rival, count in others.items():
            most = options.get(rival.name)
            if most is not None and count > 2 * most + 2:
                yield start.at, f"{named(start)} had to wait for {count} jobs of {rival.name}"


def _lost_last(seen: Observer, process: Process, until: float, lateness: float) -> float:
    """When the last slot was over that a process did not use, with timers that are later than it lasted."""
    used = {start.slot for start in seen.starts}
    return max(
        (
            grants[-1].slot + grants[-1].latest
            for slot, grants in seen.grants.items()
            if slot not in used
            and grants[-1].process is process
            and grants[-1].slot < until
            and grants[-1].latest < lateness
        ),
        default=0.0,
    )


def _held(seen: Observer, plan: Plan, begin: float, end: float) -> float:
    """How long the queue was held between two instants."""
    held, until = 0.0, begin
    for since, length in sorted(seen.holds):
        ends = [end, *(at for at in seen.resumes if at > since), since + length / (1 + plan.store_ppm / 1e6)]
        last = min(ends)
        if last > max(since, until):
            held, until = held + last - max(since, until), last
    return held


def _lead(seen: Observer, process: Process, at: float) -> float:
    """How long before its slot a process may be granted: by its slowest round trip and its timers."""
    had = [back - sent for sent, back in seen.exchanges[process] if back <= at]
    return max(0.05, 2 * max(had, default=0.0)) + _TIMERS


def _late(seen: Observer, plan: Plan, start: Start) -> float:
    """How late after its slot a job may begin: the tolerance, burst credit, and what the record adds."""
    wrong = 3 * Starts(seen, plan).error(start.at, start)  # one begins later, another earlier
    return max((grant.latest for grant in start.grants), default=0.0) + wrong


def _outlived(seen: Observer, start: Start) -> bool:
    """Whether a start is on a ticket that was issued before the store lost writes, and perhaps what it wrote.

    It may clash with tickets that the store issued in its place, or brought back to life.
    """
    issued = min(seen.issues[start.slot], default=start.at)
    return any(issued <= at <= start.at for at in seen.losses)


def _disturbed(seen: Observer, earlier: Start, later: Start) -> bool:
    """Whether the store's clock was stepped, or writes were lost, since the first of them was granted."""
    grants = [grant.at for start in (earlier, later) for grant in start.grants]
    begin = min([earlier.at, later.at, *grants])
    return any(begin <= at <= later.at for at in (*seen.losses, *(step for step, _ in seen.steps)))
