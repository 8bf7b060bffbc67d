"""Rates that find a server's limit, through whole handles: the rate used, refusals, and what users see."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from intervalq import ConfigMismatch, IntervalQueue
from intervalq._queue.inspect import AutoState
from intervalq._watch.words import interval
from intervalq.errors import InvalidInterval, InvalidOption
from intervalq.integrations.httpx import PacedTransport
from intervalq.rules import Hold
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import FarStore, in_virtual_time

FOUND = 0.92
REFUSED = 0.004


class Refused(Exception):
    """What a client raises for status 429."""

    status = 429

    def __init__(self, **headers: str) -> None:
        super().__init__("429")
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the benchmark, which has a server with a hidden limit and the handles that call it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("auto_rate")


def refuse_some(ticket: int) -> None:
    if ticket % 500 == 499:
        raise Refused


def auto(store: MemoryStore | FarStore, **options: Any) -> IntervalQueue:
    return IntervalQueue("api", rate="auto", floor="1/s", ceiling="500/s", store=store, **options)


async def rate(queue: IntervalQueue) -> float:
    state = (await queue.inspect()).auto
    assert state is not None
    return state.rate


# --- what is used and refused --------------------------------------------------------------------------


@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize(("limit", "seconds"), [(10, 150), (50, 70)])
def test_a_hidden_limit_is_used_and_hardly_anything_is_refused(
    model: Any,
    limit: int,
    seconds: float,
    retry_after: float | None,
) -> None:
    share = model.steady(model.one_rate, limit, seconds, retry_after)
    assert share.used >= FOUND - (0.01 if retry_after else 0)
    assert share.refused <= REFUSED


def test_sixteen_that_adapt_each_for_itself_are_refused_far_more_often(model: Any) -> None:
    share = model.steady(model.each_alone, 10, 60, None)
    assert share.refused > 10 * REFUSED


@pytest.mark.parametrize(("before", "after"), [(50, 10), (40, 20)])
def test_a_limit_that_falls_is_found_within_ten_seconds(model: Any, before: int, after: int) -> None:
    server = model.HiddenLimit((0, before), (50, after))
    virtual_time(model.one_rate, server, 90.0)
    assert server.share(60, 90).refused <= 2 * REFUSED
    assert server.share(60, 90).used >= 0.6
    assert sum(not served for at, served in server.calls if 50 <= at < 60) <= 20


@pytest.mark.parametrize(("before", "after"), [(10, 40)])
def test_a_limit_that_rises_is_found_within_a_minute(model: Any, before: int, after: int) -> None:
    server = model.HiddenLimit((0, before), (50, after))
    virtual_time(model.one_rate, server, 150.0)
    assert server.share(110, 150).used >= 0.85


@in_virtual_time
async def test_starts_keep_their_distance_while_the_interval_changes_from_answer_to_answer() -> None:
    """With eight distant handles and cuts in between, no two starts are closer than the rate allows."""
    far = FarStore(delay=0.002)
    queues = [auto(FarStore(far.behind, delay=0.002, seed=seed)) for seed in range(8)]
    began: list[tuple[float, float]] = []
    until = anyio.current_time() + 40

    async def caller(queue: IntervalQueue) -> None:
        while anyio.current_time() < until:
            try:
                async with queue.slot() as slot:
                    began.append((anyio.current_time(), slot._grant.range.step / 1e6))
                    await anyio.sleep(0.05)
                    refuse_some(slot.ticket)
            except Refused:
                pass

    async with anyio.create_task_group() as group:
        for queue in queues:
            for _ in range(4):
                group.start_soon(caller, queue)
    for queue in queues:
        await queue.close()
    assert len(began) > 1_000
    assert min(step for _, step in began) < 0.02
    for (earlier, one), (later, other) in pairwise(sorted(began)):
        assert later - earlier >= min(one, other) * 0.899


# --- refusals ------------------------------------------------------------------------------------------


def raising(error: Exception) -> Callable[[], Any]:
    async def job() -> None:
        raise error

    return job


@in_virtual_time
async def test_a_refusal_without_a_time_to_wait_cuts_the_rate_in_one_command() -> None:
    store = FarStore(MemoryStore(clock=virtual_micros))
    async with auto(store) as queue:
        for _ in range(60):
            async with queue.slot():
                pass
        before = await rate(queue)
        with pytest.raises(Refused):
            await queue.run(raising(Refused()))
        held = [call for call in store.calls if isinstance(call, Hold)]
        assert [(call.length, call.refusal is None) for call in held] == [(0, False)]
        assert 0.25 * before < await rate(queue) < 0.6 * before


@in_virtual_time
async def test_starts_that_are_refused_together_cut_once() -> None:
    async with auto(MemoryStore(clock=virtual_micros)) as queue:
        for _ in range(100):
            async with queue.slot():
                pass
        before = await rate(queue)
        held = [queue.slot() for _ in range(5)]
        for slot in held:
            await slot.__aenter__()
        for slot in held:
            error = Refused(Retry_After="1")
            await slot.__aexit__(Refused, error, None)
        assert 0.25 * before < await rate(queue) < 0.6 * before
        assert (await queue.inspect()).is_held


@in_virtual_time
async def test_a_function_tells_refusals_by_results_too() -> None:
    def asked(outcome: object) -> float | None:
        return 0 if outcome == "slow down" else None

    async with auto(MemoryStore(clock=virtual_micros), retry_after=asked) as queue:
        for _ in range(60):
            async with queue.slot():
                pass
        before = await rate(queue)

        async def job(result: str) -> str:
            return result

        await queue.run(partial(job, "fine"))
        assert await rate(queue) >= before
        await queue.run(partial(job, "slow down"))
        assert await rate(queue) < before * 2 / 3


@in_virtual_time
async def test_other_errors_and_fixed_rates_are_left_alone() -> None:
    store = FarStore(MemoryStore(clock=virtual_micros))
    async with auto(store) as queue:
        with pytest.raises(ZeroDivisionError):
            await queue.run(raising(ZeroDivisionError()))
    fixed = IntervalQueue("fixed", rate="10/s", store=store, retry_after=True)
    with pytest.raises(Refused):
        await fixed.run(raising(Refused()))
    await fixed.close()
    assert not [call for call in store.calls if isinstance(call, Hold)]


async def test_a_response_with_status_429_cuts_the_rate() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(429)

    async with IntervalQueue("h", rate="auto", floor="50/s", ceiling="100/s", store="memory://") as queue:
        transport = PacedTransport(queue, httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("http://api/")).status_code == 429
        state = (await queue.inspect()).auto
        assert state is not None
        assert state.refused is not None
        await queue.drop()


def test_blocking_code_cuts_the_rate() -> None:
    def job() -> None:
        raise Refused

    with BlockingQueue("b", rate="auto", floor="50/s", ceiling="100/s", store="memory://") as queue:
        with pytest.raises(Refused):
            queue.run(job)
        state = queue.inspect().auto
        assert state is not None
        assert state.refused is not None
        queue.drop()


# --- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "auto"}, "needs floor= and ceiling="),
        ({"rate": "auto", "floor": "1/s"}, "needs floor= and ceiling="),
        ({"rate": "auto", "ceiling": 5}, "needs floor= and ceiling="),
        ({"rate": "auto", "floor": "9/s", "ceiling": "1/s"}, "must not be above the ceiling"),
        ({"rate": "auto", "floor": "1/2d", "ceiling": "1/s"}, "give at least 1/d"),
        ({"rate": "auto", "floor": "1/s", "ceiling": "2/s", "interval": 1}, "not both"),
        ({"rate": "5/s", "floor": "1/s"}, "floor='1/s' is for rate='auto' only"),
        ({"interval": 1, "ceiling": "1/s"}, "ceiling='1/s' is for rate='auto' only"),
        ({"floor": "1/s", "ceiling": "2/s"}, "is for rate='auto' only"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        IntervalQueue("q", store="memory://", **options)


@pytest.mark.parametrize("wrong", ["fast", "0/s", -1, True])
def test_a_bound_must_be_a_rate(wrong: Any) -> None:
    with pytest.raises(InvalidInterval):
        IntervalQueue("q", rate="auto", floor=wrong, ceiling="500/s", store="memory://")


def test_a_tolerance_must_fit_the_shortest_interval() -> None:
    with pytest.raises(InvalidInterval, match="less than the interval of 2ms"):
        IntervalQueue("q", rate="auto", floor="1/s", ceiling="500/s", tolerance="2ms", store="memory://")


@in_virtual_time
async def test_handles_agree_whatever_the_rate_is_and_differ_by_their_bounds() -> None:
    store = MemoryStore(clock=virtual_micros)
    async with auto(store) as one, auto(store) as same:
        for _ in range(20):
            async with one.slot():
                pass
        async with same.slot():
            pass
        other = IntervalQueue("api", rate="auto", floor="1/s", ceiling="400/s", store=store)
        with pytest.raises(ConfigMismatch, match="rate=auto, an interval from 2ms to 1s"):
            async with other.slot():
                pass
        updated = IntervalQueue(
            "api", rate="auto", floor="1/s", ceiling="400/s", store=store, on_mismatch="update"
        )
        learned = await rate(one)
        async with updated.slot():
            pass
        state = (await one.inspect()).auto
        assert state is not None
        assert (state.floor, state.ceiling) == (1, 400)
        assert state.rate >= learned


@in_virtual_time
async def test_it_can_be_ended_and_begun() -> None:
    async with auto(MemoryStore(clock=virtual_micros)) as queue:
        for _ in range(20):
            async with queue.slot():
                pass
        await queue.configure(rate="10/s")
        state = await queue.inspect()
        assert (state.interval, state.auto) == (0.1, None)
        await queue.configure(rate="auto", floor="5/s", ceiling="100/s")
        state = await queue.inspect()
        assert state.auto == AutoState(rate=10, floor=5, ceiling=100, refused=None, refused_at=None)
        assert interval(state) == "100ms (10/s, automatic, from 5/s to 100/s)"
        assert state.to_dict()["auto"]["rate"] == 10
