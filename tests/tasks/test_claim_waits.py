"""Callers that wait for claims: time-outs, callers that leave, several queues."""

from __future__ import annotations

import anyio
import pytest

from intervalq.errors import InvalidOption, QueueClosed
from intervalq.tasks.rules import Command, Modify, Work
from tasks.fake_store import FakeStore, handle, until
from virtual_store import BACKENDS, gather, in_virtual_time


async def _nothing(_command: Command[object]) -> None:
    return


@BACKENDS
@in_virtual_time
async def test_a_cancelled_claim_gives_back_what_it_had_just_been_given(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        await tasks.insert("q", 1)
        for moment in range(1, 60):
            with anyio.move_on_after(moment / 1000) as scope:
                claim = await tasks.claim("q")
                await claim.release()
            del scope
        await anyio.sleep(1)
        (row,) = await store.rows()
        assert (row.session, row.attempt) == (None, 0)
        assert tasks._session().batcher.claims == {}


@BACKENDS
@in_virtual_time
async def test_what_came_for_a_caller_who_left_does_not_end_the_wait_of_others(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        with anyio.move_on_after(0.035):  # a call for it is in flight
            await tasks.claim("q")
        values: list[int] = []

        async def wait() -> None:
            with anyio.fail_after(30):
                values.append((await tasks.claim("q")).value)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.1)
            assert tasks._session().waiting() == 1
            await tasks.insert("q", 5)
        assert not tasks._session().batcher.wanted
        assert values == [5]


@BACKENDS
@in_virtual_time
async def test_a_question_from_before_is_no_answer_to_try_claim(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks, anyio.create_task_group() as group:
        asked = anyio.Event()

        async def after(command: Command[object]) -> None:
            if isinstance(command, Work) and command.limit:
                asked.set()
                await anyio.sleep(0.05)

        store.after = after
        group.start_soon(tasks.claim, "q")
        await asked.wait()  # the store has looked, and found nothing
        store.after = _nothing
        await store.behind.apply(Modify(inserts=(tasks.new("q", 1), tasks.new("q", 2))))
        assert await tasks.try_claim("q") is not None
        group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_try_claim_does_not_wait_for_the_next_poll_of_others(backend: str) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks, anyio.create_task_group() as group:
        group.start_soon(tasks.claim, "q")
        await anyio.sleep(5)  # they poll seldom by now
        asked = store.sent(Work)
        await until(lambda: store.sent(Work) > asked)
        with anyio.fail_after(0.1):
            assert await tasks.try_claim("q") is None
        group.cancel_scope.cancel()


@BACKENDS
@in_virtual_time
async def test_who_was_not_asked_for_yet_is_refused_at_once(backend: str) -> None:
    store = FakeStore(delay=0.3)
    tasks = handle(store)
    await tasks.try_claim("q")

    async def wait() -> None:
        with pytest.raises(QueueClosed):
            await tasks.claim("q")

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.1)  # the store is being asked for the first one
        with anyio.fail_after(0.2):
            async with anyio.create_task_group() as other:
                other.start_soon(wait)
                await anyio.sleep(0.1)
                group.start_soon(tasks.aclose)


@BACKENDS
@pytest.mark.parametrize("timeout", [0, 0.000001, 0.001, 0.015])
@in_virtual_time
async def test_a_short_timeout_still_claims_what_is_there(backend: str, timeout: float) -> None:
    store = FakeStore(delay=0.01)
    async with handle(store) as tasks:
        await tasks.insert("q", 1)
        claim = await tasks.claim("q", timeout=timeout)
        await claim.ack()
        with pytest.raises(TimeoutError, match="no task of q, r came within"):
            await tasks.claim("q", "r", timeout=timeout)
        assert tasks._session().waiting() == 0


@in_virtual_time
async def test_a_timeout_ends_though_the_store_hangs() -> None:
    store = FakeStore()
    tasks = handle(store)
    await tasks.try_claim("q")
    store.hangs = True
    before = anyio.current_time()
    with pytest.raises(TimeoutError):
        await tasks.claim("q", timeout=5)
    took = anyio.current_time() - before
    await tasks.aclose()
    assert took <= 6.01


@in_virtual_time
async def test_claims_of_several_queues_and_at_most_as_many_as_there_are() -> None:
    store = FakeStore()
    async with handle(store) as tasks:
        await tasks.put("a", range(50))
        await tasks.insert("b", 1)
        got = [(await tasks.claim("a", "b")).queue for _ in range(30)]
        assert "b" in got  # it isn't delayed by the long one
        many: list[str] = []

        async def one() -> None:
            many.append((await tasks.claim("a", "b")).id)

        await gather(*[one] * 21)
        assert len(set(many)) == 21
        assert await tasks.try_claim("a", "b") is None
        with pytest.raises(InvalidOption, match="at least one queue"):
            await tasks.claim()
