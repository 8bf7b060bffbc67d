"""Judges of costs that are known afterwards: reports reach the store as they are, once, and in time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from intervalq.rules import STARTS, Advance, Command, Limit, Units
from simulation.facts import Start
from simulation.granted import granted_slots
from simulation.judges.findings import Findings, named
from simulation.loop import Process
from simulation.observer import Observer
from simulation.plans import Plan

_WAITS: Final = 1.0
"""How long a report waits for a request at most, in seconds."""

_HELD: Final = 5.0
"""The same while the queue is held."""

_AWAY: Final = 60.0
"""How long a request without an answer may delay others, in seconds."""

_SOON: Final = 0.05
"""Allowance for steps that take no time in a running process, in seconds."""


_EARLY: Final = 0.99
"""Allowance for clocks that run fast."""

_FEW: Final = 3
"""So many missed slots don't all stop counting before they are given back."""


class _Report(NamedTuple):
    """What a request says of a job: when it was sent, and the difference from the estimate by unit."""

    at: float
    lag: int
    more: Mapping[str, int]


def settlements(seen: Observer, plan: Plan) -> Findings:
    """What a job took is reported with the next request, a second later at most; overruns until answered.

    Units that were not needed are sent once, because they count twice if both requests arrive; so are those
    of slots that nobody uses. Not judged once the store has lost writes: tickets may be others' then.
    """
    if not plan.limits or seen.losses:
        return
    jobs: dict[tuple[str, int], list[Start]] = defaultdict(list)
    for start in seen.starts:
        jobs[start.record, seen.dues.get(start.slot, 0)].append(start)
    sent: dict[tuple[str, int], list[_Report]] = defaultdict(list)
    for process, commands in seen.commands.items():
        refused = {id(command) for _, command, answer in seen.answers[process] if answer.refused}
        for at, command in commands:
            if id(command) in refused:  # it had no effect, and is sent again
                continue
            for key, report in _reports(seen, at, command):
                sent[key].append(report)
                refunds = len(sent[key]) == 1 and max(report.more.values(), default=0) <= 0
                if key not in jobs and not refunds:  # a slot that nobody uses is refunded once
                    yield at, f"a job in the slot {key[1]} of {key[0]} was settled, and none began in it"
    grants = _grants(seen)
    for key, starts in jobs.items():
        if len(starts) == 1:
            granted = grants.get(starts[0].slot, [])
            more = _beyond(starts[0], granted)
            yield from _true(seen, starts[0], sent[key], granted)
            yield from _prompt(seen, plan, starts[0], sent[key], more)
            yield from _kept(seen, plan, starts[0], key, more)
            yield from _told(seen, plan, starts[0], key, more)
    yield from _alone(seen, plan, jobs)
    yield from _refunded(seen, plan, jobs)


def _true(seen: Observer, start: Start, reports: list[_Report], grants: list[_Report]) -> Findings:
    """Reports are true: the first one has all units, others those beyond the estimate.

    The first may have been lost on its way to an absent store.
    """
    failed = seen.failures[start.job.process]
    for grant in grants[-1:]:
        wanted = _beyond(start, [grant])
        over = {unit: more for unit, more in wanted.items() if more > 0}
        for place, report in enumerate(reports):
            was_lost = any(start.ended <= at <= report.at for at in failed)
            if report.more != (over if place else wanted) and not (was_lost and report.more == over):
                yield (
                    report.at,
                    f"{named(start)} took {wanted} more, and {report.more} was sent (#{place + 1})",
                )
            if report.lag not in [each.lag for each in grants]:
                yield report.at, f"{named(start)} was granted at a lag of {grant.lag}, not {report.lag}"


def _prompt(
    seen: Observer, plan: Plan, start: Start, reports: list[_Report], more: Mapping[str, int]
) -> Findings:
    """The report is sent in time, unless something stops its process."""
    process = start.job.process
    planned = {each.name: each for each in plan.processes}.get(process.name)
    if planned is None or planned.turn is not None or not more or _is_gone(seen, start):
        return
    slowest, counts = _slowest(seen, process), _counts(plan, start, more)
    cells = [limit.rule().block / 1e6 for limit in plan.limits if limit.unit in more]
    until = start.ended + min([_WAITS, *cells]) + 2 * planned.lateness + 2 * slowest + _SOON
    if seen.holds or seen.limited:
        until += _HELD + slowest
    stopped = any(who is process and begin <= until and end >= start.ended for begin, end, who in seen.stalls)
    heard = {sent for sent, _ in seen.exchanges[process]}
    failed = any(start.ended - _AWAY <= at <= until and at not in heard for at in seen.questions[process])
    is_over = min(seen.time(), counts) <= until or seen.died.get(process, until) < until
    if not (stopped or failed or is_over) and not any(report.at <= until for report in reports):
        yield until, f"{named(start)} was settled at {start.ended:.6f}, and nothing was sent"


def _kept(
    seen: Observer, plan: Plan, start: Start, key: tuple[str, int], more: Mapping[str, int]
) -> Findings:
    """By the next answer about slots, an answered request has reported what was beyond the estimate."""
    process = start.job.process
    if max(more.values(), default=0) <= 0 or _is_gone(seen, start):
        return
    answers = zip(seen.exchanges[process], seen.answers[process], strict=True)
    after, counts = start.ended + _slowest(seen, process) + _SOON, _counts(plan, start, more)
    for (sent, _), (at, command, _) in answers:
        if at > counts or any(other == key for other, _ in _reports(seen, at, command)):
            return
        if sent > after and isinstance(command, Advance) and (command.slots or command.take):
            yield at, f"{named(start)} took more than its estimate, and no answered request said so"
            return


def _told(
    seen: Observer, plan: Plan, start: Start, key: tuple[str, int], more: Mapping[str, int]
) -> Findings:
    """A closed handle has told the store what was beyond the estimate, if the store answered meanwhile."""
    process = start.job.process
    shut, closed = seen.shut.get(process), seen.closed.get(process, float("inf"))
    if shut is None or max(more.values(), default=0) <= 0 or _is_gone(seen, start):
        return
    if shut > _counts(plan, start, more) or any(at >= closed for at in seen.failures[process]):
        return
    told = {each for at, sent, _ in seen.answers[process] for each, _ in _reports(seen, at, sent)}
    if key not in told:
        yield shut, f"{process.name} is closed, and the store doesn't know what {named(start)} took"


def _alone(seen: Observer, plan: Plan, jobs: Mapping[tuple[str, int], list[Start]]) -> Findings:
    """What a job took gets a request of its own only if no other one was sent for some time."""
    if seen.holds or seen.limited or seen.losses:
        return
    for process, commands in seen.commands.items():
        if seen.failures[process]:
            continue
        told = set[tuple[str, int]]()
        for at, command in commands:
            keys = {key for key, _ in _reports(seen, at, command)}
            starts = [start for key in keys - told for start in jobs.get(key, ())]
            told |= keys
            if not isinstance(command, Advance) or command.slots or command.take or command.release:
                continue
            if not keys or len(starts) < len(keys) or at >= seen.closed.get(process, at + 1):
                continue
            since = [start.ended + _patience(plan, start) for start in starts]
            if at < min(since):
                yield at, f"{process.name} sent a request only for what {named(starts[0])} took"


def _patience(plan: Plan, start: Start) -> float:
    """How long a report waits for a request that it can go with, at least."""
    cells = [limit.rule().block / 1e6 for limit in plan.limits if limit.unit in start.took]
    return min([_WAITS, *cells]) * _EARLY


def _refunded(seen: Observer, plan: Plan, jobs: Mapping[tuple[str, int], list[Start]]) -> Findings:
    """A process that has missed slots gives back what they took; not judged if the store may do that."""
    if seen.losses or seen.steps or seen.changes or seen.copies or seen.limited or seen.reclaims:
        return
    if not any(limit.unit == STARTS for limit in plan.limits) or any(limit.edge for limit in plan.limits):
        return
    for process, own in seen.own.items():
        if seen.failures[process] or process in seen.died or process in seen.closed:
            continue
        stopped = max([end - begin for begin, end, who in seen.stalls if who is process], default=0.0)
        if max(limit.rule().window for limit in plan.limits) / 1e6 < stopped + _WAITS:
            continue  # what it has missed may not count any more
        sent = [command for _, command in seen.commands[process] if isinstance(command, Advance)]
        released = {slot.ticket for command in sent for slot in command.release}
        settled = [key for command in sent for key, _ in _reports(seen, 0.0, command) if key not in jobs]
        last = max([start.ticket for start in seen.starts if start.job.process is process], default=0)
        used = {start.slot for start in seen.starts}
        missed = [
            slot
            for slot in own
            if slot not in used
            and slot[1] < last
            and slot[1] not in released
            and any(
                grant.process is process and grant.heard is not None for grant in seen.grants.get(slot, ())
            )
        ]
        if len(missed) >= _FEW and not settled:
            yield seen.time(), f"{process.name} missed {len(missed)} slots, and gave nothing back"


def _is_gone(seen: Observer, start: Start) -> bool:
    """Whether what a job took is not reported: its handle was closed, or its record is another one by now."""
    process = start.job.process
    if seen.closed.get(process, float("inf")) <= start.ended or seen.losses:
        return True
    return seen.died.get(process, float("inf")) <= start.ended


def _counts(plan: Plan, start: Start, more: Mapping[str, int]) -> float:
    """Until when the slot of a job counts for all limits that it settles, at least; at an edge, no longer."""
    rules = [limit.rule() for limit in plan.limits if limit.unit in more]
    return start.at + min(rule.window / 1e6 if rule.edge is None else 0.0 for rule in rules)


def _beyond(start: Start, grants: list[_Report]) -> dict[str, int]:
    """How much more than its ticket a job took and reported, by unit; negative: less."""
    taken = grants[-1].more if grants else start.job.plan.units
    return {unit: more for unit, took in start.took.items() if (more := took - taken.get(unit, 0))}


def _reports(seen: Observer, at: float, command: Command) -> Iterator[tuple[tuple[str, int], _Report]]:
    """The reports of a request, by the record and the slot of each."""
    if isinstance(command, Advance) and command.generation is not None:
        name = seen.trace.name(command.generation)
        for due, lag, more, _ in command.settled:
            yield (
                (name, due),
                _Report(at, lag, _by_unit(command.settings.limits if command.settings else (), more)),
            )


def _grants(seen: Observer) -> dict[tuple[str, int], list[_Report]]:
    """`State.lag` at each grant, and what its ticket takes, by the record and the ticket, in order."""
    grants: dict[tuple[str, int], list[_Report]] = defaultdict(list)
    for answers in seen.answers.values():
        for at, command, answer in answers:
            if isinstance(command, Advance) and answer.state is not None:
                name = seen.trace.name(answer.state.generation)
                for slot in (*granted_slots(command, answer), *answer.taken[: answer.begun]):
                    limits = (command.settings or answer.state.settings).limits
                    report = _Report(at, answer.state.lag, _by_unit(limits, slot.units))
                    grants[name, slot.ticket].append(report)
    return {slot: sorted(granted, key=lambda grant: grant.at) for slot, granted in grants.items()}


def _by_unit(limits: Iterable[Limit], units: Units) -> dict[str, int]:
    """The units of a request, which are in the order of these limits; what is 0 is left out."""
    names = [limit.unit for limit in limits]
    return {unit: some for unit, some in zip(names, units, strict=False) if some and unit != STARTS}


def _slowest(seen: Observer, process: Process) -> float:
    """The longest round trip of a process, in seconds."""
    return max((back - sent for sent, back in seen.exchanges[process]), default=0.0)
