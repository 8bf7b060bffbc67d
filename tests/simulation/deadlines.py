"""Jobs of a planned run that must begin in time: hopeless ones, just possible ones, and easy ones."""

from __future__ import annotations

from random import Random
from typing import Final

from simulation.plans import Plan, PlannedJob

_TRIES: Final = 3
"""How many jobs that can't wait are added late in a run."""


def add_deadlines(plan: Plan, random: Random) -> None:
    """Give most jobs of a plan a time in which they must begin, and let processes ask for quotes."""
    jobs = [job for process in plan.processes for job in process.jobs]
    heavy, ranked = random.random() < 0.3, random.random() < 0.2
    longest = plan.interval * max(1, len(jobs))
    for job in jobs:
        if random.random() < 0.75:
            _limit(job, plan.interval, longest, random)
        job.fails = job.retries = 0
        if not plan.limits:
            job.cost = random.choice((1, 1, 2, 4)) if heavy else 1
        job.priority = random.choice((0, 0, 0, 1, -1)) if ranked else 0
    for _ in range(random.randint(0, 6)):
        process = random.choice(plan.processes)
        plan.verbs.append((random.uniform(process.at, plan.ends), process.name, "quote", 0))
    pauses = [at for at, _, verb, _ in plan.verbs if verb == "pause"]
    for _ in range(_TRIES):  # most of them find an idle queue, or one that is held
        at, process = random.uniform(plan.ends / 2, plan.ends), random.choice(plan.processes)
        if pauses and random.random() < 0.5:
            at = pauses[0] + random.uniform(0, 0.5)
        process.jobs.append(PlannedJob(at=max(at, process.at), way="try", timeout=0.0))


def _limit(job: PlannedJob, interval: float, longest: float, random: Random) -> None:
    if job.way in {"slot", "run"} and random.random() < 0.4:
        job.way = "try"
    spans = [(0.05, 1.0), (0.5, 4.0), (2.0, 20.0)]
    low, high = random.choice(spans)
    job.timeout = interval * random.uniform(low, high)
    if random.random() < 0.3:
        job.timeout = random.uniform(0.1, 1.2) * longest
    if job.way == "try" and random.random() < 0.3:
        job.timeout = 0.0
