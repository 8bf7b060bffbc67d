"""Judges of what a handle says about itself: `inspect()` counts what happened, no more and no less."""

from __future__ import annotations

from itertools import product

from intervalq.rules import Advance
from simulation.granted import slots_that_came_sooner
from simulation.judges.clocks import blur
from simulation.judges.findings import GRAIN, Findings, named
from simulation.judges.starts import Starts
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan


def accounts(seen: Observer, plan: Plan) -> Findings:
    """Each figure of a handle is the number of what was seen from outside."""
    for process, account in seen.accounts.items():
        begun = sum(start.job.process is process for start in seen.starts)
        late = sum(
            answer.at_once and bool(answer.granted) and not slots_that_came_sooner(command, answer)
            for _, command, answer in seen.answers[process]
        )
        reported = {"begun": account.begun, "late": account.late, "calls": account.calls}
        found = {"begun": begun, "late": late, "calls": len(seen.questions[process])}
        if reported != found:
            yield account.at, f"{process.name} says {reported}, and it was {found}"
        if seen.answers[process] and not seen.steps:
            known = blur(seen, process, seen.time())
            if abs(account.clock) > known + GRAIN:
                yield account.at, f"{process.name} is wrong by {account.clock:.6f} s about the store's clock"
        healed = sum(answer.healed for _, _, answer in seen.answers[process])
        if account.regressions < healed:
            yield account.at, f"{process.name} reports {account.regressions} losses, and mended {healed}"
        if not (seen.losses or seen.steps or seen.reclaims or seen.copies or plan.keyed):
            least, most = _passed(seen, process)
            if not least <= account.given_up <= most:
                yield account.at, f"{process.name} gave up {account.given_up} slots, not {least} to {most}"


def _passed(seen: Observer, process: Process) -> tuple[int, int]:
    """How many slots of a process nobody used: those that surely passed while its jobs waited, and all.

    While jobs wait, slots are used in order. Those that are left when nobody waits are not given up.
    """
    used = {start.slot for start in seen.starts}
    own = seen.own[process]
    unused = [slot for slot in own if slot not in used]
    surely = 0
    for record, ticket in unused:
        grants = [grant for grant in seen.grants.get((record, ticket), ()) if grant.process is process]
        is_given_back = (record, ticket) not in seen.taken[process]
        if not grants or grants[-1].heard is None or is_given_back:
            continue
        if ticket <= seen.revoked.get(record, 0):
            continue
        ends = grants[-1].slot + grants[-1].latest
        is_asked_for = grants[0].at > own[record, ticket]  # others may be for jobs that may come
        behind = (slot for slot in used & own.keys() if slot[0] == record and slot[1] > ticket)
        waits = _wait(seen, process, grants[-1].heard, ends)
        surely += is_asked_for and waits and any(own[slot] < ends for slot in behind)
    return surely, len(unused)


def _wait(seen: Observer, process: Process, begin: float, end: float) -> bool:
    """Whether a job of a process waits at each instant of a time: if nobody does, it drops its slots."""
    for job in seen.jobs:  # in the order in which they were added
        if job.process is process and job.added <= begin:
            begin = max(begin, job.starts[0].at if job.starts else job.ended)
    return begin > end


def left_over(seen: Observer, plan: Plan) -> Findings:
    """When nobody waits any more, the last ticket of a queue is given back, so that its slot is free.

    Not if a job began late, too close to that slot: nobody may use it then. Nor if the thread of a job has it
    when its handle is closed.
    """
    if not seen.history or (last := seen.history[-1][2]) is None or seen.losses or seen.copies:
        return
    slot = seen.trace.name(last.generation), last.ticket
    if any(start.slot == slot for start in seen.starts) or last.ticket <= last.revoked_through:
        return
    for process, taken in seen.taken.items():
        is_missed = any(miss.slot == slot and miss.process is process for miss in seen.misses)
        is_over = is_missed or _is_covered(seen, plan, process, slot)
        if slot in taken and not is_over and not seen.failures[process] and process not in seen.died:
            yield seen.accounts[process].at, f"ticket {last.ticket} is of {process.name}, which has no job"


def given_back(seen: Observer, plan: Plan) -> Findings:
    """A slot is not given back if it is too close to the last start of its process: others would use it."""
    if seen.losses or seen.steps or plan.burst > 1:
        return
    known = Starts(seen, plan)
    for process, answers in seen.answers.items():
        for at, command, answer in answers:
            if not isinstance(command, Advance) or answer.state is None:
                continue
            record = seen.trace.name(answer.state.generation)
            for slot in [(record, slot.ticket) for slot in command.release]:
                for grant, start in product(seen.grants.get(slot, ())[-1:], seen.starts):
                    near = start.job.process is process and start.ticket < grant.ticket and start.at <= at
                    apart = grant.settings.interval / 1e6 - grant.latest - 2 * known.error(grant.at, start)
                    if near and max(grant.slot, at) < start.at + apart - GRAIN:
                        yield at, f"{process.name} gives ticket {slot[1]} back, too close to {named(start)}"


def _is_covered(seen: Observer, plan: Plan, process: Process, slot: tuple[str, int]) -> bool:
    """Whether a job of the process began too close to a slot granted to it, or its thread kept that."""
    known, grants = Starts(seen, plan), seen.grants.get(slot, ())[-1:]
    closed, jobs = seen.closed.get(process), [job for job in seen.jobs if job.process is process]
    if closed is not None and any(since <= closed <= until for job in jobs for since, until in job.in_hand):
        return True
    return any(
        start.job.process is process
        and start.at + 2 * known.error(grant.at, start)
        > grant.slot + grant.latest - grant.settings.interval / 1e6
        for grant in grants
        for start in seen.starts
    )
