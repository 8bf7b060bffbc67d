"""The search: every state of a scope, breadth first, and what can still begin from each of them."""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from unittest import mock

from intervalq._spec import passing
from model.parts import NO_BUGS, Bugs, Shard, Step, World
from model.scope import Scope
from model.world import Worlds

Progress = Callable[[int, int, int], None]
"""Is called with the number of known states, the number of transitions, and the depth of the search."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a search."""

    scope: Scope
    states: int
    transitions: int
    begins: int
    """The number of transitions that begin a job."""
    depth: int
    seconds: float
    broken: str = ""
    trace: tuple[tuple[str, Step], ...] = ()
    """The shortest path to a broken promise: which shard did what."""
    complete: bool = True
    """Whether all states were visited."""


def search(scope: Scope, bugs: Bugs = NO_BUGS, *, progress: Progress | None = None, most: int = 0) -> Result:
    """Visit every state of a scope, or at most `most`; stop at the first broken promise."""
    kept = mock.patch.object(passing, "IDLE_KEPT", 0) if scope.ephemeral else nullcontext()
    with kept, _no_garbage():
        return _Search(scope, bugs).run(progress, most)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Switch the garbage collector off: no state has a cycle, and it would walk through all of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Search:
    def __init__(self, scope: Scope, bugs: Bugs) -> None:
        self.scope = scope
        self.worlds = Worlds(scope, bugs)
        self.index: dict[World, int] = {}
        self.parents = array("q")
        self.targets = array("q")
        """The states that can be reached without a fault, of one state after the other;"""
        self.offsets = array("q", [0])
        """and the index at which those of each state begin."""
        self.good = bytearray()
        """Whether a job can begin, or none waits."""
        self.shards: dict[Shard, Shard] = {}
        """Each is stored once."""

    def run(self, progress: Progress | None, most: int) -> Result:
        began = time.perf_counter()
        first = self.worlds.first
        self.index[first] = 0
        self.parents.append(-1)
        layer, depth, transitions, begins = [first], 0, 0, 0
        broken: tuple[int, Step] | None = None
        while layer and broken is None and not (most and len(self.index) >= most):
            below: list[World] = []
            for world in layer:
                here = self.index[world]
                good = not self.worlds.waits(world)
                for step in self.worlds.steps(world):
                    transitions += 1
                    if step.broken:
                        broken = (here, step)
                        break
                    there = self._found(step.world, here, below)
                    begins += step.begins
                    good = good or step.begins
                    if not step.trouble and there != here:
                        self.targets.append(there)
                if broken is not None:
                    break
                self.offsets.append(len(self.targets))
                self.good.append(good)
            layer = below
            depth += 1
            if progress is not None:
                progress(len(self.index), transitions, depth)
        complete = broken is None and not layer
        what = ""
        trace: tuple[tuple[str, Step], ...] = ()
        if broken is not None:
            what, trace = broken[1].broken, self._trace(broken[0], broken[1])
        elif complete and (stuck := self._stuck()) is not None:
            what, trace = "a job waits, and none can begin any more", self._trace(stuck, None)
        seconds = time.perf_counter() - began
        return Result(self.scope, len(self.index), transitions, begins, depth, seconds, what, trace, complete)

    def _found(self, world: World, parent: int, below: list[World]) -> int:
        world = _sorted(world)
        number = self.index.get(world)
        if number is None:
            one = self.shards.setdefault
            world = _with(world, tuple(one(shard, shard) for shard in world.shards))
            number = self.index[world] = len(self.parents)
            self.parents.append(parent)
            below.append(world)
        return number

    def _stuck(self) -> int | None:
        """The first state from which no job can begin without a fault."""
        bad = [number for number in range(len(self.good) - 1, -1, -1) if not self.good[number]]
        before = -1
        while bad and len(bad) != before:
            before = len(bad)
            left = []
            for number in bad:
                for place in range(self.offsets[number], self.offsets[number + 1]):
                    if self.good[self.targets[place]]:
                        self.good[number] = 1
                        break
                else:
                    left.append(number)
            bad = left
        return min(bad, default=None)

    def _trace(self, number: int, last: Step | None) -> tuple[tuple[str, Step], ...]:
        """The steps to a state, and one more, with a name for each shard that stays the same."""
        path = [number]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        path.reverse()
        names = [chr(ord("A") + place) for place in range(self.scope.shards)]
        world, steps = self.worlds.first, []
        for there in path[1:]:
            step = next(s for s in self.worlds.steps(world) if self.index.get(_sorted(s.world)) == there)
            steps.append((names[step.who] if step.who >= 0 else "", step))
            order = sorted(range(len(names)), key=step.world.shards.__getitem__)
            names = [names[place] for place in order]
            world = _sorted(step.world)
        if last is not None:
            steps.append((names[last.who] if last.who >= 0 else "", last))
        return tuple(steps)


def _sorted(world: World) -> World:
    """Shards have no names: whatever their order, the state is the same."""
    shards: list[Shard] = sorted(world.shards)
    after = tuple(shards)
    return world if after == world.shards else _with(world, after)


def _with(world: World, shards: tuple[Shard, ...]) -> World:
    """What `_replace` does, in a third of the time."""
    return World(world.record, world.copy, shards, world.requests, world.court)
