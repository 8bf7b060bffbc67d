"""The weight of a key that somebody sets while the queue runs: all handles obey it, as long as it is kept."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.command_line import CommandLine
from intervalq import IntervalQueue, QueueNotFound
from intervalq._spec.passing import IDLE_KEPT, WEIGHT_KEPT, lapses
from intervalq.errors import InvalidOption, UnsupportedOperation
from intervalq.rules import BadRecord, Configure, Settings, State, apply
from intervalq_stores.memory.queues import MemoryStore
from keyed_world import FarPairs, Log, handle, jobs, run
from virtual_store import FarStore

KEY = Settings(10_000, ephemeral=True)


def test_a_new_weight_holds_for_all_handles_at_once_and_ends() -> None:
    """Of the three keys, `a` waits in two processes, one of which has a weight of its own for it."""

    async def main(store: FarPairs, log: Log) -> None:
        async def operator() -> None:
            for weight in (6, 0):
                await anyio.sleep(3)
                await IntervalQueue("api", store=store)["a"].configure(weight=weight)
            await anyio.sleep(3)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for key, weight in (("a", 1), ("a", 2), ("b", 1), ("c", 1)):
                group.start_soon(jobs, handle(store, rate=100, each="shared"), key, 1_000, log, weight)
            group.start_soon(operator)

    log = run(main)
    assert log.spacing() >= 9_000
    began = log.starts[0][0]

    def of(start: float, end: float) -> Counter[str]:
        return Counter(key for at, key in log.starts if start <= (at - began) / 1e6 < end)

    before, weighted, after = of(0.5, 3), of(3.3, 6), of(6.3, 9)
    for found in (before, after):  # the turns of `a` are those of two processes: one and two slots
        assert 1 <= found["a"] / found["b"] <= 2, found
    assert weighted["a"] / weighted["b"] >= 5, weighted
    assert all(abs(found["b"] - found["c"]) <= 8 for found in (before, weighted, after))


def test_a_weight_outlives_a_quiet_weekend_and_leaves_nothing_for_ever() -> None:
    made = dict[str, Any](settings=KEY, nonce="g")
    plain = apply(None, Configure(**made), 0)[0]
    weighted = apply(None, Configure(weight=3, **made), 0)[0]
    assert plain is not None
    assert weighted is not None
    assert lapses(plain) == plain.due + 2 * KEY.interval + IDLE_KEPT
    assert lapses(weighted) == weighted.due + 2 * KEY.interval + WEIGHT_KEPT
    kept = apply(weighted, Configure(interval=5_000), 3 * 86_400_000_000)[0]
    assert kept is not None
    assert kept.weight == 3
    assert apply(weighted, Configure(weight=1), 8 * 86_400_000_000)[1].state is None
    freed = apply(weighted, Configure(weight=0), 1)[0]
    assert freed is not None
    assert "weight" not in freed.to_dict()
    assert lapses(freed) == lapses(plain)


def test_a_record_of_before_has_none_and_a_damaged_one_is_refused() -> None:
    weighted = apply(None, Configure(weight=1_000, settings=KEY, nonce="g"), 0)[0]
    assert weighted is not None
    assert State.from_dict(weighted.to_dict()) == weighted
    for wrong in (0, 1_001, -1, "3", 1.5, True, None):
        with pytest.raises(BadRecord, match="weight"):
            State.from_dict(weighted.to_dict() | {"weight": wrong})
    data = weighted.to_dict()
    del data["weight"]
    assert State.from_dict(data).weight == 0


async def test_only_keys_under_a_shared_rate_have_weights() -> None:
    async with IntervalQueue("api", rate="100/s", each="shared", store="memory://") as shared:
        with pytest.raises(InvalidOption, match=r"queue\['tenant-42'\]"):
            await shared.configure(weight=2)
        for wrong in (-1, 1_001, 1.5, True):
            with pytest.raises(InvalidOption, match="weight"):
                await shared["a"].configure(weight=wrong)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        await shared["a"].configure(weight=1_000)
        assert (await shared["a"].inspect()).weight == 1_000
        assert (await shared.inspect()).weight is None
    async with IntervalQueue("own", rate="100/s", each="10/s", store="memory://") as paced:
        with pytest.raises(InvalidOption, match="under each='shared'"):
            await paced["a"].configure(weight=2)
    store = MemoryStore()
    async with IntervalQueue("alone", rate="100/s", store=store) as separate:
        async with separate["a"].slot():
            pass
        for queue in (separate, IntervalQueue("alone", store=store)):  # the second one only finds the record
            with pytest.raises(InvalidOption, match="under each='shared'"):
                await queue["a"].configure(weight=2)
        assert (await separate["a"].inspect()).weight is None
    with pytest.raises(UnsupportedOperation):
        await IntervalQueue("api", store=FarStore(MemoryStore()))["a"].configure(weight=2)


def test_the_command_line_sets_it(intervalq: CommandLine, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/state.db"

    async def use() -> int:
        async with IntervalQueue("api", rate="100/s", each="shared", store=store) as queue:
            async with queue["ann"].slot():
                pass
            with pytest.raises(QueueNotFound, match="idle for a minute"):
                await IntervalQueue("api", store=store)["bob"].configure(weight=2)
            return (await queue["ann"].inspect()).weight or 0

    assert anyio.run(use) == 0
    intervalq("configure", "api:ann", "--weight", "3", "--store", store)
    assert "weight  3, for all processes" in intervalq("status", "api:ann", "--store", store).stdout
    assert anyio.run(use) == 3
    found = json.loads(intervalq("configure", "api:ann", "--weight", "0", "--json", "--store", store).stdout)
    assert found["weight"] is None
    error = intervalq("configure", "api", "--weight", "3", "--store", store, code=2).stderr
    assert "is for a key" in error
