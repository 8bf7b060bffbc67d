"""Handles whose settings differ from the record's, that require a new queue, or that delay their jobs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq import ConfigMismatch, IntervalQueue, SlotTimeout
from intervalq.errors import InvalidOption, QueueExists, StoreTimeout
from intervalq.rules import Answer, Command, Configure
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on

URLS = ["memory", "file", "sqlite", "redis", "valkey", "postgres", "nats"]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    paths = {"memory": "memory://", "file": f"{tmp_path}/q.json", "sqlite": f"{tmp_path}/q.db"}
    return paths[kind] if kind in paths else str(request.getfixturevalue(f"{kind}_url"))


def named(request: pytest.FixtureRequest) -> str:
    return f"other-{abs(hash(request.node.nodeid))}"


async def begin_in(queue: IntervalQueue) -> None:
    async with queue.slot():
        pass


OTHERS: list[dict[str, Any]] = [
    {"interval": 0.02}, {"interval": 0.005}, {"burst": 3}, {"max_running": 2}, {"tolerance": 0.004}
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_settings_that_disagree(url: str, other: dict[str, Any], request: pytest.FixtureRequest) -> None:
    name = named(request)

    async def scenario() -> None:
        make: Callable[..., IntervalQueue] = partial(IntervalQueue, name, store=url)
        async with make(interval=0.01, burst=2) as first:
            await begin_in(first)
            record = await first.inspect()
            mine = {"interval": 0.01, "burst": 2} | other
            with pytest.raises(ConfigMismatch, match="on_mismatch"):
                async with make(**mine) as second:
                    await begin_in(second)
            async with make(**mine, on_mismatch="adopt") as second:
                await begin_in(second)
                seen = await second.inspect()
                assert (seen.interval, seen.burst, seen.max_running) == (0.01, 2, None)
                assert seen.generation == record.generation
            async with make(**mine, on_mismatch="update") as second:
                if "tolerance" in other:
                    with pytest.raises(ConfigMismatch, match="its tolerance can't be changed"):
                        await begin_in(second)
                else:
                    await begin_in(second)
                    seen = await second.inspect()
                    changed = (seen.interval, seen.burst, seen.max_running)
                    assert changed == (mine["interval"], mine["burst"], mine.get("max_running"))
                    assert seen.generation == record.generation
                    await begin_in(first)  # which goes on
            await first.drop()

    anyio.run(scenario)


def test_limits_are_changed_in_every_store(url: str, request: pytest.FixtureRequest) -> None:
    name = named(request)

    async def taken(queue: IntervalQueue) -> dict[str, int]:
        return {each.limit: each.taken for each in (await queue.inspect()).limits}

    async def scenario() -> None:
        make: Callable[..., IntervalQueue] = partial(IntervalQueue, name, store=url)
        async with make(limits=["9/h", "100 tokens/h"], interval=0.01) as first, make() as other:
            async with first.slot(cost={"tokens": 60}):
                pass
            await other.configure(limits=["70 tokens/h", "5/d", "8/h"])
            assert await taken(first) == {"70 tokens/h": 60, "5/d": 1, "8/h": 1}
            async with first.slot(cost={"tokens": 10}):  # it has to learn of them first
                pass
            assert await taken(first) == {"70 tokens/h": 70, "5/d": 2, "8/h": 2}
            await other.configure(limits=[])
            await begin_in(first)
            assert await taken(other) == {}
            await other.configure(limits=["1/h"])
            await begin_in(other)
            assert await taken(first) == {"1/h": 1}
            await first.drop()

    anyio.run(scenario)


@BACKENDS
@pytest.mark.parametrize("on_mismatch", ["raise", "adopt", "update"])
@in_virtual_time
async def test_limits_in_another_order_are_the_same(on_mismatch: str, backend: str) -> None:
    """The order differs if each process makes its limits from a set."""
    store = FarStore()
    first = queue_on(store, limits=["9/h", "100 tokens/h"])
    other = queue_on(FarStore(store.behind), limits=["100 tokens/h", "9/h"], on_mismatch=on_mismatch)
    for queue in (first, other, first, other["a"], first["a"]):
        async with queue.slot(cost={"tokens": 10}):
            pass
    taken = {"9/h": 3, "100 tokens/h": 30}
    assert {each.limit: each.taken for each in (await other.inspect()).limits} == taken
    assert not any(isinstance(call, Configure) for call in other._store.calls)  # type: ignore[union-attr]


@in_virtual_time
async def test_a_queue_without_an_interval_is_not_said_to_have_one() -> None:
    store = FarStore()
    await begin_in(queue_on(store, interval=None, limits=["9/h"]))
    with pytest.raises(ConfigMismatch) as caught:
        await begin_in(queue_on(store, limits=["9/h"]))
    assert (caught.value.theirs, caught.value.ours) == ("no interval", "interval=1s")


@BACKENDS
@in_virtual_time
async def test_the_queue_of_a_key_is_updated_too(backend: str) -> None:
    store = FarStore()
    old, new = queue_on(store), queue_on(FarStore(store.behind), interval=2, on_mismatch="update")
    await begin_in(old["a"])
    await begin_in(new["a"])
    assert (await new["a"].inspect()).interval == 2
    assert (await old["a"].inspect()).interval == 2
    await begin_in(old["b"])
    assert (await old["b"].inspect()).interval == 1


@BACKENDS
@pytest.mark.parametrize("seed", range(5))
@in_virtual_time
async def test_handles_that_all_want_their_own_come_to_an_end(seed: int, backend: str) -> None:
    store, starts = FarStore(delay=0.01), Starts()
    handles = [
        queue_on(FarStore(store.behind, delay=0.01, seed=seed * n), interval=n, on_mismatch="update")
        for n in (1, 2, 3)
    ]
    await gather(*(partial(queue.run, partial(starts.job, 0)) for queue in handles * 4))
    assert len(starts.log) == 12
    assert (await handles[0].inspect()).interval in (1, 2, 3)


def test_what_to_do_is_one_of_three() -> None:
    with pytest.raises(InvalidOption, match="raise, adopt and update"):
        IntervalQueue("q", interval=1, on_mismatch="ignore")  # type: ignore[arg-type]


# --- new -------------------------------------------------------------------------------------------------


def test_a_queue_that_is_to_be_new_must_not_exist(url: str, request: pytest.FixtureRequest) -> None:
    name = named(request)

    async def scenario() -> None:
        make: Callable[..., IntervalQueue] = partial(IntervalQueue, name, store=url, interval=0.01)
        async with make(new=True) as first, make(new=True) as second, make(new=True, burst=2) as third:
            await begin_in(first)
            before = await first.inspect()
            for other in (second, third):
                for use in (begin_in, IntervalQueue.pause, partial(IntervalQueue.configure, burst=3)):
                    with pytest.raises(QueueExists):
                        await use(other)
            after = await first.inspect()
            assert (before.ticket, before.generation, before.burst) == (
                after.ticket,
                after.generation,
                after.burst,
            )
            assert not after.is_held
            await begin_in(first)
            if url != "memory://":
                async with pickle.loads(pickle.dumps(first)) as again:  # the queue isn't new any more
                    await begin_in(again)
            await first.drop()

    anyio.run(scenario)


@in_virtual_time
async def test_the_answer_may_be_lost_that_a_queue_was_created() -> None:
    class Loses(FarStore):
        async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
            answer = await super().apply(queue, command, now)
            if len(self.calls) == 1:
                raise StoreTimeout(self.url, "the answer was lost")
            return answer

    queue = queue_on(Loses(), new=True)
    with pytest.raises(StoreTimeout):
        await begin_in(queue)
    await begin_in(queue)


def test_a_queue_that_is_to_be_new_needs_an_interval() -> None:
    with pytest.raises(InvalidOption, match="new=True"):
        IntervalQueue("q", new=True)


@BACKENDS
@in_virtual_time
async def test_keys_need_not_be_new(backend: str) -> None:
    store = FarStore()
    await begin_in(queue_on(store)["a"])
    await begin_in(queue_on(FarStore(store.behind), new=True)["a"])


# --- start -----------------------------------------------------------------------------------------------


@BACKENDS
@in_virtual_time
async def test_jobs_are_kept_until_the_start(backend: str) -> None:
    store, starts = FarStore(), Starts()
    queue, other = queue_on(store, start=False), queue_on(FarStore(store.behind))
    jobs = [await queue.add(starts.job, number, priority=number) for number in range(3)]
    keyed = await queue["key"].add(starts.job, "keyed")
    assert jobs[0].ticket is None
    await anyio.sleep(30)
    assert store.calls == []
    with pytest.raises(SlotTimeout):
        await queue.run(partial(starts.job, "impatient"), timeout=1)
    await other.run(partial(starts.job, "other"))
    await queue.start()
    for job in (*jobs, keyed):
        await job
    await queue.start()  # a repeated call does nothing
    await queue["later"].run(partial(starts.job, "later"))
    await queue.run(partial(starts.job, 3))
    order, gap = starts.order, starts.log[1][0] - starts.log[0][0]
    assert [what for what in order if what not in {"keyed", "later"}] == ["other", 2, 1, 0, 3]
    assert {"keyed", "later"} <= {*order}
    assert gap < 1.1


@BACKENDS
@in_virtual_time
async def test_a_handle_that_is_closed_lets_its_jobs_begin(backend: str) -> None:
    starts = Starts()
    async with queue_on(FarStore(), start=False) as queue:
        for number in range(3):
            await queue.add(starts.job, number)
    dropped = queue_on(FarStore(), start=False)
    job = await dropped.add(starts.job, "dropped")
    await dropped.close(drain=False)
    job.cancel()
    assert starts.order == [0, 1, 2]


def test_blocking_code_keeps_its_jobs_as_well() -> None:
    with BlockingQueue("kept", interval=0.001, store="memory://", start=False) as queue:
        future = queue.add(lambda: 42)
        with pytest.raises(SlotTimeout), queue.slot(timeout=0.05):
            pass
        assert not future.done()
        queue.start()
        assert future.result() == 42
        queue.drop()


def test_plain_functions_of_a_queue_start_with_it() -> None:
    async def scenario() -> int:
        queue = IntervalQueue("kept-plain", interval=0.001, store="memory://", start=False)
        plain = queue(lambda: 42)
        assert queue.blocking is not None
        await queue.start()
        result = await anyio.to_thread.run_sync(plain)
        await queue.drop()
        return result

    assert anyio.run(scenario) == 42


def test_a_started_handle_travels_as_started() -> None:
    async def scenario() -> None:
        queue = IntervalQueue("kept-pickled", interval=0.001, store="memory://", start=False)
        assert not pickle.loads(pickle.dumps(queue))._options.start
        await queue.start()
        await begin_in(pickle.loads(pickle.dumps(queue)))
        await queue.drop()

    anyio.run(scenario)


def test_a_store_object_is_enough() -> None:
    async def scenario() -> None:
        await begin_in(IntervalQueue("object", interval=1, store=MemoryStore(), new=True, start=True))

    anyio.run(scenario)
