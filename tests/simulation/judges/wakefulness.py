"""Judges of waiting: no process sleeps through an event for which it waits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import zip_longest
from typing import Final

from intervalq._timing.outage import OUTAGE
from intervalq.rules import Advance
from simulation.facts import Grant, ObservedJob
from simulation.judges.clocks import ClockKnowledge, blur
from simulation.judges.findings import Findings
from simulation.judges.starts import Starts
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_SOON: Final = 0.05
"""Allowance for steps that take no time in a running process, in seconds."""

_POLL: Final = {True: 5.0, False: 0.5}
"""How often a process asks whether a hold has ended, in seconds: with and without wake-ups from the store."""

_LONG: Final = 60.0
"""No pause of a plan that ends by itself is longer, in seconds."""

_TRIES: Final = 2
"""The most requests per second to an unreachable store: pauses between them double up to seconds."""

_AT_FIRST: Final = 40
"""Further requests: those of the first, short pauses, and those of users."""

_GIVES_UP: Final = 10.0
"""Seconds in addition to the minute for which jobs wait for a store: the longest pause, and a timeout."""

_TELLS: Final = 6.0
"""Seconds after which the store must know that a job ended: the slowest round trip and a margin."""


def wakeups(seen: Observer, plan: Plan) -> Findings:
    """A process with waiting jobs sends a request at once when it learns that a hold has ended."""
    if any(process.turn is not None for process in plan.processes):
        return
    for at, process in seen.released:
        end = at + _SOON
        if _is_away(seen, process, at, end) or not _waits(seen, process, at, end):
            continue
        if not _asks(seen, process, at, end):
            yield end, f"{process.name} learned at {at:.6f} that the queue goes on, and sent no request"


def polls(seen: Observer, plan: Plan) -> Findings:
    """A process that waits for the end of a hold asks soon after it, even if its wake-up was lost.

    If none can be lost, it asks when it is woken, or has begun to listen.
    """
    if any(process.turn is not None for process in plan.processes) or seen.losses or seen.steps:
        return
    held = [state is not None and state.held_since is not None for _, _, state in seen.history]
    ends = [seen.history[place][0] for place in range(1, len(held)) if held[place - 1] and not held[place]]
    lateness = {process.name: process.lateness for process in plan.processes}
    for process, answers in seen.answers.items():
        if process.name not in lateness or seen.failures[process]:
            continue
        heard = [(at, answer) for at, sent, answer in answers if isinstance(sent, Advance)]
        times = [at for at, _ in heard]
        hears = plan.waking and seen.lossless
        most = (seen.subscribes if hears else _POLL[plan.waking]) + lateness[process.name] + _SOON
        slowest = max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
        most += 2 * slowest
        questions, answered = seen.questions[process], {sent for sent, _ in seen.exchanges[process]}
        for at in ends:
            if (asked := bisect_right(questions, at)) and questions[asked - 1] not in answered:
                continue  # it died before it knew that no answer would come
            last = heard[place - 1][1].state if (place := bisect_right(times, at)) else None
            if last is None or last.held_since is None or _is_away(seen, process, at, at + most):
                continue
            if any(sent < at + most and end > at for sent, end in seen.withdrawn[process]):
                continue  # its users withdrew a request to which no answer came
            since = at - slowest  # a request under way will show it
            if _waits(seen, process, at, at + most) and not _asks(seen, process, since, at + most):
                yield at + most, f"{process.name} didn't ask for {most:.3f} s after a hold ended at {at:.6f}"


def on_time(seen: Observer, plan: Plan) -> Findings:
    """A process that waits for the end of a hold, and knows when it is, asks then.

    It waits once it is answered so, and may learn of the end from the answer to another command.
    """
    if any(process.turn is not None for process in plan.processes) or seen.losses or seen.steps:
        return
    lateness, rate = {process.name: process.lateness for process in plan.processes}, 1 + plan.store_ppm / 1e6
    for process, answers in seen.answers.items():
        if process.name not in lateness or seen.failures[process]:
            continue
        most = lateness[process.name] + _SOON
        most += 4 * max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
        waits = False
        for (at, sent, answer), then in zip_longest(answers, [at for at, *_ in answers[1:]]):
            state = answer.state
            if state is None or state.held_since is None:
                waits = False
                continue
            waits = waits or isinstance(sent, Advance)
            if state.full or not waits:
                continue
            end = at + (state.held_until - answer.now) / 1e6 / rate
            if not at < end < at + _LONG or _is_away(seen, process, at, end + most):
                continue
            if then is not None and then <= end:
                continue  # that answer is judged
            if _waits(seen, process, at, end + most) and not _asks(seen, process, at, end + most):
                yield end + most, f"{process.name} knew that a pause ended at {end:.6f}, and didn't ask"


def unused(seen: Observer, plan: Plan) -> Findings:
    """A slot that is granted in time while a job waits is used, or its grant is requested again.

    Not judged if jobs cost several slots or units: a slot too cheap for the next job is skipped. Nor if
    another process was granted a later slot, after which this one can't be granted late, and its own process
    may have been too late: because of its timers and its error of the clock, because a late start moved the
    slots behind it, or because the function that was handed the slot was cancelled before it began, or its
    thread came too late.
    """
    if any(job.plan.cost > 1 or job.plan.units for job in seen.jobs):
        return
    lateness = {process.name: process.lateness for process in plan.processes if process.turn is None}
    used = {(start.record, start.ticket, start.job.process) for start in seen.starts}
    starts = Starts(seen, plan)
    for (record, ticket), grants in seen.grants.items():
        for place, grant in enumerate(grants):
            process, heard, until = grant.process, grant.heard, grant.slot + grant.latest
            if heard is None or heard > grant.slot or process.name not in lateness:
                continue
            if (record, ticket, process) in used or len(grants) > place + 1:
                continue
            own = [job for job in seen.jobs if job.process is process and ticket in job.came_late]
            lags = max([job.plan.slow + job.plan.lags for job in own], default=0.0)
            end = until + 3 * starts.error_of(record, grant.at, until) + lateness[process.name] + _SOON + lags
            if _is_disturbed(seen, grant, end) or _is_away(seen, process, heard, end):
                continue
            late = lags + lateness[process.name] + blur(seen, process, grant.slot)
            has_moved = _has_moved(seen, record, ticket, process)
            if has_moved:
                end += _end_of_row(seen, record, ticket, end) - until
            may_miss = late > grant.latest or has_moved or _was_withdrawn(seen, process, heard, end)
            if may_miss and _is_behind(seen, record, ticket, end):
                continue
            if _waits(seen, process, heard, end) and not _asks(seen, process, heard, end):
                yield end, f"{process.name} slept through ticket {ticket} of {record}, and a job waits"


def outages(seen: Observer, plan: Plan) -> Findings:
    """Jobs wait a minute for an unreachable store, then they fail; few requests are sent to it meanwhile.

    What is to be reported when no job waits is reported with a later request.
    """
    if any(process.turn is not None for process in plan.processes):
        return
    jobs = [job for job in seen.jobs if job.outcome is not None]
    for process, failures in seen.unanswered.items():
        for begin, end in _without_answer(seen, process, failures):
            if _is_away(seen, process, begin, end):
                continue
            asked = bisect_right(seen.questions[process], end) - bisect_left(seen.questions[process], begin)
            if asked > (most := _TRIES * (end - begin) + _AT_FIRST):
                yield end, f"{process.name} asked {asked} times while the store was away, {most:.0f} suffice"
            until = begin + OUTAGE / 1e6 + _GIVES_UP
            if until < end and _waits(seen, process, begin, until):
                yield until, f"{process.name} still waits for a store that was away at {begin:.6f}"
            is_wanted = any(job.process is process and job.added < end and begin < job.ended for job in jobs)
            if until < end and not is_wanted:
                yield end, f"{process.name} asks a store that was away at {begin:.6f}, and no job waits"


def _without_answer(seen: Observer, process: Process, failures: list[float]) -> list[tuple[float, float]]:
    """The outages as a process saw them: from the first failure to the last one before an answer.

    If no request was needed for longer than the pauses between them, an outage begins anew.
    """
    heard = [back for _, back in seen.exchanges[process]]
    spans: list[tuple[float, float]] = []
    for at in failures:
        is_same = spans and bisect_left(heard, spans[-1][0]) == bisect_left(heard, at)
        if is_same and at - spans[-1][1] <= _GIVES_UP:
            spans[-1] = spans[-1][0], at
        else:
            spans.append((at, at))
    return [span for span in spans if span[1] > span[0] + 1]


def freed(seen: Observer, plan: Plan) -> Findings:
    """With `max_running`, the store soon learns that a job ended, or that a slot won't be used.

    Judged if the process with the slot runs and reaches the store, and the store loses no writes.
    """
    if (
        seen.copies
        or seen.losses
        or seen.steps
        or any(process.turn is not None for process in plan.processes)
    ):
        return
    ends = {start.slot: start.ended for start in seen.starts}
    for slot, until in seen.leased.items():
        heard = [grant for grant in seen.grants.get(slot, ()) if grant.heard is not None]
        if not heard:
            continue  # the answer was lost
        process = heard[-1].process
        gone = seen.exited.get(process, until)
        if gone < until and ends.get(slot, gone) <= gone and not seen.failures[process]:
            yield (
                until,
                f"ticket {slot[1]} of {slot[0]} counts as running, and its process ended at {gone:.6f}",
            )
        end = ends.get(slot) or _idle(seen, process, until)
        if until <= end + _TELLS or _is_away(seen, process, end, until):
            continue
        if not any(end - _TELLS < at < until for at in seen.failures[process]):
            yield (
                until,
                f"ticket {slot[1]} of {slot[0]} counts as running, {until - end:.6f} s after it ended",
            )


def _idle(seen: Observer, process: Process, until: float) -> float:
    """When the last job of a process ended; the given instant if one hasn't."""
    ends = [job.ended if job.outcome is not None else until for job in seen.jobs if job.process is process]
    return max(ends, default=until)


def _is_disturbed(seen: Observer, grant: Grant, end: float) -> bool:
    """Whether its process may have given up a grant because of a step of the clock, or of lost writes.

    It may learn of a step late, when its estimate of the clock has become precise enough to show it.
    """
    heard = grant.heard or grant.at
    if ClockKnowledge(seen).unseen(grant.process, heard) > 0:
        return True
    since = max((sent for sent, back in seen.exchanges[grant.process] if back < heard), default=0.0)
    return any(since <= at <= end for at in (*seen.losses, *(at for at, _ in seen.steps)))


def _was_withdrawn(seen: Observer, process: Process, since: float, until: float) -> bool:
    """Whether a plain function that may have had the slot was cancelled before it began in its thread."""
    return any(
        job.process is process and job.plan.way == "thread" and job.cancelled and not job.starts
        for job in seen.jobs
        if since <= job.ended <= until
    )


def _is_behind(seen: Observer, record: str, ticket: int, until: float) -> bool:
    """Whether another process was granted a later ticket by then, so that this one can't be granted late."""
    owner = seen.grants[record, ticket][-1].process
    return any(
        other.at <= until and other.process is not owner
        for (name, later), grants in seen.grants.items()
        if name == record and later > ticket
        for other in grants
    )


def _has_moved(seen: Observer, record: str, ticket: int, process: Process) -> bool:
    """Whether a process began late in a slot before this one."""
    return any(
        start.record == record
        and start.ticket < ticket
        and start.job.process is process
        and any(start.at > grant.slot + grant.latest for grant in start.grants[-1:])
        for start in seen.starts
    )


def _end_of_row(seen: Observer, record: str, ticket: int, heard: float) -> float:
    """The end of the last of the consecutive slots of one process that begin with a ticket."""
    grant = seen.grants[record, ticket][-1]
    row, last = grant, ticket
    while True:
        last += 1
        grants = [each for each in seen.grants.get((record, last), ()) if each.process is grant.process]
        if not grants or grants[-1].heard is None or grants[-1].heard > heard:
            return row.slot + row.latest
        row = grants[-1]


def _is_away(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a process was dead, closed or stopped at some time between two instants."""
    if min(seen.died.get(process, end), seen.closed.get(process, end), seen.time()) < end:
        return True
    return any(who is process and since < end and until > begin for since, until, who in seen.stalls)


def _waits(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a job of a process waits from one instant to another."""

    def waits(job: ObservedJob) -> bool:
        began = job.starts[0].at if job.starts else float("inf")
        if any(since <= at <= until for since, until in job.in_hand for at in (begin, end)):
            return False  # its thread has a slot
        return job.added < begin and began > end and (job.outcome is None or job.ended > end)

    return any(job.process is process and waits(job) for job in seen.jobs)


def _asks(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a process sends a request between two instants."""
    sent = seen.questions[process]
    return bisect_left(sent, begin) < bisect_right(sent, end)
