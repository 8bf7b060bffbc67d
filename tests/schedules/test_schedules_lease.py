"""Who runs under a lease ends before another run may begin, whatever the way to the store does."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import anyio
import pytest

from intervalq.errors import StoreUnavailable
from intervalq.schedules import Schedules, _lease
from intervalq.schedules._records import Records
from intervalq.schedules._runner import Runner
from intervalq.schedules.rules import Record
from schedules.world import Line, World, run

Run = tuple[float, float]
"""When it began and ended."""


async def trouble(chance: random.Random, lines: list[Line]) -> None:
    """One fault of one way to the store, and some calm."""
    line = chance.choice(lines)
    match chance.randrange(4):
        case 0:
            line.is_cut = True
        case 1:
            line.silence = anyio.Event()
        case 2:
            line.slow_swaps = chance.uniform(1, 70)
        case _:
            line.lost_answers = 1
            await anyio.sleep(chance.uniform(0, 10))
            line.is_cut = True
    await anyio.sleep(chance.uniform(1, 80))
    if line.silence is not None:
        line.silence.set()
    line.is_cut, line.silence, line.slow_swaps, line.lost_answers = False, None, 0.0, 0
    await anyio.sleep(chance.uniform(0, 30))


def runs_of(seed: int) -> list[Run]:
    """The runs of a schedule that is due all the time, by two processes."""
    runs = list[Run]()

    async def main() -> None:
        world, chance = World(), random.Random(seed)

        def declare(schedules: Schedules, _: object) -> None:
            async def work() -> None:
                begun = anyio.current_time()
                try:
                    await anyio.sleep(chance.uniform(0, 150))
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(5)  # it takes its time to end
                    runs.append((begun, anyio.current_time()))

            schedules.every("7s", name="s", overlap="wait", misfire="once")(work)

        async with world.process(declare) as one, world.process(declare) as two:
            for _ in range(25):
                await trouble(chance, [one, two])

    run(main)
    return sorted(runs)


def overlaps(runs: list[Run]) -> int:
    return sum(later[0] < earlier[1] for earlier, later in pairwise(runs))


@pytest.mark.parametrize("seed", range(6))
def test_runs_never_overlap(seed: int) -> None:
    runs = runs_of(seed)
    assert len(runs) > 10
    assert overlaps(runs) == 0


async def careless(records: Records, name: str, taken: Record, lease: int, scope: anyio.CancelScope) -> None:
    """Planted: it waits for the store's answer however long that takes."""
    while True:
        await anyio.sleep(20)
        try:
            record = await _lease.extend(records, name, taken.holder, lease)
        except StoreUnavailable:
            record = records.get(name)
            if record is not None and record.holder == taken.holder and records.now() < record.until:
                continue
        if record is None or record.holder != taken.holder or records.now() >= record.until:
            scope.cancel()
            return


def from_the_answer(records: Records) -> int:
    """Planted: the store's clock is taken for no further than when its answer came."""
    return records.now()


async def at_once(runner: Runner, taken: Record) -> None:
    """Planted: a lease that was taken long ago, by a call whose answer was lost, is relied upon."""
    runner._start(taken)


@pytest.mark.parametrize(
    ("place", "name", "bug"),
    [
        (_lease, "keep", careless),
        (Records, "latest_now", from_the_answer),
        (Runner, "_begin", at_once),
    ],
)
def test_planted_bugs_let_runs_overlap(
    place: object, name: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, bug)
    assert any(overlaps(runs_of(seed)) for seed in range(40))
