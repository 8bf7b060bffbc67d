"""Handles of a planned run that don't agree: other settings, each way to deal with them, and later starts."""

from __future__ import annotations

from random import Random

from intervalq.testing.simulation.plans import Plan


def add_joins(plan: Plan, random: Random) -> None:
    """Give some handles other settings and an `on_mismatch`; let some keep their jobs until they are started."""
    for process in plan.processes:
        if not process.options.get("interval"):
            continue
        if random.random() < 0.6:
            process.options["on_mismatch"] = random.choice(("adopt", "update", "raise"))
        if random.random() < 0.5:
            process.options["interval"] = round(plan.interval * random.choice((1.5, 2.0, 3.0)), 6)
        if random.random() < 0.3:
            process.options["burst"] = random.choice((1, 2, 4))
        if random.random() < 0.2:
            process.options["max_running"] = random.choice((1, 3))
        if random.random() < 0.3:
            process.options["start"] = False
            process.starts = random.uniform(process.at, plan.ends)
