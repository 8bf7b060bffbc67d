"""Judges of the slots that jobs are given, and of handles with `strict=True`."""

from __future__ import annotations

from typing import Final

from intervalq.rules import Advance
from simulation.facts import ObservedJob
from simulation.judges.clocks import ClockKnowledge, blur
from simulation.judges.findings import GRAIN, Findings, named
from simulation.judges.starts import Starts
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_SOON: Final = 0.2
"""How long a step without obstacles may take, besides some round trips, in seconds."""

_LULL: Final = 1.0
"""Seconds after which a process without jobs has no unused tickets left."""

_PROMPT: Final = 0.1
"""A request that takes longer may be too late for its slot, in seconds."""


def announced(seen: Observer, plan: Plan) -> Findings:
    """The slot that a job is given is the one in which it begins: it has come, and its tolerance isn't over.

    With a grant that may be used before its slot, the job is given the instant of the grant, which may be
    long past.
    """
    if seen.steps:
        return  # the slot was on another clock
    starts = Starts(seen, plan)
    for start in seen.starts:
        if not start.grants:
            continue
        known = blur(seen, start.job.process, start.at)  # a process can't know it more precisely
        wrong = starts.error(start.grants[-1].at, start)
        late = max(grant.latest for grant in start.grants) + known + 2 * wrong + GRAIN
        if start.since < -max(known, wrong) - GRAIN:
            yield start.at, f"{named(start)} was given a slot {-start.since:.6f} s after its start"
        elif start.since > late and not any(grant.at_once for grant in start.grants):
            yield start.at, f"{named(start)} was given a slot {start.since:.6f} s before its start"


def revoked(seen: Observer, plan: Plan) -> Findings:
    """A process that knows of a backward step of the store's clock uses no ticket from before it."""
    del plan
    ways = ClockKnowledge(seen)
    for start in seen.starts:
        process = start.job.process
        issued = seen.own[process].get(start.slot, start.at)
        heard = [grant.heard for grant in start.grants]
        asked = max((sent for sent, back in seen.exchanges[process] if back in heard), default=0.0)
        for step, by in seen.steps:
            if by < 0 and issued < step < asked and ways.shown(process, step, asked):
                yield start.at, f"{named(start)} has a ticket from before a step that its process knew of"


def placed(seen: Observer, plan: Plan) -> Findings:
    """Without obstacles, `add` returns soon, even while the queue is held; a lone job has a ticket then.

    Tickets are judged only if nothing moves slots, no job is cancelled, and each slot would do for each job.
    """
    disturbed = (
        seen.holds, seen.limited, seen.losses, seen.steps, seen.reclaims, seen.changes, seen.stalls,
        seen.misses, any(job.cancelled or job.plan.cost > 1 for job in seen.jobs),
        any(job.plan.units != seen.jobs[0].plan.units for job in seen.jobs),
    )  # fmt: skip
    idle = {each.name for each in plan.processes if each.starts is not None}  # until they start their jobs
    for job in seen.jobs:
        process, at = job.process, job.placed
        if at is None or seen.failures[process] or process in seen.closed or process in seen.died:
            continue
        if plan.processes[0].turn is not None or _stood_still(seen, process, job.added, at):
            continue
        had = [back - sent for sent, back in seen.exchanges[process]]
        # A request without an answer delays it: a process sends one at a time.
        behind = sum(max(0.0, min(end, at) - max(job.added, sent)) for sent, end in seen.withdrawn[process])
        if at - job.added - behind > 8 * max(had, default=0.0) + _SOON:
            yield at, f"job {job.number} of {process.name} was placed after {at - job.added:.6f} s"
        began = job.starts[0].at if job.starts else job.ended
        if (
            not any(disturbed)
            and process.name not in idle
            and job.expects is None
            and began > at
            and _is_first(seen, job, at)
        ):
            yield at, f"job {job.number} of {process.name} is the first that waits, and was given no ticket"


def told(seen: Observer, plan: Plan) -> Findings:
    """`Job.due` is when the slot of the job's ticket comes, by the last answer to its process.

    Not judged if the slot was granted by then: only its process knows how far it has moved.
    """
    del plan
    for job in seen.jobs:
        process, at = job.process, job.placed
        if job.told is None or at is None or seen.steps or seen.losses:
            continue
        shown = [
            (when, answer.state)
            for when, _, answer in seen.answers[process]
            if when <= at and not answer.refused and answer.state is not None
        ]
        state = shown[-1][1] if shown else None
        slot = "" if state is None else seen.trace.name(state.generation), job.expects or 0
        granted = [grant.heard for grant in seen.grants.get(slot, ()) if grant.heard is not None]
        if state is None or any(heard <= at for heard in granted):
            continue
        comes = (seen.first_dues[slot] + state.held_total) / 1e6
        before = [each for when, each in shown if when < at][-1:]  # it may have been told before it heard
        lags = [each.held_total for each in before if each.generation == state.generation]
        if abs(job.told - comes) > GRAIN and job.told * 1e6 - seen.first_dues[slot] not in lags:
            yield at, f"job {job.number} of {process.name} was told {job.told}, and its slot comes at {comes}"


def _stood_still(seen: Observer, process: Process, begin: float, end: float) -> bool:
    return any(who is process and since < end and until > begin for since, until, who in seen.stalls)


def _is_first(seen: Observer, job: ObservedJob, at: float) -> bool:
    """Whether no other job of its process waited at an instant, or shortly before this job was added."""
    for other in seen.jobs:
        if other.process is job.process and other is not job and other.added <= at:
            left = other.starts[-1].at if other.starts else other.ended
            if left >= job.added - _LULL:
                return False
    return True


def surely(seen: Observer, plan: Plan) -> Findings:
    """A handle with `strict=True` starts no job before its slot, however far away the store is."""
    strict = {each.name for each in plan.processes if each.options.get("strict")}
    if seen.steps:
        return
    for start in seen.starts:
        if start.job.process.name not in strict or not start.grants:
            continue
        early = min(grant.opens for grant in start.grants) - start.at
        if early > GRAIN:
            yield start.at, f"{named(start)} began {early:.6f} s before its slot, and was to wait for it"


def decided(seen: Observer, plan: Plan) -> Findings:
    """A request for a slot that has come is answered: the slot is granted, or another one is issued.

    Not if the request took long, also because it waited for another one of its process, or if that had to
    hear of a late grant first. Nor if its process was stopped when it was about to send it.
    """
    del plan
    if seen.steps or seen.copies:
        return
    for process, answers in seen.answers.items():
        slow = {*seen.failures[process], *(end for _, end in seen.withdrawn[process])}
        slow |= {back for sent, back in seen.exchanges[process] if back - sent > _PROMPT}
        for (sent, back), (_, command, answer) in zip(seen.exchanges[process], answers, strict=True):
            state = answer.state
            if not isinstance(command, Advance) or not command.slots or answer.granted or answer.missed:
                continue
            if state is None or answer.refused or state.held_since is not None or slow & {sent, back}:
                continue
            if _stood_still(seen, process, sent - GRAIN, sent):
                continue
            mark, slot = command.high_water_mark, command.slots[0]
            if mark is None or mark.late_total != state.late_total or answer.healed:
                continue
            if command.generation == state.generation and slot.due <= state.clock(answer.now):
                yield back, f"{process.name} asked for ticket {slot.ticket}, which had come, in vain"
