"""Limits of a planned run that take effect, and what its jobs take of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from intervalq import Limit
from simulation.plans import Plan, PlannedJob

_UNITS: Final = ("starts", "starts", "tokens", "bytes")

_FIXED: Final = (1, 2, 5, 10, 20, 30, 60)
"""The windows, in seconds, that some limits have from one edge to the next."""


def add_windows(plan: Plan, random: Random, overruns: float) -> None:
    """Give a plan one to three limits that take effect, and let its jobs take units of them."""
    units = random.sample(_UNITS, random.randint(1, 3))
    plan.limits = tuple(_limit(plan.interval, unit, place, random) for place, unit in enumerate(units))
    for process in plan.processes:
        process.options["limits"] = plan.limits
        # A handle without settings of its own couldn't state what its jobs take.
        process.options.setdefault("interval", plan.interval)
        for name in ("burst", "max_running", "tolerance"):
            process.options.setdefault(name, getattr(plan, name))
        for job in process.jobs:
            _take(job, plan.limits, random, overruns)


def _limit(interval: float, unit: str, place: int, random: Random) -> Limit:
    """A limit whose window has several intervals, but allows fewer starts than these.

    The cells of the longest windows contain several slots.
    """
    steps = random.choice((3, 6, 12, 25, 50, 400))
    window = max(64e-6, round(interval * steps * random.uniform(0.8, 1.2), 6)) + place * 1e-6
    most = max(1, round(min(steps, 40) * random.uniform(0.2, 0.9)))
    jitter = round(window * random.uniform(0, 0.3), 6) if random.random() < 0.3 else 0.0
    edge = None
    if window >= 1 and random.random() < 0.4:
        edge, window = "utc", random.choice(_FIXED[place::3])  # limits of one unit differ in their windows
    return Limit(most if unit == "starts" else 10 * most, window, unit, jitter, edge)


def _take(job: PlannedJob, limits: tuple[Limit, ...], random: Random, overruns: float) -> None:
    starts = [limit.most for limit in limits if limit.unit == "starts"]
    job.cost = min([job.cost, *starts])
    room = {limit.unit: limit.most for limit in limits if limit.unit != "starts"}
    if not room or random.random() < 0.1:
        return
    job.cost = 1
    job.units = {unit: random.choice((0, 1, 10, most // 3, most)) for unit, most in room.items()}
    job.units = {unit: min(room[unit], units) for unit, units in job.units.items()}
    if random.random() < 0.7:
        job.took = {unit: _took(units, random, overruns) for unit, units in job.units.items() if units}


def _took(units: int, random: Random, overruns: float) -> int:
    """What a job with this estimate really takes: mostly less, sometimes more."""
    if random.random() < overruns:
        return units + random.randint(1, 20)
    return random.choice((0, units // 2, units, random.randint(0, units)))


def differ(plan: Plan, random: Random) -> None:
    """Give some handles other limits than their queue has. Those that judges know are the widest."""
    wider = tuple(replace(limit, most=2 * limit.most) for limit in plan.limits)
    for process in plan.processes:
        if random.random() < 0.4:
            process.options["limits"] = wider
    plan.limits = wider
