"""Handles of keys under one rate: settings that must agree, refusals by name, and all ways to use a key."""

from __future__ import annotations

import gc
import pickle
import time
from itertools import pairwise
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue, sync
from intervalq.errors import ConfigMismatch, InvalidOption, UnsupportedOperation
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore
from keyed_world import FarPairs, Log, handle, jobs, run
from virtual_store import FarStore, gather


def test_handles_must_agree_on_the_common_rate() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        async with handle(store, rate=10, each="5/s")["a"].slot():
            log.began("a")
        for options in ({"rate": 20, "each": "5/s"}, {"rate": 10, "each": "2/s"}):
            with pytest.raises(ConfigMismatch):
                async with handle(store, **options)["a"].slot():
                    raise AssertionError
        # A queue of its own, without the common pace.
        with pytest.raises(ConfigMismatch, match=r"runs with each= \(5/s\), but this handle has no each="):
            async with handle(store, rate=10)["a"].slot():
                raise AssertionError
        async with handle(store, rate=20, each="5/s", on_mismatch="adopt")["b"].slot():
            assert (await handle(store, rate=10, each="5/s").inspect()).interval == 0.1
        async with handle(store, rate=20, each="5/s", on_mismatch="update")["b"].slot():
            assert (await handle(store).inspect()).interval == 0.05

    run(main)


def test_the_queue_itself_takes_no_jobs() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=10, each="shared")
        with pytest.raises(InvalidOption, match="needs a key"):
            async with queue.slot():
                raise AssertionError
        with pytest.raises(InvalidOption, match="needs a key"):
            queue(lambda: None)
        with pytest.raises(InvalidOption, match="needs a key"):
            await queue.quote()
        with pytest.raises(InvalidOption, match="share only the pace"):
            await queue.configure(burst=2)
        with pytest.raises(InvalidOption, match="is a key under the rate of 'api'"):
            await queue["a"].configure(rate=5)

    run(main)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate": 10, "each": "20/s"}, "faster than the common pace"),
        ({"each": "20/s"}, "needs rate= or interval=.*leave out each=: then rate, interval and limits"),
        ({"each": ["500 tokens"], "rate": 10}, r"^each='500 tokens' is not a rate: .*'5_000 tokens/min'"),
        ({"rate": 10, "each": "5/s", "burst": 2}, "can't be combined"),
        ({"each": "shared", "limits": ["5/min"]}, "give the highest rate at which all keys together may"),
        ({"rate": 10, "each": "shared", "max_running": 2}, "can't be combined"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        IntervalQueue("api", **options)


def test_a_weight_is_refused_where_it_has_no_meaning() -> None:
    for queue in (IntervalQueue("api", rate=10), IntervalQueue("api", rate=10, each="5/s")):
        with pytest.raises(InvalidOption, match="needs each='shared'"):
            queue.key("a", weight=2)
    with pytest.raises(InvalidOption, match="weight=0"):
        IntervalQueue("api", rate=10, each="shared").key("a", weight=0)
    assert IntervalQueue("api", rate=10).key("a").name == "api:a"


def test_a_handle_of_a_key_is_pickled_with_all_that_it_has() -> None:
    key = IntervalQueue("api", rate=10, each="shared", store="memory://").key("a", weight=3)
    assert pickle.loads(pickle.dumps(key))._options == key._options
    assert (key._options.weight, key._options.is_keyed) == (3, True)


def test_plain_functions_and_threads() -> None:
    queue = sync.IntervalQueue("api-of-threads", rate=1_000, each="500/s", store="memory://")
    began = []

    @queue["a"]
    def job() -> None:
        began.append(time.monotonic())

    for _ in range(5):
        job()
    with queue.key("b").slot():
        pass
    assert min(b - a for a, b in pairwise(began)) >= 0.0018
    queue.close()


def test_a_store_without_pairs_says_so() -> None:
    class Lone(FarStore):
        pass

    async def main() -> None:
        queue = IntervalQueue("api", store=Lone(MemoryStore(clock=virtual_micros)), rate=10, each="shared")
        with pytest.raises(UnsupportedOperation, match="two records in one step"):
            async with queue["a"].slot():
                raise AssertionError

    virtual_time(main)


def test_keys_are_listed_by_what_waits_and_dropped_with_their_queue() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=1, each="shared")
        async with anyio.create_task_group() as group:
            for key, count in (("a", 1), ("b@c:1", 3), ("d", 2)):
                group.start_soon(jobs, queue, key, count, log)
            await anyio.sleep(0.1)
            found = await queue.keys()
            assert {key.name for key in found} == {"api:a", "api:b@c:1", "api:d"}
            assert found[0].name == "api:b@c:1"  # the key with the most waiting jobs
            waiting = [key.outstanding for key in found]
            assert waiting == sorted(waiting, reverse=True)
            assert sum(waiting) in {5, 6}
            assert await queue["a"].keys() == []
            await queue.pause()
            assert all(key.is_held for key in await queue.keys())
            await queue.drop(keys=True)
        assert len(log.starts) == 6  # jobs that wait take new tickets, in new records
        await queue.drop()
        assert len(await queue.keys()) == 3  # they stay
        await queue.drop(keys=True)
        assert await store.names() == []
        assert await queue.keys() == []

    log = run(main)
    assert log.spacing() >= 900_000


def test_the_queue_shows_what_distant_processes_of_its_keys_report() -> None:
    """Its own processes may be near: by how much a distant one may be wrong, it reports for all keys."""

    async def main(store: FarPairs, log: Log) -> None:
        near, far = handle(store, rate=300, each="shared"), FarPairs(store.behind, delay=0.001)
        distant = IntervalQueue("api", store=far, rate=300, each="shared")
        await jobs(distant, "a", 10, log)
        assert (await near.inspect()).spacing < 0.6 / 300
        await gather(distant.close, near.close)

    run(main, delay=0.0)


def test_another_handle_of_a_key_has_the_settings_to_which_it_was_configured() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        queue = handle(store, rate=100, each=["shared", "5 tokens/min"])
        mine = queue["ada"]
        async with mine.slot():
            log.began("ada")
        await mine.configure(limits=["9 tokens/min"])
        del mine
        gc.collect()
        for other in (queue["ada"], queue.key("ada", weight=2), queue["ada"]):
            async with other.slot(cost={"tokens": 2}):
                log.began("ada")
        assert [each.taken for each in (await queue["ada"].inspect()).limits] == [6]
        with pytest.raises(InvalidOption, match="more than the limit of 5 tokens/m"):
            await queue["bob"].quote({"tokens": 6})

    run(main)


def test_costs_are_checked_by_the_limits_that_a_handle_adopted() -> None:
    async def main(store: FarPairs, log: Log) -> None:
        made: dict[str, Any] = {"rate": 100, "limits": ["50 tokens/min"]}
        async with handle(store, each=["9 tokens/min"], **made)["a"].slot():
            log.began("a")
        for each in ("5 tokens/min", "15 tokens/min"):
            mine = handle(store, each=[each], on_mismatch="adopt", **made)["a"]
            async with mine.slot():
                log.began("a")
            assert await mine.quote({"tokens": 9}) is not None
            with pytest.raises(InvalidOption, match="more than the limit of 9 tokens/m of each key"):
                await mine.quote({"tokens": 10})

    run(main)
