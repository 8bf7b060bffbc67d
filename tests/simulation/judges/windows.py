"""Judges of limits: count what jobs take in every window, in true time and by brute force."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from intervalq import Limit
from simulation.facts import Start
from simulation.judges.clocks import ClockKnowledge
from simulation.judges.findings import GRAIN, Findings, named
from simulation.judges.starts import Starts
from simulation.observer import Observer
from simulation.plans import Plan

_STARTS: Final = "starts"


def windows(seen: Observer, plan: Plan) -> Findings:
    """In any window of a limit, jobs take at most what it allows, whatever goes wrong.

    With an edge, windows are those of the store's clock; not judged once that was stepped.
    What a job takes counts at its start. What it takes beyond its estimate counts once the store knows of it,
    and delays only jobs whose tickets are issued after that. A request that gives units back and reaches
    the store twice gives them back twice: nothing is judged after it. An error of the clock that is reported
    after a ticket was issued doesn't apply to that ticket. What the store has lost doesn't count.
    """
    if not plan.limits or seen.losses:
        return
    ways = ClockKnowledge(seen)
    placed = sorted([(_clock(seen, plan, start), place) for place, start in enumerate(seen.starts)])
    clock, starts = [at for at, _ in placed], [seen.starts[place] for _, place in placed]
    for limit in plan.limits:
        if limit.edge is not None and seen.steps:
            continue
        for place, start in enumerate(starts):
            if not _estimate(start, limit) or _issued(seen, start, limit) > seen.repeated:
                continue
            length = _length(plan, limit, clock[place])
            window = starts[bisect_right(clock, clock[place] - length) : place + 1]
            units = _units(seen, limit, window)
            if units <= limit.most:
                continue
            unseen = max(ways.unseen(each.job.process, each.at) for each in starts[: place + 1])
            name, known, issued = (
                start.record,
                Starts(seen, plan),
                [_issued(seen, each, limit) for each in window],
            )
            allowed = min(known.error_of(name, at, at) for at in issued)
            grown = known.error_of(name, min(issued), start.at) - allowed
            shorter = bisect_right(clock, clock[place] - length + 2 * (unseen + grown))
            if unseen + grown > 0 and _units(seen, limit, starts[shorter : place + 1]) <= limit.most:
                continue
            yield start.at, f"{units} {limit.unit} of {limit.most} in {length:.6f} s, to {named(start)}"
            break


def _length(plan: Plan, limit: Limit, at: float) -> float:
    """How long before an instant a window begins that contains it, in seconds of the store's clock."""
    rule = limit.rule()
    since = rule.window if rule.edge is None else (plan.store_base + at * 1e6 - rule.edge) % rule.window
    return (since + rule.jitter) / 1e6 - GRAIN


def _clock(seen: Observer, plan: Plan, start: Start) -> float:
    """The instant of a start in seconds of the store's clock, by which windows are measured.

    Backward steps are ignored, and a slot that was granted before a forward step counts as without the step.
    """
    granted = start.grants[-1].at if start.grants else start.at
    forward = sum(by for step, by in seen.steps if step <= granted and by > 0)
    return start.at * (1 + plan.store_ppm / 1e6) + forward


def _units(seen: Observer, limit: Limit, window: list[Start]) -> int:
    """What jobs took of a limit, as far as the store could know when it issued the last of their tickets."""
    taking = [each for each in window if _estimate(each, limit)]
    if limit.edge is None and taking:
        # A slot that comes sooner may leave a window that ends later, and never comes into one.
        last = max(taking, key=lambda each: min(seen.issues[each.slot], default=each.at))
        issued = _issued(seen, last, limit)
    else:
        issued = max((_issued(seen, each, limit) for each in taking), default=0.0)
    return sum(_counted(seen, each, limit, issued) for each in taking)


def _issued(seen: Observer, start: Start, limit: Limit) -> float:
    """When a job's slot got its place; with an edge, when it came into the window in which it is."""
    places, rule = seen.places[start.slot], limit.rule()
    if rule.edge is None:
        return places[-1][0] if places else start.at
    last = [(due - rule.edge) // rule.window for _, due in places]
    return next((at for (at, _), window in zip(places, last, strict=True) if window == last[-1]), start.at)


def _estimate(start: Start, limit: Limit) -> int:
    """What a job was estimated to take of a limit."""
    wanted = start.job.plan
    if limit.unit == _STARTS:
        return wanted.cost
    return wanted.units.get(limit.unit, 0)


def _counted(seen: Observer, start: Start, limit: Limit, issued: float) -> int:
    """What a job took, as far as the store could know at an instant."""
    estimate = _estimate(start, limit)
    took = start.took.get(limit.unit, estimate)
    if took <= estimate:
        return took
    settled = seen.settled.get((start.record, seen.dues.get(start.slot, 0)), float("inf"))
    return took if settled < issued else estimate
