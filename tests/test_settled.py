"""Costs that are settled afterwards: how users settle them, and how they reach the store."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue, QueueClosed
from intervalq._shard.settlements import Settlements
from intervalq._timing.clock import CLOCK
from intervalq.errors import InvalidOption
from intervalq.rules import Advance, Drop, Settled
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq.testing import virtual_time
from keyed_world import FarPairs
from test_limits import MINUTE, Server, queue_on
from virtual_store import FarStore, gather, in_virtual_time

TOKENS = {"tokens": 100}


async def taken(queue: IntervalQueue) -> int:
    (limit,) = (await queue.inspect()).limits
    return limit.taken


def settled(store: FarStore) -> list[Settled]:
    return [each for call in store.calls if isinstance(call, Advance) for each in call.settled]


@pytest.mark.parametrize(("length", "until"), [(0.05, 4), (2, 18)])
@pytest.mark.parametrize("each", [None, ["5/s", "5_000 tokens/min"]])
@in_virtual_time
async def test_jobs_that_come_together_do_not_wait_for_what_the_first_ones_will_not_take(
    each: list[str] | None, length: float, until: int
) -> None:
    """By their estimates, the last job would wait for three minutes; no request is made only for this."""
    store = FarPairs(FarStore().behind, delay=0.0005)
    paced: dict[str, Any] = {"rate": "5/s", "limits": ["5_000 tokens/min"]}
    queue = IntervalQueue("llm", store=store, **(paced if each is None else {"rate": "20/s", "each": each}))
    mine = queue if each is None else queue["ada"]

    async def job() -> None:
        async with mine.slot(cost={"tokens": 1_500}) as slot:
            await anyio.sleep(length)
            slot.settle(tokens=200)

    before = anyio.current_time()
    await gather(*[job] * 12)
    assert anyio.current_time() - before < until
    assert len(store.calls) <= (20 if each is None else 22)
    await queue.close()


@pytest.mark.parametrize(("callers", "lost"), [(4, 0.0), (4, 0.03)])
@in_virtual_time
async def test_no_window_of_what_jobs_really_took_is_over_and_a_backlog_uses_it(
    callers: int, lost: float
) -> None:
    """Four processes have heavy-tailed costs, and at the end settle estimates up to three times as high."""
    server, far, most = Server(), FarStore(delay=0.002), 500_000

    stores = [FarStore(far.behind, delay=0.002, seed=seed) for seed in range(4)]
    for store in stores:
        store.loses_answers = lost
    queues = [queue_on(store, f"{most} tokens/min") for store in stores]
    until = anyio.current_time() + 3 * MINUTE

    async def caller(queue: IntervalQueue, seed: int) -> None:
        draw = Random(seed)
        while anyio.current_time() < until:
            real = min(4_000, int(300 * draw.paretovariate(1.3)))
            async with queue.slot(cost={"tokens": min(8_000, int(real * draw.uniform(1, 3)))}) as slot:
                server.sees(real)
                await anyio.sleep(draw.uniform(0.05, 0.3))
                slot.settle(tokens=real)

    await gather(
        *(partial(caller, queue, 10 * n + m) for n, queue in enumerate(queues) for m in range(callers))
    )
    for store, queue in zip(stores, queues, strict=True):
        store.loses_answers = 0
        await queue.close()
    assert server.most(MINUTE) <= most
    begin = server.seen[0][0] + MINUTE
    used = sum(units for at, units in server.seen if begin <= at < begin + 2 * MINUTE)
    assert lost or used >= 0.97 * 2 * most  # tickets that were lost with their answers count


@in_virtual_time
async def test_a_difference_rides_along_with_the_next_question() -> None:
    store = FarStore()
    queue = queue_on(store, "1000 tokens/min")
    async with queue.slot(cost=TOKENS) as slot:
        slot.settle(tokens=30)
    before = len(store.calls)
    async with queue.slot(cost=TOKENS):
        pass
    assert [each.more for each in settled(store)] == [(-70,)]
    assert store.calls[before].settled == tuple(settled(store))  # type: ignore[attr-defined] # an advance
    assert await taken(queue) == 130


@pytest.mark.parametrize("real", [30, 130])
@in_virtual_time
async def test_a_difference_gets_a_question_of_its_own_where_nobody_asks(real: int) -> None:
    store = FarStore()
    queue, other = queue_on(store, "1000 tokens/min"), queue_on(store, "1000 tokens/min")
    async with queue.slot(cost=TOKENS) as slot:
        slot.settle(tokens=real)
    await anyio.sleep(0.9)
    assert settled(store) == []
    await anyio.sleep(0.1)
    assert [each.more for each in settled(store)] == [(real - 100,)]
    assert await taken(other) == real
    calls = len(store.calls)
    await anyio.sleep(MINUTE)
    assert len(store.calls) == calls
    assert not queue._shard().conversation.runs


@in_virtual_time
async def test_closing_tells_what_is_settled() -> None:
    store = FarStore()
    queue, other = queue_on(store, "1000 tokens/min"), queue_on(store, "1000 tokens/min")
    async with queue.slot(cost=TOKENS) as slot:
        slot.settle(tokens=130)
    before = anyio.current_time()
    await queue.close()
    assert anyio.current_time() - before < 0.1
    assert await taken(other) == 130
    async with queue_on(store, "1000 tokens/min") as third, third.slot(cost=TOKENS) as slot:
        pass
    with pytest.raises(QueueClosed):
        slot.settle(tokens=130)


@in_virtual_time
async def test_closing_while_a_difference_is_being_sent_sends_nothing_else() -> None:
    store = FarStore(delay=0.05)
    queue = queue_on(store, "1000 tokens/min")
    async with queue.slot(cost=TOKENS) as slot:
        slot.settle(tokens=130)
    while not settled(store):
        await anyio.sleep(0.001)
    with anyio.fail_after(MINUTE):
        await queue.close()
    calls = len(store.calls)
    await anyio.sleep(MINUTE)
    assert [each.more for each in settled(store)] == [(30,)]
    assert len(store.calls) == calls


@pytest.mark.parametrize(("real", "counted"), [(30, {100, 30}), (130, {130, 160})])
def test_without_an_answer_a_refund_is_sent_once_and_an_overrun_again(real: int, counted: set[int]) -> None:
    """This holds whether or not the step was done."""
    found = set()
    for seed in range(8):

        async def scenario(seed: int = seed) -> int:
            store = FarStore(seed=seed)
            queue, other = (
                queue_on(store, "1000 tokens/min"),
                queue_on(FarStore(store.behind), "1000 tokens/min"),
            )
            async with queue.slot(cost=TOKENS) as slot:
                slot.settle(tokens=real)
            if seed % 2:
                store.is_down = True
            else:
                store.loses_answers = 1
            await anyio.sleep(2)
            store.is_down, store.loses_answers = False, 0
            await anyio.sleep(10)
            sent = [each.more for each in settled(store)]
            assert len(sent) == 1 if real < 100 else len(sent) > 1
            return await taken(other)

        found.add(virtual_time(scenario))
    assert min(found) == min(counted)
    assert found <= counted if real < 100 else all((each - 100) % 30 == 0 for each in found)


@in_virtual_time
async def test_an_overrun_waits_for_a_question_after_a_long_outage() -> None:
    store = FarStore()
    queue = queue_on(store, "1000 tokens/day")
    async with queue.slot(cost=TOKENS) as slot:
        slot.settle(tokens=130)
    store.is_down = True
    await anyio.sleep(5 * MINUTE)
    assert not queue._shard().conversation.runs
    store.is_down = False
    async with queue.slot(cost=TOKENS):
        assert await taken(queue) == 230


@pytest.mark.parametrize("is_late", [False, True])
@in_virtual_time
async def test_what_belongs_to_a_lost_record_is_not_told_to_the_next(is_late: bool) -> None:
    """The cost is settled before the handle learns of the loss, or after."""
    store = FarStore()
    queue, other = queue_on(store, "1000 tokens/min"), queue_on(store, "1000 tokens/min")
    async with queue.slot(cost=TOKENS) as slot:
        if not is_late:
            slot.settle(tokens=130)
    await store.apply("q", Drop())
    async with other.slot(cost=TOKENS):
        pass
    await queue.inspect()
    if is_late:
        slot.settle(tokens=130)
    await anyio.sleep(2)
    assert settled(store) == []
    assert await taken(other) == 100


@in_virtual_time
async def test_slots_are_settled_after_the_order_of_limits_has_changed() -> None:
    queue = queue_on(FarStore(), "1000 tokens/min", "10/min")
    async with queue.slot(cost=TOKENS) as before:
        await queue.configure(limits=["10/min", "1000 tokens/min"])
    async with queue.slot(cost=TOKENS) as after:
        pass
    before.settle(tokens=30)
    after.settle(tokens=40)
    await anyio.sleep(1)
    assert [each.taken for each in (await queue.inspect()).limits] == [2, 70]


@in_virtual_time
async def test_jobs_that_hold_a_queue_settle() -> None:
    """With `max_running`, the end of a job lets the next one begin."""
    queue = queue_on(FarStore(), "1000 tokens/min", max_running=1)

    async def job() -> int:
        await anyio.sleep(3)
        return 30

    jobs = [await queue.add(job, cost=TOKENS, settle=lambda real: {"tokens": real}) for _ in range(5)]
    for each in jobs:
        await each
    await anyio.sleep(1)
    assert await taken(queue) == 150


# --- the ways in ------------------------------------------------------------------------------------


def answer(real: int) -> int:
    return real


async def ask(real: int = 30) -> int:
    return real


def usage(real: int) -> dict[str, int] | None:
    return None if real < 0 else {"tokens": real}


@in_virtual_time
async def test_functions_of_the_result_settle() -> None:
    queue = queue_on(FarStore(), "10_000 tokens/min")
    total = 0

    async def counts(real: int) -> None:
        nonlocal total
        total += real
        await anyio.sleep(1)
        assert await taken(queue) == total

    assert await queue.run(ask, cost=TOKENS, settle=usage) == 30
    await counts(30)
    assert await (await queue.add(ask, 40, cost=TOKENS, settle=usage)) == 40
    await counts(40)
    assert {each async for each in queue.map(ask, [1, 2, 3], cost=TOKENS, settle=usage)} == {1, 2, 3}
    await counts(6)
    assert await queue(cost=TOKENS, settle=usage)(ask)(50) == 50
    await counts(50)
    assert await queue.run(partial(ask, -1), cost=TOKENS, settle=usage) == -1
    await counts(100)  # None: the estimate counts


def test_blocking_code_settles() -> None:
    with BlockingQueue("settled", limits=["10_000 tokens/min"], store="memory://") as queue:
        with queue.slot(cost=TOKENS) as slot:
            slot.settle(tokens=10)
            with pytest.raises(RuntimeError, match="already"):
                slot.settle(tokens=10)
        assert queue.run(lambda: 20, cost=TOKENS, settle=usage) == 20
        assert queue.add(answer, 30, cost=TOKENS, settle=usage).result() == 30
        assert [*queue.map(answer, [40], cost=TOKENS, settle=usage)] == [40]
        assert queue(cost=TOKENS, settle=usage)(answer)(50) == 50
        with queue.slot(cost=TOKENS) as slot:  # the question for this one reports everything
            assert queue.inspect().limits[0].taken == 250
        queue.drop()
    with pytest.raises(QueueClosed):
        slot.settle(tokens=10)


def test_an_error_of_the_function_keeps_the_result_and_the_estimate(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        queue = queue_on(FarStore(), "10_000 tokens/min")
        assert await queue.run(ask, cost=TOKENS, settle=lambda _: {"tokens": -1}) == 30
        assert await queue.run(ask, cost=TOKENS, settle=lambda real: {"tokens": real // 0}) == 30
        await anyio.sleep(1)
        assert await taken(queue) == 200

    with caplog.at_level(logging.WARNING, "intervalq"):
        virtual_time(scenario)
    assert [record.message for record in caplog.records] == [
        "queue 'q': settle= failed, so the estimate counts"
    ] * 2


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("units", "says"),
    [
        ({"bytes": 1}, "no limit of it.*1000 tokens"),
        ({"tokens": -1}, "settled tokens=-1"),
        ({"tokens": 1.5}, "settled tokens=1.5"),
        ({"tokens": True}, "settled tokens=True"),
        ({"tokens": 10**12 + 1}, "settled tokens"),
        ({"words": 1}, "estimate"),
        ({"starts": 0}, "settled starts=0"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_settled_is_refused_and_may_be_corrected(
    units: dict[str, int], says: str
) -> None:
    queue = queue_on(FarStore(), "1000 tokens/min", "1000 words/min", "10/min")
    async with queue.slot(cost=TOKENS) as slot:
        with pytest.raises(InvalidOption, match=says):
            slot.settle(**units)
        slot.settle(tokens=100, starts=1)
        with pytest.raises(RuntimeError, match="already"):
            slot.settle(tokens=100)


def test_before_there_is_a_slot_none_is_settled() -> None:
    slot = IntervalQueue("q", limits=["10 tokens/min"], store="memory://").slot(cost={"tokens": 1})
    with pytest.raises(RuntimeError, match="no slot"):
        slot.settle(tokens=1)  # type: ignore[attr-defined] # it is a context, whose slot comes later


def test_a_function_needs_an_estimate_and_a_result() -> None:
    queue = IntervalQueue("q", limits=["10 tokens/min"], store="memory://")
    with pytest.raises(InvalidOption, match="needs the estimate"):
        queue(settle=usage)
    with pytest.raises(InvalidOption, match="must be a function"):
        queue(cost={"tokens": 1}, settle="tokens")  # type: ignore[call-overload] # on purpose

    async def items() -> AsyncGenerator[int, None]:
        yield 1

    def numbers() -> Iterator[int]:
        yield 1

    for function in (items, numbers):
        with pytest.raises(TypeError, match="no result"):
            queue(cost={"tokens": 1}, settle=usage)(function)


def test_what_comes_in_one_turn_is_sent_in_parts() -> None:
    """One question carries at most a thousand."""
    settlements = Settlements(CLOCK.get(), are_usual=False)
    for due in range(1_500):
        settlements.add(Settled(due, 0, ()), {"tokens": -1}, ())
    assert len(settlements.take(())) == 1_000
    settlements.answered()
    assert settlements.at <= CLOCK.get().now()
    assert len(settlements.take(())) == 500
