"""Faults that other limiters and queues have, and this one must not have: a test for each."""

from __future__ import annotations

import secrets
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue, sync
from intervalq.rules import Advance, Settings, Slot
from intervalq.store import open_store
from intervalq.testing import virtual_time
from intervalq.testing.virtual import virtual_micros
from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on

# Faults that are tested elsewhere, because they need servers in trouble.
ELSEWHERE = {
    "NOSCRIPT for ever after a restart of Redis": {
        "faults/test_server_redis.py": [
            "test_the_server_is_killed_and_comes_back",
            "test_scripts_are_flushed_all_the_time",
        ],
        "stores/test_redis.py": ["test_a_flushed_script_cache_is_no_trouble"],
    },
    "a hang while Redis is down, and errors after it is back": {
        "faults/test_server_redis.py": ["test_the_server_is_killed_and_comes_back"],
        "faults/test_proxy_queue.py": [
            "test_an_outage_that_lasts_ends_all_calls_with_an_error_and_the_queue_goes_on_after",
            "test_the_first_contact_by_a_bad_way_is_told_and_makes_nothing",
        ],
    },
    "no limit any more once the keys are lost": {
        "faults/test_server_redis.py": ["test_a_lost_record_is_made_anew_after_a_quiet_interval"],
        "test_shard_trouble.py": ["test_losing_the_record_means_a_quiet_interval_and_new_tickets"],
    },
}

STORES = pytest.mark.parametrize("kind", ["memory", "sqlite", "file", "redis", "valkey", "postgres"])


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store of each kind."""
    here = {
        "memory": "memory://",
        "sqlite": f"sqlite://{tmp_path}/state.db",
        "file": f"file://{tmp_path}/state.json",
    }
    return here[kind] if kind in here else str(request.getfixturevalue(f"{kind}_url"))


async def nothing() -> None:
    """A job that does nothing."""


@pytest.mark.parametrize("fault", ELSEWHERE)
def test_what_is_shown_elsewhere_is_there(fault: str) -> None:
    for name, tests in ELSEWHERE[fault].items():
        text = (Path(__file__).parent / name).read_text()
        assert [test for test in tests if f"def {test}(" not in text] == []


# --- an idle key waits while another key waits (PyrateLimiter, async) ---------------------------------


@STORES
async def test_an_idle_key_begins_at_once_while_jobs_of_other_keys_wait(url: str) -> None:
    async with IntervalQueue(f"keys-{secrets.token_hex(6)}", interval="1h", store=url) as queue:
        waiting = []
        for key in ("busy", "paused"):
            await queue[key].run(nothing)
            if key == "paused":
                await queue[key].pause()
            waiting += [await queue[key].add(nothing) for _ in range(3)]
        for n in range(10):
            await queue[f"idle-{n}"].run(nothing)  # it would otherwise end an hour from now
        assert not any(job.done for job in waiting)
        for job in waiting:
            job.cancel()
        for key in ("busy", "paused", *(f"idle-{n}" for n in range(10))):
            await queue[key].drop()


# --- a wait of 200 ms for a slot of 10 ms, by polling in steps (throttled-py) -------------------------


@BACKENDS
@pytest.mark.parametrize("interval", [0.1, 0.01, 0.001])
def test_a_wait_ends_at_the_slot_and_not_at_a_step_of_polling(backend: str, interval: float) -> None:
    async def scenario() -> Starts:
        starts, store = Starts(), FarStore()
        queues = [queue_on(FarStore(store.behind), interval=interval) for _ in range(2)]
        await gather(*(partial(queue.run, partial(starts.job, n)) for n in range(10) for queue in queues))
        for n in range(10):  # as well as one after the other, when nobody has a ticket before
            await queues[n % 2].run(partial(starts.job, n))
        return starts

    gaps = virtual_time(scenario, backend=backend, horizon=60).gaps
    assert gaps == [pytest.approx(interval, abs=0.0003)] * 29


# --- a heavy job is passed by every light one (aiolimiter) --------------------------------------------


@BACKENDS
@pytest.mark.parametrize("lookahead", [1, 2, 16, None])
def test_a_heavy_job_is_not_passed_by_light_ones_that_keep_coming(
    backend: str, lookahead: int | None
) -> None:
    async def scenario() -> Starts:
        starts, store = Starts(), FarStore()
        queue, other = (queue_on(FarStore(store.behind), lookahead=lookahead) for _ in range(2))
        jobs = [await queue.add(starts.job, "before") for _ in range(3)]
        jobs.append(heavy := await queue.add(starts.job, "heavy", cost=5))
        while not heavy.done:  # six light jobs in each interval, half of them added by another handle
            jobs += [await each.add(starts.job, name) for each, name in ((queue, "light"), (other, "other"))]
            await anyio.sleep(1 / 3)
        for job in jobs:
            job.cancel()
        return starts

    starts = virtual_time(scenario, backend=backend, horizon=60)
    before = starts.order[: starts.order.index("heavy")]
    assert "light" not in before
    assert before.count("before") == 3
    # With many tickets, a handle's place is fixed when a job is added; with few, handles take turns.
    assert before.count("other") <= (0 if lookahead in (16, None) else 5)


@BACKENDS
def test_the_slots_of_a_heavy_job_are_not_used_by_light_ones(backend: str) -> None:
    async def scenario() -> Starts:
        starts, store = Starts(), FarStore()
        queue, other = queue_on(store), queue_on(FarStore(store.behind))
        heavy = await queue.add(starts.job, "heavy", cost=5)
        jobs = [await each.add(starts.job, "light") for each in (queue, other) for _ in range(3)]
        for job in (heavy, *jobs):
            await job
        return starts

    starts = virtual_time(scenario, backend=backend, horizon=60)
    assert starts.order == ["heavy"] + ["light"] * 6
    assert starts.gaps == [pytest.approx(gap, abs=0.01) for gap in (5, 1, 1, 1, 1, 1)]


# --- retries that bypass the limiter (Bottleneck #223) ------------------------------------------------


@BACKENDS
@in_virtual_time
async def test_every_attempt_of_every_kind_of_call_is_paced(backend: str) -> None:
    attempts: list[tuple[str, float]] = []
    store = FarStore()
    queue, other = (queue_on(FarStore(store.behind), retries=2, backoff=0.001) for _ in range(2))

    async def flaky(what: str) -> None:
        attempts.append((what, anyio.current_time()))
        if [name for name, _ in attempts].count(what) < 3:
            raise ValueError(what)

    decorated = queue(flaky)

    async def added() -> None:
        await (await other.add(flaky, "add"))

    async def mapped() -> None:
        async for _ in queue.map(flaky, ["map"]):
            pass

    run = partial(other.run, partial(flaky, "run"))
    await gather(partial(decorated, "decorated"), run, added, mapped)
    assert sorted(what for what, _ in attempts) == sorted(["decorated", "run", "add", "map"] * 3)
    assert min(later - earlier for (_, earlier), (_, later) in pairwise(attempts)) > 0.99


def test_every_attempt_of_code_that_blocks_has_a_ticket_of_its_own() -> None:
    tickets: list[int] = []
    queue = sync.IntervalQueue("others-retries", interval="5ms", store="memory://", retries=2, backoff=0.001)

    def flaky() -> None:
        tickets.append(queue.inspect().ticket)
        if len(tickets) % 3:
            raise ValueError(tickets)

    with queue:
        queue.run(flaky)
        queue(flaky)()
        queue.add(flaky).result()
        queue.drop()
    assert len(tickets) == 9
    assert all(later > earlier for earlier, later in pairwise(tickets))


# --- intervals cut to whole milliseconds (redis-rate-limiters: 11 to 13 % over the limit) -------------

UNEVEN = [
    ({"interval": "3333us"}, Fraction(3_333)),
    ({"interval": 0.0014285}, Fraction(2_857, 2)),
    ({"rate": "300/s"}, Fraction(1_000_000, 300)),
    ({"rate": "1500/s"}, Fraction(1_000_000, 1_500)),
    ({"rate": "7/s"}, Fraction(1_000_000, 7)),
    ({"rate": "100000/7m"}, Fraction(420 * 1_000_000, 100_000)),
]


@BACKENDS
@pytest.mark.parametrize(("settings", "exact"), UNEVEN, ids=[str(each[0]) for each in UNEVEN])
@in_virtual_time
async def test_the_grid_is_never_faster_than_asked_nor_slower_by_a_thousandth(
    backend: str, settings: dict[str, Any], exact: Fraction
) -> None:
    started: list[tuple[int, int]] = []
    store = FarStore()
    queues = [IntervalQueue("q", store=FarStore(store.behind, delay=0.00001), **settings) for _ in range(2)]

    async def job(queue: IntervalQueue) -> None:
        async with queue.slot() as slot:
            started.append((virtual_micros(), round(slot.due * 1e6)))

    await gather(*(partial(job, queue) for _ in range(250) for queue in queues))
    for instants in zip(*started, strict=True):
        mean = Fraction(instants[-1] - instants[0], 499)
        assert mean <= exact * Fraction(1_001, 1_000)
    grid = [later - earlier for (_, earlier), (_, later) in pairwise(started)]
    assert min(grid) >= exact
    assert len(set(grid[1:])) == 1  # the first slot was used at once, before it came


@STORES
@pytest.mark.parametrize("interval", [667, 3_333, 3_334, 142_858])
async def test_every_store_keeps_whole_microseconds(url: str, interval: int) -> None:
    store, name = open_store(url), f"grid-{secrets.token_hex(6)}"
    now = 1_800_000_000_123_457
    slots: list[Slot] = []
    for count in range(1, 31):
        take = Advance(settings=Settings(interval), nonce="n", take=count)
        slots += (await store.apply(name, take, now)).taken
    assert {later.due - earlier.due for earlier, later in pairwise(slots)} == {interval}
    assert [slot.ticket for slot in slots] == list(range(1, 466))
    await store.aclose()
