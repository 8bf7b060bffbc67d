"""The judges: compare what was observed with the promises, without knowing how these are kept."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from simulation.facts import ObservedJob, Start
from simulation.judges.accounts import accounts, given_back, left_over
from simulation.judges.clocks import candour
from simulation.judges.deadlines import (
    in_vain,
    joins,
    prompt,
    quotes,
    refusals,
    timeouts,
    tries,
)
from simulation.judges.ends import agreed, closing, fates, handed, hours, kept, moved, remembered
from simulation.judges.findings import GRAIN, Findings, named
from simulation.judges.running import again, lapses, leases, limits, renewals, reported
from simulation.judges.settlements import settlements
from simulation.judges.slots import announced, decided, placed, revoked, surely, told
from simulation.judges.starts import Starts
from simulation.judges.thrift import asked, expected, repeats, roomy, turns, wasted
from simulation.judges.wakefulness import freed, on_time, outages, polls, unused, wakeups
from simulation.judges.warnings import warned
from simulation.judges.windows import windows
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_QUESTIONS: Final = 24
"""The most commands that a lone caller needs until it begins: for a ticket, for the next one, for the grant,
and for another grant if it woke late. Before each, up to five may only improve the estimate of the clock."""

_TURN: Final = 20e-6
"""A lower bound of one iteration of the event loop, in seconds."""

_TIMERS: Final = 0.1
"""The most that a process brings its requests forward because its timers are late, in seconds."""


def judge(seen: Observer, plan: Plan) -> None:
    """Add every broken promise to the observer's violations."""
    by_day = (  # these know of no hours
        placed, fairness, wakeups, polls, unused, wasted, expected, turns, refusals, joins, in_vain,
    )  # fmt: skip
    for rule in (
        accounts,
        left_over,
        given_back,
        starts,
        announced,
        decided,
        surely,
        revoked,
        placed,
        told,
        order,
        places,
        holds,
        fates,
        agreed,
        remembered,
        kept,
        handed,
        moved,
        limits,
        leases,
        reported,
        clocks,
        costs,
        misses,
        progress,
        repeats,
        fairness,
        wakeups,
        polls,
        on_time,
        unused,
        outages,
        freed,
        renewals,
        lapses,
        again,
        closing,
        hours,
        wasted,
        roomy,
        asked,
        expected,
        turns,
        windows,
        settlements,
        timeouts,
        refusals,
        quotes,
        prompt,
        tries,
        joins,
        in_vain,
        warned,
    ):
        if plan.night is not None and rule in by_day:
            continue
        for at, what in rule(seen, plan):
            seen.violated(what, at)
    seen.violations.sort(key=lambda violation: violation.at)


def starts(seen: Observer, plan: Plan) -> Findings:
    """Each start is in its slot, and the promised distance from others; excuses are counted."""
    yield from Starts(seen, plan).judged()
    yield from candour(seen)


def order(seen: Observer, plan: Plan) -> Findings:
    """All shards use slots in ticket order; jobs of one shard and priority begin in the order added."""
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
                continue  # the record states that no spacing is guaranteed
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
                continue  # the job behind it had the next slot by then
            for first in jobs[:number]:
                higher = second.plan.priority - first.plan.priority
                began = first.starts[0], second.starts[0]
                handed = _handed(began[0]), _handed(began[1])
                if (higher == 0 and second.number < first.number and handed[1] > began[0].at) or (
                    higher > 0 and second.added < handed[0] < handed[1]
                ):
                    if _is_undecided(seen, first, second):
                        continue
                    yield began[1].at, f"{named(began[0])} began before {named(began[1])}, which was first"


def _is_undecided(seen: Observer, first: ObservedJob, second: ObservedJob) -> bool:
    """Whether one of two jobs joined the wait queue after it was added, so that the other may begin first.

    With a timeout, the store may be asked first whether a job can begin in time; and the job of a thread
    joins in the next iteration of the event loop.
    """
    if second.plan.way == "thread" and first.added <= second.added + _TURN:
        return True
    asked = [end for begin, end in seen.exchanges[second.process] if begin >= second.added]
    return second.plan.timeout is not None and _handed(first.starts[0]) <= min(asked, default=0.0) + _TURN


def _handed(start: Start) -> float:
    """When a job got its slot: a thread gets it early, and may begin late in it."""
    return max((since for since, _ in start.job.in_hand if since <= start.at), default=start.at)


def places(seen: Observer, plan: Plan) -> Findings:
    """A slot starts at most one job, and only one that the store has granted."""
    del plan
    used: dict[tuple[str, int], Start] = {}
    times: dict[tuple[str, int], int] = defaultdict(int)
    for start in seen.starts:
        if not start.grants:
            yield start.at, f"{named(start)} was never granted"
        times[start.slot] += 1
        # after a failover, the store may issue lost numbers again
        if times[start.slot] > max(1, len(seen.issues[start.slot])):
            yield start.at, f"{named(used[start.slot])} and {named(start)} used the same slot"
        used[start.slot] = start


def holds(seen: Observer, plan: Plan) -> Findings:
    """While the queue is held, only jobs with an earlier grant begin, and soon.

    So no slot is granted long before it comes, unless a later one was granted before: that one stays where it
    is in a hold, so the slots before it must, too.
    """
    for start in seen.starts:
        for grant in start.grants[-1:]:
            ahead = _lead(seen, start.job.process, start.at) + grant.notice + _late(seen, plan, start)
            unclear = (seen.limited and grant.unaware) or _outlived(seen, start)
            later = (
                each
                for (name, ticket), all_ in seen.grants.items()
                if name == start.record and ticket > start.ticket
                for each in all_[:1]
            )
            unclear = unclear or any(each.at < grant.at and each.slot > grant.slot for each in later)
            if grant.slot > grant.at + ahead and not unclear:
                yield start.at, f"{named(start)} was granted {grant.slot - grant.at:.6f} s before its slot"
    for begin, length in seen.holds:
        ends = [at for at in (*seen.resumes, *seen.losses) if at > begin]
        if length < float("inf"):
            # a step of the clock moves the end of the hold
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
                    f"{named(start)} began {start.at - begin:.6f} s into a hold, granted at {granted:.6f}",
                )


def clocks(seen: Observer, plan: Plan) -> Findings:
    """The queue's clock follows the store's, except in pauses, which move slots by their length.

    Late grants don't count. Records with `max_running`, and times after a step of the store's clock, are not
    judged.
    """
    rate = 1 + plan.store_ppm / 1e6
    ends = [at for at, _ in seen.steps] + seen.losses
    for record, readings in seen.readings.items():
        if any(most for _, most in seen.limits[record]):
            continue
        for (first, before), (second, after) in pairwise(readings):
            if any(first <= at <= second for at in ends) or any(at < second for at in ends):
                break  # the end of a pause that began before the step is not known from outside
            passed = (second - first - _held(seen, plan, first, second)) * rate
            if abs(after - before - passed) > 2 * GRAIN:
                yield second, f"the clock of {record} advanced by {after - before:.6f} s in {passed:.6f} s"
                return


def costs(seen: Observer, plan: Plan) -> Findings:
    """A job that costs several slots takes all of them.

    Not judged if the store was unreachable or lost writes, or after a pause, which cancels slots to skip.
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
    """A slot is missed only when its tolerance is over, not counting holds since it was issued."""
    if seen.limited or seen.steps or seen.losses:
        return  # the reading of the queue's clock is not known from outside
    for miss in seen.misses:
        issued = seen.issues[miss.slot][0]
        rate = 1 + plan.store_ppm / 1e6
        late = (miss.at - issued - _held(seen, plan, issued, miss.at)) * rate - seen.ahead[miss.slot]
        if not miss.revoked and late < -GRAIN:
            yield miss.at, f"ticket {miss.slot[1]} was missed {-late:.6f} s before its slot"


def progress(seen: Observer, plan: Plan) -> Findings:
    """Without rivals and obstacles, a process needs only a few requests until a job begins.

    Not judged if jobs cost several slots: a slot too cheap for the next job is skipped by a request.
    """
    del plan
    if any(job.plan.cost > 1 or job.plan.units for job in seen.jobs):
        return
    for at, process, questions in seen.alone:
        if questions == _QUESTIONS + 1:
            yield at, f"{process.name} waits alone, and has asked {_QUESTIONS} times in a row"


def fairness(seen: Observer, plan: Plan) -> Findings:
    """While a job is the first in its process's wait queue, each other process starts few jobs.

    Judged if nothing obstructed the process, and its round trips are shorter than the interval. Tickets that
    others took before its own are used first: up to `lookahead` of each, and as many again that they take
    while its request is in flight. A process that wakes too late for its slot waits again.
    """
    if any([seen.holds, seen.changes, seen.losses, seen.steps, seen.reclaims, seen.limited]):
        return
    options = {each.name: each.options.get("lookahead", 16) for each in plan.processes}
    lateness = {each.name: each.lateness for each in plan.processes}
    missed = {miss.process for miss in seen.misses}
    ahead: dict[Process, float] = {}
    for start in seen.starts:
        process = start.job.process
        before, ahead[process] = ahead.get(process, 0.0), start.at
        if (
            process in missed
            or seen.failures[process]
            or start.job.plan.cost > 1
            or len(start.job.starts) > 1
        ):
            continue
        lost = _lost_last(seen, process, start.at, lateness[process.name])
        first = max(start.job.added, before, lost)
        # A stalled process is too late for its slots and waits again; it may see that without a request.
        if any(who is process and since < start.at and until > first for since, until, who in seen.stalls):
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
    """When the last slot ended that a process missed because its timers are later than the slot is long.

    It lets a ticket pass without a request if it wakes when its slot is over.
    """
    used = {start.slot for start in seen.starts}
    lost = [
        grants[-1].slot + grants[-1].latest
        for slot, grants in seen.grants.items()
        if slot not in used
        and grants[-1].process is process
        and grants[-1].slot < until
        and grants[-1].latest < lateness
    ]
    for slot in seen.taken[process].keys() - used - seen.grants.keys():
        lost += [
            at
            for at, now, state in seen.history
            if at < until
            and state is not None
            and seen.trace.name(state.generation) == slot[0]
            and state.clock(now) - seen.dues[slot] <= state.tolerance + state.credit < lateness * 1e6
        ][-1:]
    return max(lost, default=0.0)


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
    """How long before its slot a grant may come: by the slowest round trip of the process, and its timers."""
    had = [back - sent for sent, back in seen.exchanges[process] if back <= at]
    return max(0.05, 2 * max(had, default=0.0)) + _TIMERS


def _late(seen: Observer, plan: Plan, start: Start) -> float:
    """How long after its slot a job may begin: tolerance, burst credit, and the error in the record."""
    wrong = 3 * Starts(seen, plan).error(start.at, start)  # one job begins later, another one earlier
    return max((grant.latest for grant in start.grants), default=0.0) + wrong


def _outlived(seen: Observer, start: Start) -> bool:
    """Whether the ticket of a start was issued before the store lost writes, perhaps including that ticket.

    It may conflict with tickets that the store issued or revived after that.
    """
    issued = min(seen.issues[start.slot], default=start.at)
    return any(issued <= at <= start.at for at in seen.losses)


def _disturbed(seen: Observer, earlier: Start, later: Start) -> bool:
    """Whether the store's clock was stepped, or writes were lost, since the first of them was granted."""
    grants = [grant.at for start in (earlier, later) for grant in start.grants]
    begin = min([earlier.at, later.at, *grants])
    return any(begin <= at <= later.at for at in (*seen.losses, *(step for step, _ in seen.steps)))
