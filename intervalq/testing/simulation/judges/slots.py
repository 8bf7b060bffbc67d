"""Judges of slots: what jobs are told of theirs, and handles that wait until they have surely come."""

from __future__ import annotations

from typing import Final

from intervalq.testing.simulation.facts import ObservedJob
from intervalq.testing.simulation.judges.starts import GRAIN, Findings, Starts, Ways, blur, named
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan

_SOON: Final = 0.2
"""Seconds, beside some round trips, for what takes no time where nothing is in the way."""

_LULL: Final = 1.0
"""Seconds after which a process has no tickets any more for jobs that might have come."""


def announced(seen: Observer, plan: Plan) -> Findings:
    """The slot that a job is told is the one that it begins in: it has come, and is within its tolerance.

    Where the slot may be used before it comes, what is told is when it was granted: that may be long ago.
    """
    if seen.steps:
        return  # the slot was on another clock
    starts = Starts(seen, plan)
    for start in seen.starts:
        if not start.grants:
            continue
        known = blur(seen, start.job.process, start.at)  # a process can't tell it better
        wrong = starts.error(start.grants[-1].at, start)
        late = max(grant.latest for grant in start.grants) + known + 2 * wrong + GRAIN
        if start.since < -max(known, wrong) - GRAIN:
            yield start.at, f"{named(start)} was told of a slot {-start.since:.6f} s later"
        elif start.since > late and not any(grant.at_once for grant in start.grants):
            yield start.at, f"{named(start)} was told of a slot {start.since:.6f} s ago"


def void(seen: Observer, plan: Plan) -> Findings:
    """A ticket from before the store's clock was stepped back isn't used by who asks and knows of that."""
    del plan
    ways = Ways(seen)
    for start in seen.starts:
        process = start.job.process
        issued = seen.own[process].get(start.slot, start.at)
        heard = [grant.heard for grant in start.grants]
        asked = max((sent for sent, back in seen.exchanges[process] if back in heard), default=0.0)
        for step, by in seen.steps:
            if by < 0 and issued < step < asked and ways.shown(process, step, asked):
                yield start.at, f"{named(start)} was of before a step of the clock that its process knew of"


def placed(seen: Observer, plan: Plan) -> Findings:
    """Where nothing is in its way, who adds a job is told soon, held or not; and of a ticket, if it is alone.

    Judged of tickets only where nothing moves, or is given up.
    """
    disturbed = (
        seen.holds, seen.limited, seen.losses, seen.steps, seen.reclaims, seen.changes, seen.stalls,
        seen.misses, any(job.cancelled or job.plan.cost > 1 for job in seen.jobs),
    )  # fmt: skip
    for job in seen.jobs:
        process, at = job.process, job.placed
        if at is None or seen.failures[process] or process in seen.closed or process in seen.died:
            continue
        if plan.processes[0].turn is not None or _stood_still(seen, process, job.added, at):
            continue
        had = [back - sent for sent, back in seen.exchanges[process]]
        # A question without an answer is in its way: a process asks one at a time.
        behind = sum(max(0.0, min(end, at) - max(job.added, sent)) for sent, end in seen.withdrawn[process])
        if at - job.added - behind > 8 * max(had, default=0.0) + _SOON:
            yield at, f"job {job.number} of {process.name} was placed after {at - job.added:.6f} s"
        began = job.starts[0].at if job.starts else job.ended
        if not any(disturbed) and job.expects is None and began > at and _is_first(seen, job, at):
            yield at, f"job {job.number} of {process.name} is the first in line, and was told no ticket"


def _stood_still(seen: Observer, process: Process, begin: float, end: float) -> bool:
    return any(who is process and since < end and until > begin for since, until, who in seen.stalls)


def _is_first(seen: Observer, job: ObservedJob, at: float) -> bool:
    """Whether no other job of its process was in line from a while before a job was added to an instant."""
    for other in seen.jobs:
        if other.process is job.process and other is not job and other.added <= at:
            left = other.starts[-1].at if other.starts else other.ended
            if left >= job.added - _LULL:
                return False
    return True


def surely(seen: Observer, plan: Plan) -> Findings:
    """A handle that is to wait until its slots have surely come starts nothing before, however far it is."""
    strict = {each.name for each in plan.processes if each.options.get("strict")}
    if seen.steps:
        return
    for start in seen.starts:
        if start.job.process.name not in strict or not start.grants:
            continue
        early = min(grant.opens for grant in start.grants) - start.at
        if early > GRAIN:
            yield start.at, f"{named(start)} began {early:.6f} s before its slot, and was to wait for it"
