"""Judges of running jobs: how many run at once with `max_running`, and how long they count."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from intervalq._shard.leases import LEASE
from intervalq.rules import Advance, Finish
from simulation.facts import Start
from simulation.judges.findings import GRAIN, Findings, named
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

FAR: Final = float("inf")

_EARLY: Final = 0.99
"""Allowance for clocks that run fast."""

_LATE: Final = 0.3
"""Timers that may be later than this leave no time for a second renewal before a lease ends, in seconds."""

_SOON: Final = 0.05
"""Allowance for steps that take no time in a running process, in seconds."""


def limits(seen: Observer, plan: Plan) -> Findings:
    """With `max_running`, no more jobs of one record run than allowed, however long they take.

    Jobs of a process that can't renew its leases, or that died, count for ten seconds. Jobs that began before
    the store lost writes, or before a step of its clock by seconds, don't count. If the store issued a lost
    ticket again, two jobs share a lease, which counts until the first of them ends.
    """
    disturbed = [*seen.losses, *(at for at, by in seen.steps if by > LEASE / 4e6)]
    by_record: dict[str, list[tuple[float, int, Start]]] = defaultdict(list)
    for place, start in enumerate(seen.starts):
        if not start.grants or not start.grants[-1].settings.max_running:
            continue
        granted = start.grants[-1].at
        freed = [at for at, most in seen.limits[start.record] if not most]  # nothing counts after that
        end = min([start.ended, *(at for at in (*disturbed, *freed) if at >= granted)])
        end = min(end, seen.died.get(start.job.process, FAR))
        end = min(end, _out_of_reach(seen, plan, start.job.process, start.at) + LEASE / 1e6)
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


def reported(seen: Observer, plan: Plan) -> Findings:
    """A process reports only jobs in slots of its own record: the same tickets of another are others'."""
    del plan
    for process, answers in seen.answers.items():
        for at, command, answer in answers:
            if isinstance(command, Finish) and answer.state is not None:
                name = seen.trace.name(answer.state.generation)
                if command.generation in {None, answer.state.generation}:
                    for ticket in (*command.ended, *command.running):
                        if (name, ticket) not in seen.own[process]:
                            yield at, f"{process.name} reports ticket {ticket} of {name}, which it never had"


def _end_of_lease(seen: Observer, start: Start) -> float:
    """When the lease of a ticket that was issued twice ends; at once, if another job has or had it since."""
    granted = start.grants[-1].at
    beside = [other for other in seen.starts if other.slot == start.slot and other.ended > granted]
    first = min(beside, key=lambda other: other.at)
    return min(other.ended for other in beside) if first is start else start.at


def _out_of_reach(seen: Observer, plan: Plan, process: Process, since: float) -> float:
    """When a process got its last answer before a long outage or stall.

    A single request without an answer doesn't count: there is time for another one.
    """
    heard = [at for sent, at in seen.exchanges[process] if at >= since - LEASE / 1e6]
    times = [since, *(at for at in heard if at > since), FAR]
    gaps = [
        first
        for first, second in pairwise(times)
        if LEASE / 2e6 < second - first < FAR and _is_kept(seen, process, first, second)
    ]
    late = max((each.lateness for each in plan.processes if each.name == process.name), default=0.0)
    few = 1 if late > _LATE else 2
    failed = [at for at in seen.failures[process] if at > since]
    cut = [
        first - LEASE / 2e6
        for first, second in pairwise(times)
        if len([at for at in failed if first < at < second]) >= few
    ]
    return min([*gaps, *cut], default=FAR)


def leases(seen: Observer, plan: Plan) -> Findings:
    """Whenever a process dies, its jobs count as running for at most ten more seconds."""
    del plan
    for at, length in seen.leases:
        if length > LEASE / 1e6 + GRAIN:
            yield at, f"a job would count as running for {length:.6f} s if its process died now"
            return


def renewals(seen: Observer, plan: Plan) -> Findings:
    """A process renews its leases once in a third of their time, if there is no ended job to report.

    It does so sooner after a report that got no answer.

    Not judged if threads may begin too late: a lease that was to end is kept then, and nothing is to report.
    """
    threads = {each.name for each in plan.processes if any(job.way == "thread" for job in each.jobs)}
    for process, commands in seen.commands.items():
        if process.name in threads:
            continue
        reports = [(at, command) for at, command in commands if isinstance(command, Finish)]
        answered = {sent for sent, _ in seen.exchanges[process]}
        for (first, _), (second, command) in pairwise(reports):
            if not command.ended and first in answered and second - first < LEASE / 3e6 * _EARLY:
                yield (
                    second,
                    f"{process.name} renewed its leases {second - first:.6f} s after its last report",
                )


def lapses(seen: Observer, plan: Plan) -> Findings:
    """While a job runs, its process sends renewals of its lease in time, also after some have failed.

    Not judged if the process is stopped, or if the queue's limit changes. A lost record has no leases.
    """
    planned = {each.name: each for each in plan.processes if each.turn is None}
    for start in seen.starts:
        process = start.job.process
        if process.name not in planned or [most > 0 for _, most in seen.limits[start.record]] != [True]:
            continue
        own, failed = planned[process.name], seen.failures[process]
        slowest = max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
        most = LEASE / 3e6 + own.lateness + 2 * slowest + _SOON
        lost = [at for at in seen.losses for grant in start.grants[-1:] if at > grant.at]
        end = min([start.ended, seen.died.get(process, FAR), *lost])
        sent = [at for at, command in seen.commands[process] if isinstance(command, Finish)]
        tried = sorted([*sent, *seen.unrenewed[process]])
        for first, second in pairwise([start.at, *(at for at in tried if start.at < at < end), end]):
            waits = sum(first < at <= second + own.route.deadline for at in failed) * own.route.deadline
            if second - first > most + waits and not _is_stopped(seen, process, first, second):
                yield second, f"{named(start)} runs, and its lease was not renewed for {second - first:.6f} s"
                return


def _is_stopped(seen: Observer, process: Process, begin: float, end: float) -> bool:
    return any(who is process and since < end and until > begin for since, until, who in seen.stalls)


def _is_kept(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a process couldn't talk to the store for a while: it was stopped, or an answer took long."""
    if _is_stopped(seen, process, begin, end):
        return True
    return any(begin < back <= end and back - sent > LEASE / 1e7 for sent, back in seen.exchanges[process])


def again(seen: Observer, plan: Plan) -> Findings:
    """In a full queue, a process asks at once for the slot of a thread that came too late: it has its place.

    Not judged if another job was granted a later slot, or the queue is paused.
    """
    planned = {each.name: each for each in plan.processes if each.turn is None}
    for job in seen.jobs:
        process = job.process
        if process.name not in planned or seen.failures[process]:
            continue
        slowest = max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
        gone = min(each.get(process, FAR) for each in (seen.died, seen.closed))
        for ticket, (_, at) in zip(job.came_late, job.in_hand, strict=False):
            state = next((state for when, _, state in reversed(seen.history) if when <= at), None)
            if state is None or not state.full or state.held_until or state.held_since is None:
                continue
            end = at + 2 * slowest + planned[process.name].lateness + _SOON
            if ticket not in state.running or ticket < state.current or min(gone, seen.time()) < end:
                continue
            asked = [sent for sent, command in seen.commands[process] if isinstance(command, Advance)]
            if not any(at <= sent <= end for sent in asked) and not _is_stopped(seen, process, at, end):
                yield end, f"the thread of job {job.number} was late for ticket {ticket}, and nobody asks"
