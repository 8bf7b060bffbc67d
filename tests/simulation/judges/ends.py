"""Judges of ends: how each job ends, and what a closed handle still does."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from intervalq._timing.outage import OUTAGE
from intervalq.rules import Advance, Configure, Inspect
from simulation.facts import ObservedJob
from simulation.judges.findings import GRAIN, Findings, named
from simulation.judges.starts import Starts
from simulation.loop import Process
from simulation.mixes import CHANGES
from simulation.observer import Observer
from simulation.plans import Plan

_HANDED: Final = 0.002
"""How long before its slot a thread is handed that, in seconds."""

_LEAD: Final = 0.5
"""How long before the hours begin slots may be asked for, or after that at the latest, in seconds."""

_FEW: Final = 3
"""So many threads are not all late by chance."""


def fates(seen: Observer, plan: Plan) -> Findings:
    """Every job of a live process ends once, with an outcome that has a cause.

    A handle with `new=True` starts no job in a queue that existed before its first request.
    """
    new = {each.name for each in plan.processes if each.options.get("new") and not plan.keyed}
    for start in seen.starts:
        process = start.job.process
        asked = min(seen.questions[process], default=start.at)
        if process.name in new and _was_there(seen, process, asked):
            yield start.at, f"{named(start)} began in a queue that existed before its request for a new one"
            break
    for job in seen.jobs:
        if job.outcome == "QueueExists" and job.process.name in new:
            if not _was_there(seen, job.process, job.ended):
                yield job.ended, f"job {job.number} of {job.process.name}: there was no queue"
        elif job.process not in seen.died and (trouble := _trouble(seen, job)):
            yield job.ended, f"job {job.number} of {job.process.name}: {trouble}"


def _was_there(seen: Observer, process: Process, at: float) -> bool:
    """Whether others knew of a record by then."""
    return any(times[0] < at for other, times in seen.attached.items() if other is not process and times)


def _trouble(seen: Observer, job: ObservedJob) -> str | None:
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
        "QueueClosed": closed <= job.ended and starts < attempts and not _was_to_begin(seen, job),
        "SlotTimeout": wanted.timeout is not None and starts < attempts,
        "StoreTimeout": given_up and starts < attempts,
        "StoreUnavailable": given_up and starts < attempts,
        "ConfigMismatch": _is_refused(seen, job) and starts < attempts,
        "QueueNotFound": job.process.name == "J" and starts < attempts,
    }
    return None if fine.get(outcome, False) else f"{starts} starts, then {outcome}"


def _is_refused(seen: Observer, job: ObservedJob) -> bool:
    """Whether the process was told that the record has other settings than its handle."""
    own = [command.settings for _, command in seen.commands[job.process] if command.settings is not None]
    return any(
        answer.refused and answer.state is not None and answer.state.settings != own[0]
        for _, _, answer in seen.answers[job.process]
    )


def agreed(seen: Observer, plan: Plan) -> Findings:
    """A handle works with its own settings, or with others only if it adopts them; then it changes none.

    This is judged of the first record that it works with.
    """
    modes = {each.name: each.options.get("on_mismatch", "raise") for each in plan.processes}
    users = {who for _, who, verb, _ in plan.verbs if verb in CHANGES}
    for process, commands in seen.commands.items():
        own = next((command.settings for _, command in commands if command.settings is not None), None)
        mode = modes.get(process.name)
        if own is None or mode is None or process.name in users:
            continue
        changes = any(isinstance(command, Configure) for _, command in commands)
        if changes and mode != "update":
            yield commands[-1][0], f"{process.name} changed settings, with on_mismatch={mode!r}"
        since, own_changes = (
            min((at for at, sent in commands if not isinstance(sent, Inspect)), default=0.0),
            0,
        )
        joined: str | None = None
        answers = zip(seen.exchanges[process], seen.answers[process], strict=True)
        for (asked, _), (at, command, answer) in answers:
            if isinstance(command, Inspect) or answer.refused or answer.state is None:
                continue
            joined = joined or answer.state.generation
            if answer.state.generation != joined:
                break  # the record was lost, and another process made it anew, with its settings
            if isinstance(command, Configure):
                since, own_changes = asked, 1
                continue
            changed = sum(since < change <= at for change in seen.changes) > own_changes
            if mode != "adopt" and answer.state.settings != own and not changed:
                yield at, f"{process.name} works with other settings than its own, {own}"
            break
    for job in seen.jobs:
        if job.outcome == "ConfigMismatch" and modes.get(job.process.name) != "raise":
            yield job.ended, f"job {job.number} of {job.process.name}: it was to take other settings"


def remembered(seen: Observer, plan: Plan) -> Findings:
    """A record that a process creates has the settings that its handle has configured, or heard of last."""
    del plan
    for process, answers in seen.answers.items():
        own = last = None
        for at, command, answer in answers:
            if answer.state is None or answer.refused:
                continue
            if isinstance(command, Configure):
                own = answer.state.settings
            is_new = command.nonce == answer.state.generation
            if is_new and own is not None and answer.state.settings not in {own, last}:
                yield at, f"{process.name} has configured {own}, and creates {answer.state.settings}"
            last = answer.state.settings


def kept(seen: Observer, plan: Plan) -> Findings:
    """A handle with `start=False` starts no job before it is started, or closed with `drain=True`."""
    waits = {each.name for each in plan.processes if each.starts is not None}
    for start in seen.starts:
        process = start.job.process
        since = min(each.get(process, float("inf")) for each in (seen.released_at, seen.closed))
        if process.name in waits and start.at < since:
            yield start.at, f"{named(start)} began before its handle was started"


def handed(seen: Observer, plan: Plan) -> Findings:
    """A thread is handed its slot before it comes, unless its process wakes late or the job has just come.

    Not judged if a slot came sooner or could be used at once, as it may with limits.
    """
    late = {each.name for each in plan.processes if each.lateness > _HANDED / 4 or each.turn is not None}
    waited: dict[Process, list[ObservedJob]] = defaultdict(list)
    for job in seen.jobs:
        if job.plan.way != "thread" or not job.starts or job.came_late or job.process.name in late:
            continue
        slot = job.starts[0].slot
        at_once = any(grant.at_once for grant in job.starts[0].grants[-1:])
        if at_once or seen.dues.get(slot) != seen.first_dues.get(slot):
            continue
        if job.starts[0].at - job.added > plan.interval / 2 + 1:
            waited[job.process].append(job)
    for process, jobs in waited.items():
        if len(jobs) >= _FEW and max(job.handed for job in jobs) <= 0:
            yield jobs[-1].ended, f"the threads of {process.name} are handed their slots only when they come"


def moved(seen: Observer, plan: Plan) -> Findings:
    """A job whose thread came too late begins soon after its slot is granted late, not an interval later."""
    lateness = {each.name: each.lateness for each in plan.processes if each.turn is None}
    for job in seen.jobs:
        start = job.starts[0] if job.starts else None
        grant = start.grants[-1] if start is not None and start.grants else None
        if start is None or grant is None or grant.heard is None or job.process.name not in lateness:
            continue
        if not grant.at_once or start.ticket not in job.came_late:
            continue
        interval = grant.settings.interval / 1e6
        before = [each.at for each in seen.starts if each.job.process is job.process and each.at < start.at]
        since = max([grant.heard, *(at + interval for at in before)])
        until = since + job.plan.slow + lateness[job.process.name] + interval / 2
        stopped = any(who is job.process and begin < until < end for begin, end, who in seen.stalls)
        if start.at > until and not stopped:
            yield start.at, f"{named(start)} was granted late at {grant.at:.6f}, and began only then"


def _was_to_begin(seen: Observer, job: ObservedJob) -> bool:
    """Whether a job waited when its handle was closed with `drain=True`, and so had to begin.

    A job that is to be retried is waited for only if it was added in the background.
    """
    is_waited_for = job.plan.way == "add" or not job.starts
    return seen.drains[job.process] and job.added < seen.closed[job.process] and is_waited_for


def closing(seen: Observer, plan: Plan) -> Findings:
    """A handle that is closed without draining starts no more jobs, and no handle starts jobs added later."""
    del plan
    for process, at in seen.closed.items():
        for start in seen.starts:
            late = start.job.added > at or not seen.drains[process]
            if start.job.process is process and start.at > at + GRAIN and late:
                yield start.at, f"{named(start)} began, and its handle was closed at {at:.6f}"


def hours(seen: Observer, plan: Plan) -> Findings:
    """Outside of the hours of a queue no job begins, but for one that is late, and nobody takes slots.

    A process whose jobs wait takes some when the hours begin, unless it was closed or died meanwhile.
    """
    if plan.night is None:
        return
    ends, begins = plan.night
    for start in seen.starts:
        slots = [grant.opens for grant in start.grants[-1:]]
        blur = Starts(seen, plan).error(start.at, start) + GRAIN
        if start.at < begins - blur and any(slot > ends + blur for slot in slots):
            yield start.at, f"{named(start)} began outside of the hours, which end at {ends:.6f}"
    for process, commands in seen.commands.items():
        asked = [at for at, command in commands if isinstance(command, Advance) and _wants(command)]
        for at in asked:
            if ends + 2 * GRAIN < at < begins - _LEAD:
                yield at, f"{process.name} asks for slots outside of the hours, which end at {ends:.6f}"
        until = begins + _LEAD
        waits = any(
            job.process is process and job.added < begins and (job.starts or job.ended > until)
            and not any(start.at < until for start in job.starts)
            for job in seen.jobs
        )  # fmt: skip
        is_there = min(seen.closed.get(process, until), seen.died.get(process, until)) >= until
        if waits and is_there and not any(begins - _LEAD < at <= until for at in asked):
            yield until, f"{process.name} has jobs, and asks for no slot when the hours begin at {begins:.6f}"


def _wants(command: Advance) -> bool:
    """Whether a request is about slots for jobs."""
    return bool(command.take or command.slots)
