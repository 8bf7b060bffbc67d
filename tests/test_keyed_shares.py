"""Keys under one rate in virtual time: both paces hold, shares are fair, and a dead process blocks nobody."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq.rules import Command
from keyed_world import FarPairs, Log, handle, jobs, run
from virtual_store import gather


@pytest.mark.parametrize(("rate", "off"), [(10, 8), (100, 8), (1_000, 40)])
def test_weights_are_shares(rate: int, off: int) -> None:
    async def main(store: FarPairs, log: Log) -> None:
        with anyio.move_on_after(600 / rate):
            async with anyio.create_task_group() as group:
                for key, weight in (("a", 1), ("b", 2), ("c", 5), ("d", 2)):
                    queue = handle(store, rate=rate, each="shared")
                    group.start_soon(jobs, queue, key, 1_000, log, weight)

    log = run(main)
    assert log.spacing() >= 900_000 // rate
    counted = Counter([key for _, key in log.starts[50:550]])
    assert sum(counted.values()) == 500
    for key, weight in (("a", 1), ("b", 2), ("c", 5), ("d", 2)):
        assert abs(counted[key] - 50 * weight) <= off, counted


@pytest.mark.parametrize("shared", [False, True])
def test_small_backlogs_are_through_soon_beside_a_large_one(*, shared: bool) -> None:
    """Each key is in a process of its own, or all keys are in two processes."""

    async def main(store: FarPairs, log: Log) -> None:
        queues = [handle(store, rate=100, each="shared") for _ in range(2)]
        with anyio.move_on_after(0.5):
            async with anyio.create_task_group() as group:
                for key, count in (("large", 1_000 if shared else 10_000), ("b", 10), ("c", 10)):
                    if shared:
                        for queue in queues:
                            group.start_soon(jobs, queue, key, count // 2, log)
                    else:
                        group.start_soon(jobs, handle(store, rate=100, each="shared"), key, count, log)

    log = run(main)
    began = log.first(33)
    assert (began["b"], began["c"]) == (10, 10), began


def test_a_key_that_comes_later_waits_only_for_the_turns_of_the_others() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        async def late() -> None:
            await anyio.sleep(2)
            await jobs(handle(store, rate=100, each="shared"), "late", 5, log)

        with anyio.move_on_after(3):
            await gather(
                lambda: jobs(handle(store, rate=100, each="shared"), "a", 1_000, log),
                lambda: jobs(handle(store, rate=100, each="shared"), "b", 1_000, log),
                late,
            )

    log = run(main)
    began = log.starts[0][0] + 2_000_000
    instants = [at - began for at, key in log.starts if key == "late"]
    assert instants[0] <= 60_000
    assert instants[-1] <= 60_000 + 4 * 40_000


@pytest.mark.parametrize("each", ["shared", "1000/s"])
def test_a_key_alone_has_the_whole_rate(each: str) -> None:
    async def main(store: FarPairs, log: Log) -> None:
        with anyio.move_on_after(1):
            await jobs(handle(store, rate=1_000, each=each), "a", 2_000, log)

    log = run(main)
    assert len(log.starts) >= 950
    assert log.spacing() >= 900


def test_both_paces_hold() -> None:
    """Twenty keys, each of which could have 10 starts a second, share 100 a second."""

    async def main(store: FarPairs, log: Log) -> None:
        with anyio.move_on_after(3):
            async with anyio.create_task_group() as group:
                for key in range(20):
                    for _ in range(2):  # in two processes
                        group.start_soon(jobs, handle(store, rate=100, each="10/s"), f"k{key}", 500, log)

    log = run(main)
    assert 280 <= len(log.starts) <= 302
    assert log.spacing() >= 9_000
    keys = {key for _, key in log.starts}
    assert len(keys) == 20
    assert min(log.spacing(key) for key in keys) >= 99_000
    assert min(Counter([key for _, key in log.starts]).values()) >= 12


def test_a_few_keys_have_their_own_pace_and_no_more() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        with anyio.move_on_after(5):
            async with anyio.create_task_group() as group:
                for key in "abc":
                    group.start_soon(jobs, handle(store, rate=100, each="10/s"), key, 500, log)

    log = run(main)
    for key in "abc":
        assert 48 <= log.first(1_000)[key] <= 51
        assert log.spacing(key) >= 99_000


def test_costs_count_on_both_levels() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        async def costly(key: str) -> None:
            async with handle(store, rate=100, each="20/s")[key].slot(cost=5):
                log.began(key)

        await gather(lambda: costly("a"), lambda: costly("b"), lambda: costly("b"))

    log = run(main)
    assert log.spacing() >= 49_000  # five common slots
    assert log.spacing("b") >= 249_000  # five of its own


def test_a_process_that_dies_holds_nobody() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        first, other = FarPairs(store.behind, delay=0.0005), handle(store, rate=10, each="shared")

        async def dies() -> None:
            queue = IntervalQueue("api", store=first, rate=10, each="shared")
            async with anyio.create_task_group() as group:
                for key in "abc":
                    group.start_soon(jobs, queue, key, 50, log)
                await anyio.sleep(1.05)
                first.is_down = True  # nothing of it arrives any more
                group.cancel_scope.cancel()

        with anyio.move_on_after(3):
            await gather(dies, lambda: jobs(other, "d", 500, log), lambda: jobs(other, "a", 500, log))

    log = run(main)
    after = [at - log.starts[0][0] for at, _ in log.starts if at - log.starts[0][0] > 1_100_000]
    assert len(after) >= 14  # of 19: the dead process leaves one slot empty for each key
    assert max(b - a for a, b in pairwise(after)) <= 410_000


def test_a_pause_counts_once_for_jobs_that_come_in_it_behind_others() -> None:
    """Tickets that are taken after a pause follow those from before it, whose slots move by its length."""

    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=100, each="shared")

        async def job() -> None:
            log.began("a")

        await jobs(queue, "a", 1, log)
        waits = await queue["a"].add(job)
        await queue.pause()
        await anyio.sleep(10)
        async with anyio.create_task_group() as group:
            group.start_soon(jobs, queue, "a", 2, log)
            await anyio.sleep(0.1)
            await queue.resume()
        await waits
        await queue.close()

    first, *others = [at for at, _ in run(main).starts]
    assert [at - first for at in others] == pytest.approx([10_120_000, 10_130_000, 10_140_000], abs=20_000)


def test_a_pause_of_the_queue_holds_all_keys_and_that_of_a_key_only_this_one() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=20, each="shared")

        async def pauses() -> None:
            await anyio.sleep(1)
            await queue.pause()
            assert (await queue["a"].inspect()).is_held
            await anyio.sleep(2)
            await queue.resume()
            await anyio.sleep(1)
            await queue["a"].pause()
            assert not (await queue.inspect()).is_held
            await anyio.sleep(1)
            await queue["a"].resume()

        with anyio.move_on_after(6):
            async with anyio.create_task_group() as group:
                group.start_soon(pauses)
                for key in "abc":
                    group.start_soon(jobs, queue, key, 500, log)

    log = run(main)
    began = [(at - log.starts[0][0], key) for at, key in log.starts]
    assert not [at for at, _ in began if 1_150_000 < at < 2_950_000]
    assert len([at for at, _ in began if at >= 2_950_000]) >= 55
    held = [key for at, key in began if 4_150_000 < at < 4_950_000]
    assert set(held) == {"b", "c"}
    assert len(held) >= 15
    assert "a" in {key for at, key in began if at > 5_000_000}


def test_another_common_rate_applies_to_all_keys_at_once() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=100, each="shared")

        async def slower() -> None:
            await anyio.sleep(1)
            await queue.configure(rate=10)

        with anyio.move_on_after(3):
            await gather(slower, lambda: jobs(queue, "a", 500, log), lambda: jobs(queue, "b", 500, log))

    log = run(main)
    after = [at for at, _ in log.starts if at - log.starts[0][0] > 1_150_000]
    assert 15 <= len(after) <= 20
    assert min(b - a for a, b in pairwise(after)) >= 90_000


def test_lateness_costs_its_length_if_a_key_is_alone() -> None:
    """Its common slots are granted late as well, because no other key has a later one."""

    async def main(store: FarPairs, log: Log) -> None:
        mine = handle(store, rate=10, each="shared")["a"]

        async def stalls() -> None:
            for _ in range(5):
                await anyio.sleep(0.35)
                loop.stall(0.03)

        loop: Any = __import__("asyncio").get_running_loop()

        async def all_jobs() -> None:
            for _ in range(30):
                async with mine.slot():
                    log.began("a")

        await gather(stalls, all_jobs)

    log = run(main)
    assert log.spacing() >= 90_000
    assert log.starts[-1][0] - log.starts[0][0] <= 29 * 100_000 + 5 * 60_000


def test_idle_keys_leave_nothing_behind() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=100_000, each="shared")
        for number in range(300):
            async with queue[f"k{number}"].slot():
                log.began("any")
        assert len(await store.names()) == 301
        await anyio.sleep(100)
        async with queue["last"].slot():
            pass
        assert await store.names() == ["api", "api:last"]

    run(main, delay=0.0)


def test_a_thousand_keys_wait_at_once() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=5_000, each="100/s")
        async with anyio.create_task_group() as group:
            for number in range(1_000):
                group.start_soon(jobs, queue, f"k{number}", 1, log)

    log = run(main, delay=0.0)
    assert len({key for _, key in log.starts}) == 1_000
    assert log.spacing() >= 180
    assert log.starts[-1][0] - log.starts[0][0] <= 800_000


@pytest.mark.parametrize("delay", [0.0005, 0.01])
@pytest.mark.parametrize("rate", [50, 1_000])
def test_keys_with_one_job_each_leave_no_place_empty(rate: int, delay: float) -> None:
    """Places far ahead are granted when they come, by a clock that is still known well then."""
    calls: list[Command] = []

    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=rate, each="shared")
        async with anyio.create_task_group() as group:
            for number in range(300):
                group.start_soon(jobs, queue, f"k{number}", 1, log)
        near = queue._store
        assert isinstance(near, FarPairs)
        calls.extend(near.calls)

    log = run(main, delay=delay)
    gaps = [b - a for (a, _), (b, _) in pairwise(log.starts)]
    assert [gap for gap in gaps if gap > 1.5e6 / rate] == []
    assert len(calls) <= 3.5 * 300


@pytest.mark.parametrize("each", ["shared", "10/s"])
def test_busy_keys_of_many_processes_leave_no_place_empty(each: str) -> None:
    async def main(store: FarPairs, log: Log) -> None:
        with anyio.move_on_after(5):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(jobs, handle(store, rate=100, each=each), f"k{number}", 500, log)

    log = run(main)
    assert len(log.starts) >= 490


def test_a_pause_stops_keys_whose_places_are_far_ahead() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=100, each="shared")

        async def pauses() -> None:
            await anyio.sleep(1)
            await queue.pause()
            await anyio.sleep(5)
            await queue.resume()

        async with anyio.create_task_group() as group:
            group.start_soon(pauses)
            for number in range(300):
                group.start_soon(jobs, queue, f"k{number}", 1, log)

    log = run(main)
    began = [at - log.starts[0][0] for at, _ in log.starts]
    assert len(began) == 300
    assert [at for at in began if 1_100_000 < at < 5_950_000] == []
    assert began[-1] <= 8_100_000
