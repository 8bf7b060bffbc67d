"""Keys under one rate where timers wake late: little of the rate goes unused, and spacing holds.

`python tests/test_keyed_late.py 300 100 4 0.0003` prints the used share of the rate and the shortest gap, for
a rate, keys, processes and lateness (in seconds), and several seeds.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, TypeVarTuple
from unittest import mock

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._keys.store import KeyStore
from intervalq._keys.view import CommonView
from intervalq._shard import dispatcher
from intervalq.rules import Advance, Drop, Settings, State
from intervalq.testing import virtual
from intervalq.testing.virtual import LoopClock, VirtualLoop
from keyed_world import FarPairs, Log, jobs, run

Ts = TypeVarTuple("Ts")

SECOND = 1_000_000


class LateLoop(VirtualLoop):
    """A clock whose timers fire late, by half to one and a half of `late`, in seconds."""

    late = 0.0005
    seed = 1

    def __init__(self, horizon: float = 1e7) -> None:
        super().__init__(horizon)
        self._dice = random.Random(self.seed)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        late = self._dice.uniform(0.5, 1.5) * self.late
        return super().call_at(when + late, callback, *args, context=context)

    def pass_time(self, seconds: float) -> None:
        """Let time pass while other tasks go on."""
        self._virtual += seconds


class PolledClock(LoopClock):
    """A clock that advances with each reading, as the real one does, so that tasks can poll it."""

    goes_on = True

    def now(self) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LateLoop)
        loop.pass_time(2e-6)
        return super().now()


def starts(
    rate: int,
    keys: int,
    processes: int,
    seconds: float = 0.7,
    *,
    polls: bool = False,
    delay: float = 0.0,
    each: int | None = None,
    weights: Sequence[int] = (1,),
) -> Log:
    """Start jobs of keys, each key in one of the processes.

    Args:
        rate: starts a second, of all keys.
        keys: how many there are.
        processes: how many there are.
        seconds: how long they run.
        polls: whether processes look at the clock while they wait for a slot.
        delay: of each message to the store and back, in seconds, at most.
        each: how many jobs a key has; None: so many that some wait all the time.
        weights: those of the keys, again and again.
    """

    async def main(store: FarPairs, log: Log) -> None:
        stores = [FarPairs(store.behind, delay=delay) for _ in range(processes)]
        queues = [IntervalQueue("api", store=far, rate=rate, each="shared") for far in stores]
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                for key in range(keys):
                    count = each or 2 + round(2 * rate * seconds / keys)
                    weight = weights[key % len(weights)]
                    group.start_soon(jobs, queues[key % processes], f"k{key}", count, log, weight)
        log.calls = sum([len(far.calls) for far in stores])

    with (
        mock.patch.object(virtual, "VirtualLoop", LateLoop),
        mock.patch.object(virtual, "LoopClock", PolledClock if polls else LoopClock),
        mock.patch.object(dispatcher, "run_soon"),
    ):
        return run(main, delay=delay)


@pytest.mark.parametrize(("keys", "processes"), [(40, 4), (300, 1)])
def test_lateness_costs_its_length_and_no_places(keys: int, processes: int) -> None:
    """If each key knew only what its own answers say, less than half of the rate would be used here."""
    log = starts(300, keys, processes)
    assert len(log.starts) >= 0.8 * 300 * 0.7
    assert log.spacing() >= 3_000


@pytest.mark.parametrize("processes", [1, 4])
def test_weights_cost_nothing_where_timers_are_late(processes: int) -> None:
    """A late job moves the slots of its own turn, and is granted its slot late before the next key's turn."""
    log = starts(300, 4, processes, 0.5, weights=(1, 2, 5, 2))
    began = log.first(1_000)
    assert len(log.starts) >= 0.85 * 300 * 0.5
    assert 0.4 <= began["k2"] / len(log.starts) <= 0.55
    assert log.spacing() >= 3_000


def test_keys_learn_together_to_be_in_time() -> None:
    """Each key has one job here, so none of them could learn that from its own jobs."""
    log = starts(300, 300, 1, polls=True)
    assert len(log.starts) >= 0.93 * 300 * 0.7
    assert log.spacing() >= 3_000


def test_keys_learn_the_stores_clock_from_each_other() -> None:
    """A key with one job knows that clock only to a round trip by itself, and begins that much too early."""
    log = starts(30, 20, 1, 1.0, polls=True, delay=0.005, each=1)
    assert len(log.starts) == 20
    assert log.spacing() >= 33_000, "32,265 us if each key learns alone"


def record(**fields: Any) -> State:
    """A common record."""
    made: dict[str, Any] = {
        "generation": "g",
        "settings": Settings(1_000),
        "last_now": 0,
        "ticket": 5,
        "due": 9,
        "current_due": 9,
    }
    return State(**(made | fields))


def test_an_older_answer_changes_nothing() -> None:
    view = CommonView()
    view.learn(newest := record(ticket=7, late_total=3, held_total=3))
    view.learn(record())
    view.learn(record(ticket=8))
    assert view.state is newest
    assert view.high_water_mark is not None
    assert (view.high_water_mark.ticket, view.high_water_mark.late_total) == (8, 3), (
        "a record that lost writes is repaired by these"
    )


def test_the_generation_of_a_record_that_is_gone_is_known() -> None:
    """The next record then begins with a quiet interval, whichever key creates it."""
    view = CommonView()
    view.learn(record())
    view.learn(None)
    assert (view.state, view.high_water_mark, view.generation) == (None, None, "g")
    view.learn(other := record(generation="h", ticket=1))
    assert (view.state, view.generation) == (other, "h")
    assert view.high_water_mark is not None
    assert view.high_water_mark.ticket == 1


def test_places_of_a_record_that_is_gone_are_not_used_in_the_next_one() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        del log
        view = CommonView()
        keys = {
            key: KeyStore(
                store, "api", Settings(SECOND), own_pace=False, weight=1, view=view, on_mismatch="raise"
            )
            for key in "ab"
        }

        async def ask(key: str, take: int = 0) -> None:
            settings = Settings(SECOND, ephemeral=True)
            await keys[key].apply(f"api:{key}", Advance(settings=settings, nonce=key, take=take))

        def places(key: str) -> int:
            return len(keys[key]._known(Advance()).places)

        for key in "ab":
            await ask(key, take=1)
        assert (places("a"), places("b")) == (1, 1)
        await store.apply("api", Drop())
        await ask("a")  # lists its place of the record that is gone, and creates the next one
        assert view.state is not None
        assert view.state.ticket == 0
        assert (places("a"), places("b")) == (0, 0)

    run(main, delay=0.0)


if __name__ == "__main__":
    rate, keys, processes, LateLoop.late = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        float(sys.argv[4]),
    )
    for polls in (False, True):
        for LateLoop.seed in range(1, 6):
            log = starts(rate, keys, processes, seconds=3, polls=polls)
            used, gap = len(log.starts) / rate / 3, log.spacing() * rate / 1e6
            how = "with polling" if polls else "without"
            print(f"seed {LateLoop.seed}, {how}: {used:.3f} of the rate, shortest gap {gap:.3f} intervals")
