"""Judges of warnings: each is given once, when there is a reason, and names the cause."""

from __future__ import annotations

from typing import Final

from intervalq._spec import parse
from intervalq.rules import Advance
from simulation.facts import Warned
from simulation.granted import slots_that_came_sooner
from simulation.judges.clocks import blur
from simulation.judges.findings import GRAIN, Findings
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan, PlannedProcess

_FEW: Final = 8
"""No warning is given for fewer late slots."""

_MANY: Final = 26
"""A warning is given by the time that so many more slots, counted twice, were late than jobs began."""

_NOTABLE: Final = 0.05
"""The share of the spacing that an error of the clock takes at least if a warning is due."""

_NAMED: Final = "queue 'simulated'"
"""How each warning begins: with the queue of the run."""

_ROUGHLY: Final = 50_000
"""How exactly the judge follows the queue's clock from one request to the next, in microseconds."""

_BLOCKED: Final = 0.1
"""Later timers can't be told from a blocked event loop, in seconds."""

_LATE: Final = "jobs come too late"
_BLOCKS: Final = "something blocks"
_FAR: Final = "too far away"


def warned(seen: Observer, plan: Plan) -> Findings:
    """A process warns once about late jobs, if most are late, and once about a store that is too far away."""
    planned = {each.name: each for each in plan.processes}
    for process in seen.answers:
        if process.name not in planned:
            continue
        for what in (_LATE, _FAR):
            given = [each for each in seen.warnings if each.process is process and what in each.text]
            for warning in given:
                if not warning.text.startswith(_NAMED):
                    yield warning.at, f"{process.name} names another queue: {warning.text}"
            if len(given) > 1:
                yield given[1].at, f"{process.name} warned {len(given)} times: {given[1].text}"
            if what == _LATE:
                yield from _late(seen, planned[process.name], process, given, plan.ends)
            else:
                yield from _far(seen, process, given)


def _late(
    seen: Observer, planned: PlannedProcess, process: Process, given: list[Warned], ends: float
) -> Findings:
    """Most jobs were late before the warning, and it was given if so."""
    late = _late_slots(seen, process)
    began = sorted(start.at for start in seen.starts if start.job.process is process)
    for warning in given[:1]:
        before = [at for at in late if at <= warning.at]
        enough = any(
            2 * (len(before) - place) > len([start for start in began if at <= start <= warning.at])
            for place, at in enumerate(before[: max(0, len(before) - _FEW + 1)])
        )
        if not enough:
            yield warning.at, f"{process.name} warned after {len(before)} late slots: {warning.text}"
        yield from _cause(seen, planned, warning, ends)
    if not given and not any(job.came_late for job in seen.jobs):
        answers = [at for at, sent, _ in seen.answers[process] if isinstance(sent, Advance)]
        issued, failed = seen.own[process], seen.failures[process]
        known = [
            when
            for when, slot in _known_late(seen, process)
            if slot is None
            or not (
                any(issued.get(slot, 0.0) < each <= when for each in failed)
                or _passed_in_hold(seen, process, slot, when)
            )
        ]
        score, last = 0, 0.0
        for at in answers:
            new = sum(last < when <= at for when in known)
            score = max(0, score + 2 * new - sum(last < when <= at for when in began))
            if score > _MANY:
                yield at, f"{process.name} didn't warn that most of its jobs are late"
                break
            last = at


def _late_slots(seen: Observer, process: Process) -> list[float]:
    """When slots of a process were late at most: granted late, missed, or granted and not used."""
    used = {start.slot for start in seen.starts}
    unused = [
        grants[-1].slot
        for slot, grants in seen.grants.items()
        if grants[-1].process is process and slot not in used
    ]
    again = [grant.at for grants in seen.grants.values() for grant in grants[1:] if grant.process is process]
    threads = [job.ended for job in seen.jobs if job.process is process and job.came_late]
    known = _known_late(seen, process)
    heard = used | {*seen.grants} | {slot for _, slot in known}
    passed = [at + seen.ahead[slot] for slot, at in seen.own[process].items() if slot not in heard]
    return sorted(
        [at for at, slot in known if slot is None or not _was_away(seen, process, slot, at)]
        + [at for at in passed if not _is_away(seen, process, at)]
        + [*unused, *again, *threads]
    )


def _known_late(seen: Observer, process: Process) -> list[tuple[float, tuple[str, int] | None]]:
    """When a process heard of slots that were granted late (None), or were missed because it was too late.

    Where a record was made anew, tickets of the one before are missed, and others have their numbers.
    """
    found: list[tuple[float, tuple[str, int] | None]] = []
    before = ""
    for at, sent, answer in seen.answers[process]:
        if (state := answer.state) is not None:
            record, new = seen.trace.name(state.generation), {slot.ticket for slot in answer.taken}
            is_late = answer.granted and answer.at_once and not slots_that_came_sooner(sent, answer)
            found += [(at, None)] * bool(is_late)
            found += [
                (at, (before if ticket in new else record, ticket))
                for ticket in answer.missed
                if ticket > state.revoked_through
            ]
            before = record
    return found


def _is_away(seen: Observer, process: Process, at: float) -> bool:
    """Whether the next that a process hears of the store is that it can't be reached."""
    ends = [(back, False) for _, back in seen.exchanges[process]]
    ends += [(failed, True) for failed in seen.failures[process]]
    return min([each for each in ends if each[0] >= at], default=(at, False))[1]


def _was_away(seen: Observer, process: Process, slot: tuple[str, int], at: float) -> bool:
    """Whether a slot had passed when its process last failed to reach the store, before it heard of that."""
    if slot not in seen.dues:
        return False
    failed = max((each for each in seen.failures[process] if each <= at), default=0.0)
    then = [
        (state.clock(now) + (failed - when) * 1e6 - seen.dues[slot], state)
        for when, now, state in seen.history
        if when <= failed and state is not None and seen.trace.name(state.generation) == slot[0]
    ]
    return any(
        state.held_since is None and over > state.tolerance + state.credit + _ROUGHLY
        for over, state in then[-1:]
    )


def _passed_in_hold(seen: Observer, process: Process, slot: tuple[str, int], at: float) -> bool:
    """Whether a slot had come when its process last heard that a hold had ended: it waited until then."""
    held, ended = False, False
    for when, _, answer in seen.answers[process]:
        if when > at or (state := answer.state) is None:
            continue
        was, held = held, state.held_since is not None
        if was and not held:
            ended = state.clock(answer.now) >= seen.dues.get(slot, float("inf"))
    return ended


def _cause(seen: Observer, planned: PlannedProcess, warning: Warned, ends: float) -> Findings:
    """The cause that a warning names is the fault that its process had.

    A process can't always tell late timers from a blocked event loop. Faults end at `ends`.
    """
    least = min(seen.tolerances.values(), default=0.0)
    if planned.busy > 4 * least and warning.at < ends and _BLOCKS not in warning.text:
        yield warning.at, f"{planned.name} is busy for {planned.busy:.6f} s after each answer: {warning.text}"
    is_stopped = planned.turn is not None or any(who is warning.process for _, _, who in seen.stalls)
    if is_stopped or any(job.plan.slow for job in seen.jobs if job.process is warning.process):
        return
    if "it wakes" in warning.text:
        measured = parse.duration(warning.text.partition("it wakes ")[2].partition(" late")[0], what="") / 1e6
        if not least * 0.99 < measured <= planned.lateness * 1.01:
            yield warning.at, f"timers are {planned.lateness:.6f} s late at most: {warning.text}"
        return
    trips = max((back - sent for sent, back in seen.exchanges[warning.process]), default=0.0)
    if planned.lateness < least / 2 and trips < least / 2:
        yield warning.at, f"{warning.process.name} had no reason to be late: {warning.text}"
    elif max(4 * least, trips) < planned.lateness and warning.at < ends and "overloaded" in warning.text:
        yield warning.at, f"timers are late by up to {planned.lateness:.6f} s: {warning.text}"
    elif (
        _BLOCKS in warning.text
        and planned.lateness < _BLOCKED
        and trips < least / 2
        and not _was_slow(seen, warning)
    ):
        yield warning.at, f"{warning.process.name} is late only because of its timers: {warning.text}"


def _was_slow(seen: Observer, warning: Warned) -> bool:
    """Whether a slot that could be used at once, when its grant arrived, wasn't."""
    used = {start.slot for start in seen.starts}
    return any(
        grant.at_once and grant.process is warning.process and (slot not in used or grant is not grants[-1])
        for slot, grants in seen.grants.items()
        for grant in grants
    )


def _far(seen: Observer, process: Process, given: list[Warned]) -> Findings:
    """A process warns of a far store if it can't know the store's clock well, and says what is left."""
    for warning in given[:1]:
        known = blur(seen, process, warning.at)
        least = min(seen.tolerances.values(), default=0.0)
        if known * 3.3 + 5 * GRAIN < least * 2:
            yield warning.at, f"{process.name} knows the clock to {known:.6f} s, and warned: {warning.text}"
        yield from _remaining(seen, process, warning)
    last, state = -1.0, None
    for (asked, _), (at, sent, answer) in zip(seen.exchanges[process], seen.answers[process], strict=True):
        if state is not None and asked == last and isinstance(sent, Advance) and not given:
            apart = state.settings.interval - state.tolerance
            if sent.error * 2 > apart * _NOTABLE > 0:
                yield asked, f"{process.name} reported an error of {sent.error} us, and didn't warn"
        last, state = at, answer.state if isinstance(sent, Advance) and not answer.refused else None


def _remaining(seen: Observer, process: Process, warning: Warned) -> Findings:
    """The spacing that a warning says is left, and that without an error, follow from the error it states."""
    known, left, whole = (
        parse.duration(warning.text.partition(before)[2].partition(after)[0], what="")
        for before, after in (("is known to ", ")"), ("are at least ", " apart"), ("instead of ", ":"))
    )
    states = [answer.state for at, _, answer in seen.answers[process] if at <= warning.at and answer.state]
    for state in states[-1:]:
        apart, grain = max(0, state.settings.interval - state.tolerance), 2 + whole // 500
        some = apart - known, min(apart, apart - known * 3 // 2 + state.tolerance)
        if abs(whole - apart) > grain or all(abs(left - max(0, each)) > grain for each in some):
            yield warning.at, f"{apart} us, {known} us: {warning.text}"
