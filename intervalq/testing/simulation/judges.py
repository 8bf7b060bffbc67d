"""The judges: what an observer wrote down against the promises, with no knowledge of how they are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from intervalq._shard.leases import LEASE
from intervalq._timing.outage import OUTAGE
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.mixes import Plan
from intervalq.testing.simulation.observer import ObservedJob, Observer, Start

_QUESTIONS: Final = 12
"""So many commands at most does a lone caller need to begin."""

_GRAIN: Final = 10e-6
"""Readings are rounded to microseconds, a few times over."""

_FAR: Final = 2e-3
"""Where a process knows the store's clock worse than this, its jobs begin at the middle of what it knows."""

_TIMERS: Final = 0.1
"""Seconds by which a process asks earlier because its timers are late, at most."""

_AGEING: Final = 2 / 2_000
"""The bounds of the store's clock move apart by this much a second (500 ppm either way)."""


def judge(seen: Observer, plan: Plan) -> None:
    """Add every broken promise to the observer's violations."""
    for court in (spacing, order, places, holds, fates, limits, costs, misses, progress):
        for at, what in court(seen, plan):
            seen.violated(what, at)
    seen.violations.sort(key=lambda violation: violation.at)


Findings = Iterator[tuple[float, str]]


def spacing(seen: Observer, plan: Plan) -> Findings:
    """Starts are `interval - tolerance` apart in true time; see the package for the allowances."""
    starts = seen.starts
    lost = [at for at, informed in seen.made if not informed and any(loss < at for loss in seen.losses)]
    excuses = plan.burst * ([at for at, by in seen.steps if by > 0] + seen.failovers + lost)
    for place in range(plan.burst, len(starts)):
        window = starts[place - plan.burst : place + 1]
        first, last = window[0], window[-1]
        gap = (last.at - first.at) * (1 + plan.store_ppm / 1e6)
        needed = _needed(seen, plan, window)
        if gap >= needed - _GRAIN:
            continue
        if any(_outlived(seen, start) for start in window):
            continue
        if plan.burst > 1 and any(_told(first) <= at <= last.at for at in seen.changes):
            continue  # the credit is a time, and more slots fit into it at a shorter interval
        if any(_stepped_over(seen, start) for start in window):
            continue
        begin = min(_told(start) for start in window)
        excuse = next((at for at in excuses if begin <= at <= last.at), None)
        if excuse is not None:
            excuses.remove(excuse)
            continue
        yield (
            last.at,
            f"{_named(first)} and {_named(last)} are {gap:.6f} s apart; at least {needed:.6f} s are promised",
        )


def order(seen: Observer, plan: Plan) -> Findings:
    """Slots are used in ticket order, by every shard; jobs of one shard and priority in the order added."""
    by_record: dict[str, list[Start]] = defaultdict(list)
    for start in seen.starts:
        by_record[start.record].append(start)
    for starts in by_record.values():
        for earlier, later in pairwise(starts):
            if later.ticket > earlier.ticket or _disturbed(seen, earlier, later):
                continue
            if _outlived(seen, earlier) or _outlived(seen, later):
                continue
            interval = max((grant.settings.interval for grant in later.grants), default=0) / 1e6
            latest = (plan.burst - 1) * interval + _tolerance(seen, plan, later)
            if (seen.dues.get(earlier.slot, 0) - seen.dues.get(later.slot, 0)) / 1e6 >= latest:
                yield later.at, f"{_named(later)} began after {_named(earlier)}"
    yield from _lines(seen)


def _lines(seen: Observer) -> Findings:
    by_process: dict[Process, list[ObservedJob]] = defaultdict(list)
    for start in seen.starts:
        if start.job.starts[0] is start:
            by_process[start.job.process].append(start.job)
    for jobs in by_process.values():
        for number, second in enumerate(jobs):
            for first in jobs[:number]:
                higher = second.plan.priority - first.plan.priority
                began = first.starts[0], second.starts[0]
                if (higher == 0 and second.number < first.number) or (
                    higher > 0 and second.added < began[0].at
                ):
                    yield began[1].at, f"{_named(began[0])} began before {_named(began[1])}, which was first"


def places(seen: Observer, plan: Plan) -> Findings:
    """A slot starts at most one job, and only one that the store has granted."""
    del plan
    used: dict[tuple[str, int], Start] = {}
    times: dict[tuple[str, int], int] = defaultdict(int)
    for start in seen.starts:
        if not start.grants:
            yield start.at, f"{_named(start)} was never granted"
        times[start.slot] += 1
        # a failover makes the store issue numbers again that it forgot
        if times[start.slot] > max(1, len(seen.issues[start.slot])):
            yield start.at, f"{_named(used[start.slot])} and {_named(start)} used the same slot"
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
            if not begin + _GRAIN < start.at < end - _GRAIN:
                continue
            told = start.grants[-1].at if start.grants else begin
            granted = (grant.settings for grant in start.grants)
            credit = max(((each.burst - 1) * each.interval for each in granted), default=0) / 1e6
            notice = max((grant.notice for grant in start.grants), default=0.0)
            lead = _lead(seen, start.job.process, start.at) + notice
            soon = lead + _tolerance(seen, plan, start) + credit
            unaware = plan.max_running is not None and bool(start.grants) and start.grants[-1].unaware
            if told > begin or (start.at > begin + soon and not unaware):
                yield (
                    start.at,
                    f"{_named(start)} began {start.at - begin:.6f} s after a hold began, told at {told:.6f}",
                )


def fates(seen: Observer, plan: Plan) -> Findings:
    """Every job of a live process ends once, as it should."""
    for job in seen.jobs:
        if job.process not in seen.died and (trouble := _trouble(seen, plan, job)):
            yield job.ended, f"job {job.number} of {job.process.name}: {trouble}"


def limits(seen: Observer, plan: Plan) -> Findings:
    """With `max_running`, no more jobs run than may, as long as leases are renewed in time."""
    if not plan.max_running or seen.steps or seen.losses:
        return
    changes: list[tuple[float, int]] = []
    for job in seen.jobs:
        died = seen.died.get(job.process, float("inf"))
        for start in job.starts:
            end = min(start.ended, start.at + LEASE / 1e6, died)
            changes += [(start.at, 1), (end, -1)]
    running = 0
    for at, change in sorted(changes):
        running += change
        if running > plan.max_running:
            yield at, f"{running} jobs run, {plan.max_running} may"
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
    if plan.max_running or seen.steps or seen.losses:
        return  # what the queue's clock reads is hard to tell from outside
    for miss in seen.misses:
        issued = seen.issues[miss.slot][0]
        rate = 1 + plan.store_ppm / 1e6
        late = (miss.at - issued - _held(seen, plan, issued, miss.at)) * rate - seen.ahead[miss.slot]
        if not miss.void and late < -_GRAIN:
            yield miss.at, f"ticket {miss.slot[1]} was missed {-late:.6f} s before its slot"


def progress(seen: Observer, plan: Plan) -> Findings:
    """Where nobody else waits and nothing is in its way, a process asks a few times until a job begins.

    A slot that is too cheap for the job that is next is passed over, which takes a question as well.
    """
    del plan
    if any(job.plan.cost > 1 for job in seen.jobs):
        return
    for at, process, questions in seen.alone:
        if questions == _QUESTIONS + 1:
            yield at, f"{process.name} waits alone, and has asked {_QUESTIONS} times since anything happened"


def _held(seen: Observer, plan: Plan, begin: float, end: float) -> float:
    """How long the queue was held between two instants."""
    held, until = 0.0, begin
    for since, length in sorted(seen.holds):
        ends = [end, *(at for at in seen.resumes if at > since), since + length / (1 + plan.store_ppm / 1e6)]
        last = min(ends)
        if last > max(since, until):
            held, until = held + last - max(since, until), last
    return held


def _named(start: Start) -> str:
    job, ticket = start.job, f"ticket {start.ticket} of {start.record}"
    return f"job {job.number} of {job.process.name} ({ticket}, at {start.at:.6f})"


def _needed(seen: Observer, plan: Plan, starts: list[Start]) -> float:
    """How far apart the first and the last of these must be, by the settings they were granted with."""
    intervals = [grant.settings.interval for start in starts for grant in start.grants]
    interval = min(intervals, default=round(plan.interval * 1e6)) / 1e6
    return interval - max(_tolerance(seen, plan, start) for start in starts) - _early(seen, plan, starts[-1])


def _tolerance(seen: Observer, plan: Plan, start: Start) -> float:
    """How late after its slot a job may begin."""
    wished, blur = _wished(plan, start), _blur(seen, start.job.process, start.at)
    return max(wished, 1.5 * min(blur, _FAR), wished + _early(seen, plan, start))


def _early(seen: Observer, plan: Plan, start: Start) -> float:
    """How early before its slot a job may begin: far away, at the middle of what is known of its slot."""
    blur = _blur(seen, start.job.process, start.at)
    return blur / 2 if blur >= _FAR and blur * 3 > _wished(plan, start) * 2 else 0.0


def _wished(plan: Plan, start: Start) -> float:
    """The tolerance that is agreed, whatever the process knows."""
    windows = (grant.settings.burst * grant.settings.interval for grant in start.grants)
    longest = max(windows, default=0) / 1e6
    return longest / 10 if plan.tolerance is None else min(plan.tolerance, longest)


def _blur(seen: Observer, process: Process, at: float) -> float:
    """How badly a process may know the store's clock: what the round trips that it had allow, at worst.

    A round trip bounds the offset of the two clocks by its length, and that knowledge ages. So the best one
    counts; but since a step of the clock some of them are void, and nobody knows which: the worst one counts.
    """
    stepped = max((step for step, _ in seen.steps if step <= at), default=None)
    had = [(sent, back) for sent, back in seen.exchanges[process] if back <= at]
    blurs = [
        back - sent + 2e-6 + _AGEING * (at - back) for sent, back in had if stepped is None or sent > stepped
    ]
    if stepped is not None:
        return max(blurs or [back - sent + _AGEING * (at - back) for sent, back in had[-8:]], default=0.0)
    return min(blurs, default=0.0)


def _lead(seen: Observer, process: Process, at: float) -> float:
    """How long before its slot a process may be granted: by its slowest round trip and its timers."""
    had = [back - sent for sent, back in seen.exchanges[process] if back <= at]
    return max(0.05, 2 * max(had, default=0.0)) + _TIMERS


def _told(start: Start) -> float:
    return min((grant.at for grant in start.grants), default=start.at)


def _outlived(seen: Observer, start: Start) -> bool:
    """Whether a start is on a ticket that was issued before the store lost writes, and perhaps what it wrote.

    It may clash with tickets that the store issued in its place, or brought back to life.
    """
    issued = min(seen.issues[start.slot], default=start.at)
    return any(issued <= at <= start.at for at in seen.losses)


def _stepped_over(seen: Observer, start: Start) -> bool:
    """Whether a start was granted before a step of the store's clock, and couldn't know of it."""
    told = _told(start)
    steps = [(at, by) for at, by in seen.steps if told <= at <= start.at]
    if len(steps) != 1:
        return bool(steps)  # one step may hide the other
    (at, by), process = steps[0], start.job.process
    heard = any(sent >= at and back <= start.at for sent, back in seen.exchanges[process])
    return not heard or abs(by) <= 2 * _blur(seen, process, at)


def _disturbed(seen: Observer, earlier: Start, later: Start) -> bool:
    """Whether the store's clock was stepped, or writes were lost, since the first of them was granted."""
    grants = [grant.at for start in (earlier, later) for grant in start.grants]
    begin = min([earlier.at, later.at, *grants])
    return any(begin <= at <= later.at for at in (*seen.losses, *(step for step, _ in seen.steps)))


def _trouble(seen: Observer, plan: Plan, job: ObservedJob) -> str | None:
    """What is wrong with how a job ended; None: nothing."""
    wanted, starts, outcome = job.plan, len(job.starts), job.outcome
    if outcome is None:
        return "never ended"
    closed = seen.closed.get(job.process, float("inf"))
    failed = max((at for at in seen.failures[job.process] if at <= job.ended), default=None)
    heard = max((at for at in seen.attached[job.process] if failed is None or at < failed), default=None)
    given_up = failed is not None and (heard is None or failed - heard > OUTAGE / 1e6 * 0.9)
    attempts = 1 + min(wanted.fails, wanted.retries)
    fine = {
        "done": starts == attempts and wanted.fails <= wanted.retries,
        "JobError": starts == attempts and wanted.fails > wanted.retries,
        "cancelled": job.cancelled and starts <= attempts,
        "JobCancelled": job.cancelled and starts <= attempts,
        "QueueClosed": closed <= job.ended and starts < attempts,
        "SlotTimeout": wanted.timeout is not None and starts < attempts,
        "StoreTimeout": given_up and starts < attempts,
        "StoreUnavailable": given_up and starts < attempts,
        "ConfigMismatch": any(verb == "configure" for _, _, verb, _ in plan.verbs) and starts < attempts,
        "QueueNotFound": job.process.name == "J" and starts < attempts,
    }
    return None if fine.get(outcome, False) else f"{starts} starts, then {outcome}"
