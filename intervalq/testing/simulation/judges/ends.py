"""Judges of ends: how each job ends, and what a closed handle still does."""

from __future__ import annotations

from intervalq._timing.outage import OUTAGE
from intervalq.testing.simulation.facts import ObservedJob
from intervalq.testing.simulation.judges.findings import GRAIN, Findings, named
from intervalq.testing.simulation.loop import Process
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan


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
        "ConfigMismatch": bool(seen.changes) and starts < attempts,
        "QueueNotFound": job.process.name == "J" and starts < attempts,
    }
    return None if fine.get(outcome, False) else f"{starts} starts, then {outcome}"


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
