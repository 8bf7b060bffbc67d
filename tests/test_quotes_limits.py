"""Quotes of jobs that take units of limits, and refusals at once if they would begin too late."""

from __future__ import annotations

from functools import partial
from random import Random

import anyio
import pytest

from intervalq import SlotTimeout
from intervalq.errors import InvalidOption
from test_limits import queue_on
from virtual_store import BACKENDS, FarStore, in_virtual_time

BOTH = ["600/min", "30_000 tokens/min"]


@BACKENDS
@pytest.mark.parametrize("interval", [0.05, None])
@in_virtual_time
async def test_units_are_quoted_and_refused_at_once(interval: float | None, backend: str) -> None:
    store = FarStore()
    queue, other = (queue_on(far, *BOTH, interval=interval) for far in (store, FarStore(store.behind)))
    assert await queue.quote({"tokens": 30_000}) == 0
    for _ in range(25):
        async with queue.slot(cost={"tokens": 1_000}):
            pass
    await anyio.sleep(1)
    for handle in (queue, other):
        assert await handle.quote() == 0
        assert await handle.quote({"tokens": 5_000}) == 0
        quoted = await handle.quote({"tokens": 5_001})
        assert quoted is not None
        assert 55 < quoted < 62
        assert await handle.quote({"tokens": 30_000}) == pytest.approx(quoted, abs=2.5)
    begin, calls = anyio.current_time(), len(store.calls)
    for ask in (
        partial(queue.slot, cost={"tokens": 5_001}, timeout=50),
        partial(queue.try_slot, cost={"tokens": 5_001}, within="50s"),
    ):
        with pytest.raises(SlotTimeout) as refused:
            async with ask():
                raise AssertionError
        assert refused.value.retry_after == pytest.approx(quoted, abs=0.1)
    assert anyio.current_time() - begin < 0.1
    assert {type(call).__name__ for call in store.calls[calls:]} <= {"Inspect"}  # no ticket was taken
    async with queue.try_slot(cost={"tokens": 5_000}):
        pass
    with pytest.raises(SlotTimeout) as refused:
        async with queue.try_slot(cost={"tokens": 1}):
            raise AssertionError
    assert refused.value.retry_after is not None
    await anyio.sleep(refused.value.retry_after)
    async with queue.try_slot(cost={"tokens": 1}):
        pass


@BACKENDS
@pytest.mark.parametrize("seed", range(6))
@in_virtual_time
async def test_a_quote_is_when_a_job_begins_behind_others_of_all_sizes(seed: int, backend: str) -> None:
    random = Random(seed)
    queue = queue_on(
        FarStore(), *BOTH, interval=random.choice([None, 0.05, 1]), lookahead=random.choice([1, 16])
    )
    began = list[float]()

    async def job() -> None:
        began.append(anyio.current_time())

    asked, begin = 0, anyio.current_time()
    for _ in range(random.randint(10, 60)):
        tokens = random.choice([0, 100, 2_000, 9_000])
        asked += tokens
        await queue.add(job, cost={"tokens": tokens, "starts": random.choice([1, 1, 3])})
    mine = {"tokens": random.choice([1, 3_000])}
    quoted = await queue.quote(mine)
    await (await queue.add(job, cost=mine))
    assert began[-1] - begin == pytest.approx(quoted, abs=0.2)
    assert asked < 30_000 or began[-1] - begin > 50


@in_virtual_time
async def test_a_held_queue_refuses_by_units_too() -> None:
    """The first of three jobs fits in when the cool-down ends, the others only a window later."""
    queue, refused, began = queue_on(FarStore(), "1000 tokens/min", interval=1), list[str](), list[str]()
    async with queue.slot():
        pass
    await queue.cool_down(10)

    async def job(name: str, tokens: int) -> None:
        try:
            async with queue.slot(cost={"tokens": tokens}, timeout=30):
                began.append(name)
        except SlotTimeout as error:
            assert error.retry_after is not None
            assert error.retry_after > 60
            assert anyio.current_time() < 1
            refused.append(name)

    async with anyio.create_task_group() as group:
        for name, tokens in (("large", 600), ("too much", 500), ("small", 400)):
            group.start_soon(job, name, tokens)
            await anyio.sleep(0.1)
    assert (began, refused) == (["large", "small"], ["too much"])


@in_virtual_time
async def test_what_can_never_begin_has_no_quote() -> None:
    queue = queue_on(FarStore(), "1000 tokens/min")
    with pytest.raises(InvalidOption, match="1000 tokens/m"):
        await queue.quote({"tokens": 1_001})
