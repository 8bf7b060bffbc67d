"""Judges of slots: what jobs are told of theirs, and handles that wait until they have surely come."""

from __future__ import annotations

from intervalq.testing.simulation.judges.starts import GRAIN, Findings, Starts, blur, named
from intervalq.testing.simulation.observer import Observer
from intervalq.testing.simulation.plans import Plan


def told(seen: Observer, plan: Plan) -> Findings:
    """The slot that a job is told is the one that it begins in: it has come, and is within its tolerance.

    Where the slot may be used before it comes, what is told is when it was granted: that may be long ago.
    """
    if seen.steps:
        return  # the slot was on another clock
    starts = Starts(seen, plan)
    for start in seen.starts:
        if not start.grants:
            continue
        known = blur(seen, start.job.process, start.at)  # a process can't tell it better
        wrong = max(known, starts.error(start.grants[-1].at, start))
        late = max(grant.latest for grant in start.grants) + 2 * wrong + GRAIN
        if start.since < -wrong - GRAIN:
            yield start.at, f"{named(start)} was told of a slot {-start.since:.6f} s later"
        elif start.since > late and not any(grant.at_once for grant in start.grants):
            yield start.at, f"{named(start)} was told of a slot {start.since:.6f} s ago"


def surely(seen: Observer, plan: Plan) -> Findings:
    """A handle that is to wait until its slots have surely come starts nothing before, however far it is."""
    strict = {each.name for each in plan.processes if each.options.get("strict")}
    if seen.steps:
        return
    for start in seen.starts:
        if start.job.process.name not in strict or not start.grants:
            continue
        early = min(grant.opens for grant in start.grants) - start.at
        if early > GRAIN:
            yield start.at, f"{named(start)} began {early:.6f} s before its slot, and was to wait for it"
