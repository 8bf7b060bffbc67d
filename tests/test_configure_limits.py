"""Limits that are changed while jobs wait, by handles that know of each other's change or don't."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._spec.configure import reordered
from intervalq._spec.limits import rules_of
from intervalq.errors import InvalidOption
from intervalq.rules import Advance, Configure, HighWaterMark, Limit, Settings, Slot, apply
from rule_steps import do
from test_limits import Server, queue_on
from virtual_store import FarStore, gather, in_virtual_time

T0 = 1_000_000_000_000_000


async def many(queue: IntervalQueue, server: Server, tokens: int, count: int) -> None:
    async def job() -> None:
        async with queue.slot(cost={"tokens": tokens}):
            server.sees(tokens)

    await gather(*[job] * count)


@pytest.mark.parametrize("knows", ["both", "one"])
@in_virtual_time
async def test_jobs_that_wait_take_what_they_take_of_other_limits(knows: str) -> None:
    """The order of limits changes while jobs of two handles wait, whether or not the handles know it."""
    server = Server()

    store = FarStore(delay=0.01)
    first = queue_on(store, "600/min", "10_000 tokens/min", interval=0.1)
    second = queue_on(FarStore(store.behind, delay=0.01), "600/min", "10_000 tokens/min", interval=0.1)
    async with anyio.create_task_group() as group:
        group.start_soon(many, first, server, 1_000, 15)
        group.start_soon(many, second, server, 500, 15)
        await anyio.sleep(1)
        await (second if knows == "both" else first).configure(
            limits=["9000 bytes/min", "5_000 tokens/min", "300/min"]
        )
    state = await first.inspect()
    assert [each.limit for each in state.limits] == ["9000 bytes/m", "5000 tokens/m", "300/m"]
    assert state.limits[0].taken == 0
    assert len(server.seen) == 30
    changed = server.seen[0][0] + 1.1
    after = Server()
    after.seen = [each for each in server.seen if each[0] > changed]
    assert len(after.seen) >= 5
    for at, _ in after.seen:  # together with what was taken before
        assert (
            sum(units for other, units in server.seen if at - 60 < other <= at) <= 5_000 or at < changed + 60
        )
    assert after.most(60) <= 5_000


@in_virtual_time
async def test_what_was_used_still_counts() -> None:
    queue = queue_on(FarStore(), "10/min", "20/h")
    for _ in range(7):
        async with queue.slot():
            pass
    await queue.configure(limits=["8/min", "9/2min", "30 tokens/min"])
    state = await queue.inspect()
    assert [(each.limit, each.taken) for each in state.limits] == [
        ("8/m", 7),
        ("9/2m", 7),  # as the limit of an hour has counted it
        ("30 tokens/m", 0),
    ]
    async with queue.try_slot(cost={"tokens": 30}):  # a unit that wasn't limited before
        pass
    assert 55 < (await queue.quote() or 0) < 65
    await queue.configure(limits=["100/min"])
    async with queue.try_slot():
        pass
    with pytest.raises(InvalidOption, match="at least one limit"):
        await queue.configure(limits=[])
    with pytest.raises(InvalidOption, match="is not a limit"):
        await queue.configure(limits=["5"])


@in_virtual_time
async def test_limits_come_and_go() -> None:
    server = Server()

    store = FarStore()
    queue = queue_on(store, interval=0.1)
    unaware = IntervalQueue("q", store=FarStore(store.behind))
    async with queue.slot():
        pass

    async def job() -> None:
        async with unaware.slot():
            server.sees()

    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(job)
        await anyio.sleep(0.55)
        await queue.configure(limits=["5/min"])
        await anyio.sleep(120)
        assert (await queue.inspect()).binds == "5/m"
        seen = len(server.seen)
        assert seen < 20
        await queue.configure(limits=[])
        assert (await unaware.inspect()).limits == ()
        await anyio.sleep(10)
        assert len(server.seen) == 40


LIMITS: list[Any] = [["6/min"], ["5/min", "100 tokens/h"], []]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("on_mismatch", ["adopt", "update"])
@in_virtual_time
async def test_handles_that_disagree_can_adopt_and_update(limits: list[str], on_mismatch: str) -> None:
    far = FarStore()
    first = queue_on(far, "7 tokens/min", "5/min", interval=1)
    async with first.slot(cost={"tokens": 3}):
        pass
    other = queue_on(FarStore(far.behind), *limits, interval=1, on_mismatch=on_mismatch)
    async with other.slot():
        pass
    state = await first.inspect()
    expected = [("7 tokens/m", 3), ("5/m", 2)]
    if on_mismatch == "update":
        expected = [
            *(
                {"6/min": ("6/m", 2), "5/min": ("5/m", 2), "100 tokens/h": ("100 tokens/h", 3)}[e]
                for e in limits
            )
        ]
    assert [(each.limit, each.taken) for each in state.limits] == expected
    async with first.slot(cost={"tokens": 1}):
        pass
    tokens = [each.taken for each in (await first.inspect()).limits if "tokens" in each.limit]
    assert tokens in ([4], [])


def test_a_command_says_what_it_takes_in_another_order() -> None:
    slot = Slot(1, 2, 3, (3, 700))
    command = Advance(slots=(slot,), release=(Slot(4, 5),), take=3, costs=(1, 2), units=((1, 5), (), (2,)))
    limits = rules_of(["9 bytes/min", "9 tokens/min", "5/min", "7/h"])
    ordered = reordered(command, ("starts", "tokens"), limits)
    assert ordered.slots == (slot._replace(units=(0, 700, 3, 3)),)
    assert ordered.release == command.release
    assert ordered.units == ((0, 5, 1, 1), (), (0, 0, 2, 2))
    assert reordered(command, ("starts", "tokens"), rules_of(["5/min", "9 tokens/h"])) is command
    assert reordered(Advance(take=1, costs=(4,), units=((7,),)), ("tokens",), limits).units == ((0, 7, 4, 4),)


def test_a_sender_of_other_limits_must_hear_of_these_first() -> None:
    settings = Settings(1_000, limits=rules_of(["5/min"]))
    state, _ = apply(None, Advance(settings=settings, nonce="g", take=1), T0)
    other = Settings(1_000, limits=rules_of(["6/min"]))
    same, answer = apply(state, Advance(settings=other, generation="g", take=1), T0)
    assert answer.refused
    assert same is state
    for command in (Advance(settings=settings, generation="g", take=1), Advance(generation="g", take=1)):
        assert apply(state, command, T0)[1].count == 1
    changed, answer = apply(state, Configure(settings=other, generation="g", limits=other.limits), T0)
    assert not answer.refused
    assert changed is not None
    assert changed.settings == other


MINUTE, TOKENS = "600/min", "10_000 tokens/min"


async def taken(queue: IntervalQueue) -> dict[str, int]:
    await anyio.sleep(3)  # until the settled costs have been sent
    return {each.limit: each.taken for each in (await queue.inspect()).limits}


@in_virtual_time
async def test_what_is_settled_counts_in_its_limit_if_the_handle_changes_their_order() -> None:
    queue = queue_on(FarStore(), MINUTE, TOKENS, interval=0.1)
    async with queue.slot(cost={"tokens": 1_500}):
        pass
    await queue.configure(limits=[TOKENS, MINUTE])
    async with queue.slot(cost={"tokens": 1_500}) as slot:
        pass
    slot.settle(tokens=800)
    assert await taken(queue) == {"10000 tokens/m": 2_300, "600/m": 2}


@in_virtual_time
async def test_what_is_settled_counts_in_its_limit_if_others_change_their_order() -> None:
    store = FarStore()
    queue = queue_on(store, MINUTE, TOKENS, interval=0.1)
    for _ in range(5):
        async with queue.slot(cost={"tokens": 1_500}) as slot:
            pass
    await IntervalQueue("q", store=FarStore(store.behind)).configure(limits=[TOKENS, MINUTE])
    slot.settle(tokens=800)
    assert await taken(queue) == {"10000 tokens/m": 6_800, "600/m": 5}


@in_virtual_time
async def test_jobs_that_fit_are_not_refused_if_others_change_the_order_of_limits() -> None:
    store = FarStore()
    queue = queue_on(store, "60/min", TOKENS, interval=0.1)
    async with queue.slot(cost={"tokens": 10}):
        pass
    await IntervalQueue("q", store=FarStore(store.behind)).configure(limits=[TOKENS, "60/min"])
    async with queue.slot(cost={"tokens": 10}):
        pass
    await anyio.sleep(1)
    async with queue.try_slot(cost={"tokens": 100}):
        pass
    wait = await queue.quote({"tokens": 100})
    assert wait is not None
    assert wait < 0.2


def test_jobs_of_a_larger_burst_count_as_late_as_they_may_begin_also_after_a_late_grant() -> None:
    """The last of fifteen may begin half a second after its slot; the next one's process is late."""
    second, at = 1_000_000, 64 * 15_625_000_000_000 + 600_000
    limit = Limit(16, 64 * second, "tokens")
    settings, one = Settings(interval=50_000, burst=10, limits=(limit,)), ((1,),)
    state, answer = do(None, Advance(settings=settings, nonce="g", take=15, units=one * 15, reach=second), at)
    latest = answer.taken[-1].due + state.tolerance + state.credit
    assert answer.begun == 15
    state, _ = do(state, Configure(burst=1), at + 1)
    state, answer = do(state, Advance(generation="g", take=1, units=one), at + 2)
    (late,) = answer.taken
    mark, now = HighWaterMark(state.ticket, state.due), late.due + 6_000
    asked = Advance(generation="g", slots=(late,), until=now, high_water_mark=mark, notice=1_000)
    state, answer = do(state, asked, now)
    assert (answer.granted, answer.at_once) == ((late.ticket,), True)
    state, answer = do(state, Advance(generation="g", take=1, units=((16,),)), now)
    assert answer.taken[0].due + state.held_total > latest + limit.window
