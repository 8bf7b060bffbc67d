"""A virtual day with every kind of use and fault leaves nothing behind: no task, timer or object."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from rich.console import Console

import soak
from intervalq import IntervalQueue
from intervalq.errors import IntervalqError
from virtual_store import FarStore, Starts, in_virtual_time, queue_on

HOURS = 24
INTERVAL = 20.0
SHARDS = 4
PACKAGES = {"intervalq", "intervalq_stores", "anyio", "asyncio", "_asyncio"}


class Census(NamedTuple):
    """How many objects exist, and how many of each kind that a queue could leave behind."""

    objects: int
    kinds: Counter[str]


class UserError(Exception):
    """The error that some jobs raise."""


class Day:
    """Four handles that share a queue over connections of their own, and what their users do in an hour."""

    def __init__(self) -> None:
        first = FarStore(delay=0.01)
        self.lines = [first, *(FarStore(first.behind, delay=0.01, seed=seed) for seed in range(1, SHARDS))]
        self.queues = [queue_on(line, interval=INTERVAL, max_running=3) for line in self.lines]
        self.dice = random.Random(24)
        self.starts = Starts()
        self.outcomes: Counter[str] = Counter()

    async def use(self, queue: IntervalQueue) -> None:
        """Make one call of a random kind at a random moment."""
        dice = self.dice
        await anyio.sleep(dice.uniform(0, 3_000))
        kind = dice.choice(("run", "slot", "add", "cancelled", "impatient", "fails", "key", "map", "cool"))
        try:
            if kind == "run":
                await queue.run(lambda: self.starts.job(kind, dice.uniform(0, 5)))
            elif kind == "slot":
                async with queue.slot(cost=dice.choice((1, 1, 2))):
                    await self.starts.job(kind)
            elif kind == "add":
                job = await queue.add(self.starts.job, kind, priority=dice.choice((0, 1)))
                await job
            elif kind == "cancelled":
                with anyio.move_on_after(dice.uniform(0, 2 * INTERVAL)):
                    await queue.run(lambda: self.starts.job(kind, INTERVAL))
            elif kind == "impatient":
                await queue.run(lambda: self.starts.job(kind), timeout=dice.uniform(0.001, INTERVAL))
            elif kind == "fails":
                await queue.run(self.fail, retries=1)
            elif kind == "key":
                async with queue[f"tenant-{dice.randrange(10**9)}"].slot():
                    pass
            elif kind == "map":
                async for _ in queue.map(self.starts.job, range(3)):
                    pass
            else:
                await queue.cool_down(dice.uniform(0.1, 30))
        except (IntervalqError, UserError) as error:
            kind = type(error).__name__
        self.outcomes[kind] += 1

    async def fail(self) -> None:
        await self.starts.job("fails")
        raise UserError

    async def hour(self) -> None:
        """Make forty calls on each handle, with an outage, lost answers, a pause, and a lost record."""
        async with anyio.create_task_group() as group:
            for queue in self.queues:
                for _ in range(40):
                    group.start_soon(self.use, queue)
            await anyio.sleep(500)
            for line in self.lines:
                line.loses_answers = 0.1
            await anyio.sleep(500)
            self.lines[0].is_down = True
            await anyio.sleep(30)
            self.lines[0].is_down = False
            for line in self.lines:
                line.loses_answers = 0.0
            await anyio.sleep(100)
            await self.queues[1].pause()
            await anyio.sleep(100)
            await self.queues[2].resume()
            await anyio.sleep(500)
            await self.queues[3].drop()
        await anyio.sleep(600)  # leases and ephemeral records lapse
        for line in self.lines:
            line.calls.clear()


def census() -> Census:
    """Count the objects that exist."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    ours = Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if str(kind.__module__).partition(".")[0] in PACKAGES
        }
    )
    return Census(kinds.total(), ours)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "intervalq")  # the faults are intended, and kept records are objects


@in_virtual_time
async def test_a_day_leaves_nothing_behind() -> None:
    counts: list[Census] = []
    day = Day()

    for _ in range(HOURS):
        await day.hour()
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
        assert not [timer for timer in timers if not timer.cancelled()], "a handle at rest has no timer"
        assert len(asyncio.all_tasks()) == 1, "a handle at rest has no task"
        counts.append(census())
    names = await day.lines[0].names()
    assert len(names) < 200, "records of keys that are not used any more lapse"
    assert len(day.starts.log) > HOURS * 100
    # Each hour somebody drops the queue: granted jobs may begin beside those of the new record.
    assert sum(gap < 0.9 * INTERVAL for gap in day.starts.gaps) <= HOURS // 4
    wanted = {"run", "slot", "add", "cancelled", "key", "map", "cool", "SlotTimeout", "UserError"}
    assert wanted <= set(day.outcomes), "every kind of use happened"
    settled = counts[2]  # by now, everything that is created at first use exists
    # An hour may end while records wait to lapse, so only objects that remain at the end of each hour count.
    grown = min(sum((count.kinds - settled.kinds).values()) for count in counts[-3:])
    assert grown < HOURS / 2, "less than one object in two hours"
    assert counts[-1].objects < 1.05 * settled.objects


# --- the same in real time: `python tests/soak.py` ---------------------------------------------------


def test_a_real_shard_tells_its_figures(tmp_path: Path) -> None:
    # In a process of its own: counting the objects of one that has run many tests takes longer than a slot.
    script = str(Path(__file__).with_name("soak.py"))
    command = [sys.executable, script, "--shard", str(tmp_path / "state.db"), "--minutes", "0.01"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    looks = [json.loads(line) for line in output.splitlines()]
    assert looks
    assert looks[-1]["starts"] > 0
    assert set(looks[0]) == {"starts", *soak.SLACK}


@pytest.mark.parametrize("grows", [None, *soak.SLACK, "connections", "starts"])
def test_growth_of_one_shard_is_found(grows: str | None) -> None:
    """Its tenth count equals its first except for what grows; without `starts`, no job starts at all."""
    flat = {"starts": 0 if grows == "starts" else 9, **dict.fromkeys(soak.SLACK, 20_000)}
    growing = [
        {**flat, **({grows: 20_000 + 900 * look} if grows in soak.SLACK else {})} for look in range(20)
    ]
    looks = {("redis", 0): [flat] * 20, ("redis", 1): growing}
    clients = {"redis": [4 + look * (grows == "connections") for look in range(20)]}
    console = Console(width=200)
    with console.capture() as shown:
        fine = soak.sum_up(looks, clients, console)
    assert fine == (grows is None)
    assert grows in {None, "starts"} or f"│ {grows} " in shown.get()
