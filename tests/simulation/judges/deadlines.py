"""Judges of jobs that must begin in time: when they are refused, why, and what they are answered."""

from __future__ import annotations

from typing import Final

from intervalq.rules import FOREVER, Advance
from simulation.facts import ObservedJob, Refusal, Start
from simulation.judges.clocks import blur
from simulation.judges.findings import GRAIN, Findings, named
from simulation.judges.wait_queues import WaitQueues, waits
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_ANSWER: Final = 5.0
"""The least that `try_slot` waits for the store, in seconds."""

_DRIFT: Final = 5e-4
"""How much longer or shorter a second is for a process, in seconds."""

_SOON: Final = 0.01
"""Allowance for steps that take no time, and for timers, in seconds."""

_STEPS: Final = 1e-3
"""The time that some steps of a process take whose time passes in them, in seconds."""

_DRIVER: Final = 0.01
"""For how long a driver is busy with a message at most, in seconds: see `Mix.measured`."""

_TRIPS: Final = 12
"""The round trips in which a process can learn the store's clock, take a ticket and request its grant."""


def timeouts(seen: Observer, plan: Plan) -> Findings:
    """A job begins, or is refused, by the end of its time; later only if its process was stopped then."""
    if any(process.turn is not None for process in plan.processes):
        return
    for job in seen.jobs:
        if job.plan.timeout is None or job.process in seen.died or job.came_late:
            continue
        least = max(job.plan.timeout, _ANSWER) if job.plan.way == "try" else job.plan.timeout
        least += _SOON if job.plan.way == "thread" else 0.0  # it gets its slot early
        least += _STEPS if job.process.clock.goes_on else 0.0
        until = job.added + least * (1 + _DRIFT) + GRAIN + _stopped(seen, job.process, job.added)
        if job.starts and _came(job.starts[0]) > until:
            yield job.starts[0].at, f"{named(job.starts[0])} had to begin by {until:.6f}"
        if job.outcome == "SlotTimeout" and not job.starts and job.ended > until:
            yield job.ended, f"{_named(job)} was refused only at {job.ended:.6f}, not by {until:.6f}"


def _came(start: Start) -> float:
    """When a job's slot came, for which it may wait until the end of its time.

    A task begins then. A thread that has been handed its slot may begin later in it.
    """
    came = max([max(grant.opens, grant.heard or 0.0) for grant in start.grants[-1:]], default=start.at)
    return min(start.at, came) if start.job.plan.way == "thread" else start.at


def refusals(seen: Observer, plan: Plan) -> Findings:
    """A job is refused early only if no slot would have come in time, and is told when one would.

    Judged by the record in the store, at the time of the refusal or just before: slots may come earlier later
    on, if others give theirs back. Not judged once the store's clock was stepped or it lost writes.
    """
    queues = WaitQueues(seen, plan)
    for refusal in seen.refusals:
        job, at = refusal.job, refusal.at
        if _is_unclear(seen, plan, at) or _stopped(seen, job.process, at - _SOON):
            continue
        if job.placed == at:
            continue  # `add` has just returned: it may have been refused before
        outlooks = queues.outlooks(job, at)
        within, since = _time_of(job)
        until = since + within
        if not outlooks:
            if at < until - GRAIN or refusal.after:
                yield at, f"{_named(job)} was refused at {at:.6f}, and no record was there"
            continue
        latest = max(outlook.begins for outlook in outlooks)
        state = queues.heard(job.process, at)[1]
        if state is not None and state.held_since is not None:
            latest += 2 * _slowest(seen, job.process)  # the end of the hold is heard of first
        is_early = at < until - GRAIN - within * _DRIFT
        if is_early and latest <= until - within * _DRIFT - 2 * GRAIN:
            yield at, f"{_named(job)} was refused at {at:.6f}, a slot came at {latest:.6f}, by {until:.6f}"
        if is_early and " comes within " not in refusal.text:
            yield at, f"{_named(job)} was refused before its time was over, and told: {refusal.text}"
        yield from _answered(seen, refusal, queues)


def quotes(seen: Observer, plan: Plan) -> Findings:
    """`quote` says when a job added now would begin."""
    queues = WaitQueues(seen, plan)
    for quote in seen.quotes:
        if not _is_unclear(seen, plan, quote.at) and not _stopped(seen, quote.job.process, quote.at - _SOON):
            yield from _answered(seen, quote, queues)


def _answered(seen: Observer, answer: Refusal, queues: WaitQueues) -> Findings:
    """What a caller is answered about the time until a job added now could begin is true."""
    at, after = answer.at, answer.after
    if seen.copies or seen.failures[answer.job.process]:
        return  # it may not know of its own tickets
    outlooks = queues.outlooks(answer.added_now(), at, by_last=True)
    what = f"{_named(answer.job)} was told at {at:.6f} to come again after {after} s"
    heard, state = queues.heard(answer.job.process, at)
    if not after and state is None:  # its process has only heard that there is no record, or nothing yet
        others = [job for job in seen.jobs if job.process is answer.job.process and waits(job, at)]
        unknown = not heard or any(job.plan.timeout is None or job.plan.way == "add" for job in others)
        if (after is not None and unknown) or (after is None and heard and not others):
            yield at, f"{what}, and the store {'had' if heard else 'had not'} answered"
        return
    if after is None:
        # A lease that has lapsed since the last answer may also have been renewed.
        was_full = state is not None and state.held_since is not None and state.full
        if not was_full and not any(outlook.is_open for outlook in outlooks):
            yield at, f"{what}, and the hold ends by itself"
        return
    if not outlooks:
        return
    outlooks = [outlook for outlook in outlooks if not outlook.is_open]
    if not outlooks:
        yield at, f"{what}, and nobody knows when the hold ends"
        return
    slack = 3 * blur(seen, answer.job.process, at) + after * 2 * _DRIFT + 2 * GRAIN
    notice = 3 * _slowest(seen, answer.job.process) + _SOON if after == 0 else 0.0
    if state is not None and state.held_since is not None:
        slack += 4 * _slowest(seen, answer.job.process)  # the end of the hold is heard of first
    least, most = (choose(each.begins for each in outlooks) - at for choose in (min, max))
    if after and most <= 0 and (state is None or state.held_since is None):
        yield at, f"{what}, and a slot has come"
    if not least - slack - notice <= after <= max(0.0, most) + slack:
        yield at, f"{what}, and a slot would have come after {least:.6f} to {most:.6f} s"


def prompt(seen: Observer, plan: Plan) -> Findings:
    """Without faults, a job is refused as soon as it is known that its slot comes too late.

    That is known when it is added, by the last answer, or when its process hears of its ticket. `add` puts a
    job into the wait queue without an answer, so only tickets count. In a pause, the slots behind its end are
    known without tickets.
    """
    if not _is_calm(seen, plan, holds=True):
        return
    queues = WaitQueues(seen, plan)
    for job in seen.jobs:
        if job.plan.timeout is None or job.process.name in _late(plan) or job.came_late:
            continue
        within, since = _time_of(job)
        until = since + within
        trip = _slowest(seen, job.process)
        left = job.starts[0].at if job.starts else job.ended
        answered = seen.answers[job.process]
        answers = [at for at, what, _ in answered if job.added <= at < left and isinstance(what, Advance)]
        for at in [job.added, *answers]:
            known = queues.known(job, at) if at == job.added or waits(job, at) else None
            if at == job.added and job.plan.way == "add":
                known = queues.behind_own(job, at)
            state = queues.heard(job.process, at)[1]
            if known is None or known.is_open or at > until or state is None:
                continue
            is_held = state.held_since is not None
            if (at > job.added and not known.is_owned and not is_held) or (seen.holds and not is_held):
                continue
            margin = 3 * blur(seen, job.process, at) + 6 * trip + _SOON
            soon = at + 4 * trip + _SOON
            if known.begins > until + margin and left > soon and _stays(queues, job, soon, until + margin):
                yield (
                    left,
                    f"{_named(job)} waited until {left:.6f} for a slot known at {at:.6f} to come later",
                )
                break


def joins(seen: Observer, plan: Plan) -> Findings:
    """Without faults, a process whose first job waits soon asks for a ticket if it has none."""
    if not _is_calm(seen, plan):
        return
    queues, planned = WaitQueues(seen, plan), {each.name: each for each in plan.processes}
    for job in seen.jobs:
        process = planned[job.process.name]
        at = max(job.added, process.starts or 0.0) + _SOON + 4 * _DRIVER
        at += _TRIPS * (_slowest(seen, job.process) + process.busy)
        if job.plan.timeout is None or not waits(job, at) or job.process.name in _late(plan):
            continue
        takes = [
            when
            for when, command in seen.commands[job.process]
            if isinstance(command, Advance) and command.take
        ]
        if not queues.owned(job.process, at) and not any(job.added <= when <= at for when in takes):
            yield at, f"{_named(job)} waits, and {job.process.name} has no ticket, and asked for none"


def tries(seen: Observer, plan: Plan) -> Findings:
    """Without faults, a job that can't wait begins if nobody else used or wanted the queue for a while.

    In a hold whose end nobody knows, it is refused at once, if its process knows of the hold, and the store
    answers.
    """
    for job in seen.jobs:
        if job.plan.timeout != 0 or job.process in seen.died or seen.failures[job.process]:
            continue
        soon = 4 * _slowest(seen, job.process) + _SOON
        left = job.starts[0].at if job.starts else job.ended
        if not job.starts and job.outcome == "SlotTimeout" and _is_idle(seen, plan, job, left):
            yield job.ended, f"{_named(job)} was refused, and nobody used the queue"
        if (
            left > job.added + soon
            and _stays_held(seen, job, left)
            and not _stopped(seen, job.process, job.added)
            and not any(sent <= job.added and end >= left for sent, end in seen.withdrawn[job.process])
        ):
            yield left, f"{_named(job)} waited until {left:.6f} in a hold, and was not to wait"


def _is_idle(seen: Observer, plan: Plan, job: ObservedJob, left: float) -> bool:
    """Whether nobody used the queue for some intervals before a job, or took a slot before it left."""
    if not _is_calm(seen, plan) or _late(plan) or plan.limits or job.plan.cost > 1:
        return False
    since = job.added - 3 * plan.interval - _SOON
    own = [each for each in seen.jobs if each.process is job.process and each.number < job.number]
    taken = [
        at
        for process, slots in seen.own.items()
        for slot, at in slots.items()
        if at < left and since < max(at, _comes(seen, slot, left))
        if process is not job.process or at < job.added
    ]
    waited = any(_left(each) > since for each in own) or any(each.plan.priority for each in seen.jobs)
    return not waited and not taken and not any(since < start.at < left for start in seen.starts)


def _comes(seen: Observer, slot: tuple[str, int], at: float) -> float:
    """The true time of a ticket's slot: as it was granted, or as late grants have moved it by an instant."""
    granted = [grant.slot for grant in seen.grants.get(slot, ()) if grant.at <= at]
    if granted:
        return granted[-1]
    when, now, state = next(step for step in reversed(seen.history) if step[0] <= at and step[2] is not None)
    assert state is not None
    return when + (seen.dues[slot] - state.clock(now)) / 1e6


def _taken(seen: Observer) -> list[tuple[tuple[str, int], int]]:
    """The tickets that processes took and have not given back, each with its number of slots."""
    taken = dict[tuple[str, int], int]()
    for process, answers in seen.answers.items():
        commands = [command for _, command in seen.commands[process] if isinstance(command, Advance)]
        given_back = {slot.ticket for command in commands for slot in command.release}
        for _, _, answer in answers:
            if answer.state is not None:
                name = seen.trace.name(answer.state.generation)
                kept = [slot for slot in answer.taken if slot.ticket not in given_back]
                taken.update({(name, slot.ticket): slot.cost for slot in kept})
    return [*taken.items()]


def _left(job: ObservedJob) -> float:
    """When a job first left the wait queue."""
    return job.starts[0].at if job.starts else job.ended if job.outcome is not None else float("inf")


def _stays_held(seen: Observer, job: ObservedJob, until: float) -> bool:
    """Whether all that a process knew of the queue, while a job waited, was a hold whose end nobody knows."""
    answers = seen.answers[job.process]
    heard = [(at, answer) for at, _, answer in answers if at <= until and not answer.refused]
    known = [answer.state for at, answer in heard if at > job.added]
    known += [answer.state for at, answer in heard if at <= job.added][-1:]
    return bool(known) and all(
        state is not None and state.held_since is not None and (state.full or state.held_until >= FOREVER)
        for state in known
    )


def _stays(queues: WaitQueues, job: ObservedJob, at: float, until: float) -> bool:
    """Whether a job's slot still comes too late by the answer to the question that may have been asked."""
    known = queues.known(job, at)
    return known is not None and known.begins > until and not known.is_open


def in_vain(seen: Observer, plan: Plan) -> Findings:
    """Without faults, no job is refused whose slot came in time, or while the queue did nothing."""
    if not _is_calm(seen, plan) or _late(plan) or any(job.cancelled or job.came_late for job in seen.jobs):
        return
    used = {start.slot for start in seen.starts}
    for refusal in seen.refusals:
        job = refusal.job
        within, since = _time_of(job)
        late = max(each.lateness for each in plan.processes) + _TRIPS * _slowest(seen, job.process) + _SOON
        begin, end = since + late, min(since + within, refusal.at) - late
        if plan.limits or within < plan.interval:
            continue
        is_heavy = any(each.plan.cost > 1 for each in seen.jobs)
        for slot, (*_, grant) in seen.grants.items():
            if is_heavy or slot in used or grant.process is not job.process or grant.cost < job.plan.cost:
                continue
            if since < (grant.heard or 0.0) and since < grant.slot < end:
                yield refusal.at, f"{_named(job)} was refused, and had ticket {slot[1]} in time"
        began = [start for start in seen.starts if start.at < end]
        ended = [start.at + grant.cost * plan.interval for start in began for grant in start.grants[-1:]]
        if is_heavy:  # slots may have been too cheap for the jobs that waited, or of jobs that were refused
            ended += [
                comes + cost * plan.interval
                for slot, cost in _taken(seen)
                if (comes := _comes(seen, slot, refusal.at)) < end
            ]
        last = max(ended, default=0.0)
        if max(begin, last) + 2 * plan.interval < end and not seen.limited:
            yield refusal.at, f"{_named(job)} was refused, and nothing began since {last:.6f}"


def _named(job: ObservedJob) -> str:
    return f"job {job.number} of {job.process.name}"


def _time_of(job: ObservedJob) -> tuple[float, float]:
    """How long a job may wait for its slot, and since when it waited last."""
    return job.plan.timeout or 0.0, max([job.added, *(start.ended for start in job.starts)])


def _stopped(seen: Observer, process: Process, since: float) -> float:
    """How long a process was stopped since an instant, in seconds."""
    return sum(max(0.0, end - max(begin, since)) for begin, end, who in seen.stalls if who is process)


def _slowest(seen: Observer, process: Process) -> float:
    """The longest wait for an answer, which may have been cancelled when a job's time was over."""
    waits = (*seen.exchanges[process], *seen.withdrawn[process])
    return max((back - sent for sent, back in waits), default=0.0)


def _late(plan: Plan) -> set[str]:
    return {each.name for each in plan.processes if each.lateness > _SOON / 2}


def _is_unclear(seen: Observer, plan: Plan, at: float) -> bool:
    """Whether a process may know a record or clock that the store doesn't have any more."""
    faults = (*seen.losses, *(step for step, _ in seen.steps))
    return any(fault <= at for fault in faults) or any(each.turn is not None for each in plan.processes)


def _is_calm(seen: Observer, plan: Plan, *, holds: bool = False) -> bool:
    """Whether there were no faults or changes, nor holds, unless those are allowed."""
    news = (
        seen.holds and not holds, seen.changes, seen.losses, seen.steps, seen.limited, seen.stalls,
        seen.reclaims, seen.closed, seen.died, seen.copies, any(seen.failures.values()),
    )  # fmt: skip
    return not any(news) and all(each.turn is None for each in plan.processes)
