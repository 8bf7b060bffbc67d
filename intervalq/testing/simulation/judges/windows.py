"""Judges of windows: what the service that jobs call counts, by true time and by brute force."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from intervalq import Limit
from intervalq.testing.simulation.facts import Start
from intervalq.testing.simulation.judges.starts import GRAIN, Findings, named
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan

_STARTS: Final = "starts"


def windows(seen: Observer, plan: Plan) -> Findings:
    """In any window of a limit, jobs take at most so much of it as it allows, whatever goes wrong.

    What a job took counts when it began. More than its estimate counts once the store was told of it: it
    delays the jobs whose tickets are issued from then on, and not those from before.
    """
    if not plan.limits:
        return
    starts = sorted(seen.starts, key=lambda start: start.at)
    clock = [_clock(seen, plan, start.at) for start in starts]
    for limit in plan.limits:
        length = float(limit.window) + float(limit.jitter) - GRAIN
        for place, start in enumerate(starts):
            first = bisect_right(clock, clock[place] - length)
            window = [each for each in starts[first : place + 1] if _estimate(each, limit)]
            if not _estimate(start, limit):
                continue
            issued = max(_issued(seen, each) for each in window)
            units = sum(_counted(seen, each, limit, issued) for each in window)
            if units > limit.most:
                what = f"{units} {limit.unit} of {limit.most} in {length:.6f} s, to {named(start)}"
                yield start.at, what
                break


def _clock(seen: Observer, plan: Plan, at: float) -> float:
    """Seconds of the store's clock until an instant, by which windows are measured; set back, they go on."""
    return at * (1 + plan.store_ppm / 1e6) + sum(by for step, by in seen.steps if step <= at and by > 0)


def _issued(seen: Observer, start: Start) -> float:
    return max(seen.issues[start.slot], default=start.at)


def _estimate(start: Start, limit: Limit) -> int:
    """What a job was to take of a limit."""
    wanted = start.job.plan
    if limit.unit == _STARTS:
        return wanted.cost
    return wanted.units.get(limit.unit, 0)


def _counted(seen: Observer, start: Start, limit: Limit, issued: float) -> int:
    """What a job took, by what the store could know when it issued a ticket."""
    estimate = _estimate(start, limit)
    took = start.took.get(limit.unit, estimate)
    if took <= estimate:
        return took
    told = seen.settled.get((start.record, seen.dues.get(start.slot, 0)), float("inf"))
    return took if told < issued else estimate
