"""One run: one seed of one mix, from the plan to the verdict."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from unittest import mock

from intervalq._shard import dispatcher, warnings
from simulation.facts import Violation
from simulation.loop import OWNER, WorldLoop
from simulation.observer import Observer
from simulation.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one run."""

    mix: str
    seed: int
    violations: list[Violation]
    digest: str
    """A digest of the trace; empty unless the trace was requested."""
    lines: list[str] = field(repr=False)
    """The trace; empty unless it was requested or a promise was broken."""
    jobs: int
    starts: int
    used: int
    """How many slots the starts took."""
    wanted: float
    """How many slots there were while jobs waited."""
    waited: float
    """The sum of the waits of all jobs for their first starts, in seconds."""
    given_up: int
    late: int
    """How many slots were granted late."""
    calls: int
    steps: int
    """How many steps of event loops all processes took."""
    seconds: float
    """True time at the end."""


class _Warned(set[object]):
    """What each simulated process has warned about: real ones share no memory."""

    def __contains__(self, item: object) -> bool:
        return super().__contains__((OWNER.get(), item))

    def add(self, item: object) -> None:
        super().add((OWNER.get(), item))


class _Log:
    """Takes the place of the logger of warnings about late jobs and far stores."""

    def __init__(self, seen: Observer) -> None:
        self._seen = seen

    def warning(self, text: str, *values: object) -> None:
        """Record a warning of the current process."""
        self._seen.warned(OWNER.get(), text % values)


def simulate(mix: str, seed: int, *, trace: bool = False) -> Run:
    """Run one schedule, and judge it."""
    logger = logging.getLogger("intervalq")
    quiet, logger.disabled = logger.disabled, True  # the faults are intended
    dice = random.getstate()
    random.seed(f"{mix}:{seed}:shards")  # shards use the generator of the module `random`
    loop = WorldLoop(horizon=1e6)
    try:
        world = World(mix, seed, loop)
        with (
            mock.patch.multiple(warnings, log=_Log(world.seen), _warned=_Warned()),
            mock.patch.object(dispatcher, "run_soon"),  # what it asks for is asked of the real kernel
        ):
            loop.run_until_complete(world.run())
    finally:
        loop.close()
        random.setstate(dice)
        logger.disabled = quiet
    seen = world.seen
    return Run(
        mix=mix,
        seed=seed,
        violations=seen.violations,
        digest=seen.trace.digest() if trace else "",
        lines=seen.trace.lines() if trace or seen.violations else [],
        jobs=len(seen.jobs),
        starts=len(seen.starts),
        used=sum(start.job.plan.cost for start in seen.starts),
        wanted=seen.wanted,
        waited=sum(job.starts[0].at - job.added for job in seen.jobs if job.starts),
        given_up=sum(actor.shard.given_up for actor in world.actors if actor.shard is not None),
        late=seen.late,
        calls=seen.calls,
        steps=world.steps,
        seconds=world.ended,
    )
