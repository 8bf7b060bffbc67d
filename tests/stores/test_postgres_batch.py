"""Commands of many queues of one store share statements, and are otherwise independent of each other."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.parse import quote

import anyio
import anyio.lowlevel
import psycopg
import pytest

from faults.proxy import Fault, Proxy, proxied
from intervalq import errors
from intervalq.rules import Advance, Answer, Configure, Inspect, Settings
from intervalq.store import stopwatch
from intervalq_stores.postgres import _pool
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.postgres.queues import PostgresStore
from stores import postgres_sessions
from stores.postgres_sessions import sql

url = postgres_sessions.url

SECOND = Settings(interval=1_000_000)
NEW = Advance(settings=SECOND, nonce="n", take=1)


LIMIT = 0.05
"""Seconds that a statement may take, in a test where that passes before its turn."""


@pytest.fixture(params=["url", "pgbouncer_url"])
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    """A proxy to a PostgreSQL, or to a PgBouncer in front of one."""
    async with proxied(request.getfixturevalue(request.param)) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[PostgresStore]:
    """A store that is connected through the proxy."""
    async with aclosing(PostgresStore(proxy.url)) as store:
        await store.apply("first", Inspect())
        proxy.asked.clear()
        yield store


def some(count: int) -> list[str]:
    """Names of queues that no other test uses."""
    return [f"{secrets.token_hex(8)}.{number}" for number in range(count)]


def statements(proxy: Proxy) -> int:
    """How many statements with commands were sent."""
    return b"".join(data for _, data in proxy.asked).count(b"select intervalq.apply")


async def outcomes(store: PostgresStore, queues: list[str]) -> dict[str, Answer | BaseException]:
    """The outcomes of one command, given to all queues at once; each creates its record as `NEW` does."""

    async def own(queue: str) -> Answer:
        return await store.apply(queue, Advance(settings=SECOND, nonce=queue, take=1))

    found = await asyncio.gather(*map(own, queues), return_exceptions=True)
    return dict(zip(queues, found, strict=True))


def check(outcome: Answer | BaseException, queue: str, ticket: int = 1) -> None:
    """Check that the answer is about this queue."""
    assert isinstance(outcome, Answer)
    assert outcome.state is not None
    assert outcome.state.generation == queue
    assert [slot.ticket for slot in outcome.taken] == [ticket]


# --- together ---------------------------------------------------------------------------------------


async def test_many_commands_need_few_statements_and_each_has_its_own_answer(
    store: PostgresStore, proxy: Proxy
) -> None:
    queues = some(300)
    for ticket in (1, 2):
        proxy.asked.clear()
        for queue, outcome in (await outcomes(store, queues)).items():
            check(outcome, queue, ticket)
        assert 3 <= statements(proxy) <= 6  # a busy machine sends some before all have come
    assert proxy.connections == 1


async def test_one_command_is_one_statement_in_one_round_trip(store: PostgresStore, proxy: Proxy) -> None:
    [queue] = some(1)
    for ticket in (1, 2):
        proxy.asked.clear()
        answers = proxy.answers
        check((await outcomes(store, [queue]))[queue], queue, ticket)
        assert (statements(proxy), len(proxy.asked), proxy.answers) == (1, 1, answers + 1)


async def test_what_comes_meanwhile_goes_with_the_next_statement(store: PostgresStore, proxy: Proxy) -> None:
    queues = some(51)
    await proxy.begin(Fault.HOLD_ANSWERS)
    first = asyncio.create_task(outcomes(store, queues[:1]))
    await proxy.until(lambda: proxy.hits == 1)
    others = asyncio.create_task(outcomes(store, queues[1:]))
    await anyio.wait_all_tasks_blocked()
    assert statements(proxy) == 1
    await proxy.heal()
    for queue, outcome in (await first | await others).items():
        check(outcome, queue)
    assert statements(proxy) == 2


async def test_commands_of_one_queue_are_done_in_order(store: PostgresStore) -> None:
    [queue] = some(1)
    answers = await asyncio.gather(*[store.apply(queue, NEW) for _ in range(20)])
    assert [slot.ticket for answer in answers for slot in answer.taken] == list(range(1, 21))
    assert [answer.now for answer in answers] == sorted(answer.now for answer in answers)


async def test_the_bounds_of_a_reading_are_those_of_its_own_command(store: PostgresStore) -> None:
    """They are equally far apart for all commands of a statement, and closer than the statement was long."""
    answers = await asyncio.gather(*[store.apply(queue, NEW) for queue in some(50)])
    trips = [answer.trip for answer in answers if answer.trip is not None]
    assert len(trips) == 50
    assert len({received - sent for sent, received in trips}) == 1
    offsets = {answer.now - trip[0] for answer, trip in zip(answers, trips, strict=True)}
    assert len(offsets) == 1
    assert len({answer.now for answer in answers}) > 1
    assert trips[0][0] < trips[0][1]


# --- apart ------------------------------------------------------------------------------------------


async def test_a_record_that_fails_leaves_the_others_of_its_statement_alone(url: str) -> None:
    queues = sorted(some(60))
    async with proxied(url) as proxy, aclosing(PostgresStore(proxy.url)) as store:
        await outcomes(store, queues)
        sql(url, f"update intervalq.queues set generation = '' where name = '{queues[7]}'")
        sql(url, f"update intervalq.queues set version = 9 where name = '{queues[0]}'")
        sql(url, "alter function intervalq.apply set lock_timeout = '50ms'")
        proxy.asked.clear()
        with psycopg.connect(url) as other:
            other.execute("select 1 from intervalq.queues where name = %s for update", [queues[59]])
            huge = asyncio.create_task(store.apply(queues[30], Configure(interval=2**60)))
            found = await outcomes(store, queues)
        assert statements(proxy) == 5
    with pytest.raises(errors.CorruptState, match=queues[30]):
        await huge
    kinds = {
        queues[7]: errors.CorruptState,
        queues[0]: errors.VersionMismatch,
        queues[59]: errors.StoreTimeout,
    }
    for queue, outcome in found.items():
        if queue in kinds:
            assert type(outcome) is kinds[queue]
        else:
            check(outcome, queue, 2)
    assert queues[7] in str(found[queues[7]])


async def test_an_error_that_concerns_all_is_not_asked_for_again(url: str) -> None:
    queues = some(50)
    async with aclosing(PostgresStore(url)) as store:
        await outcomes(store, queues)
    read_only = f"{url}?options={quote('-c default_transaction_read_only=on')}"
    async with proxied(read_only) as proxy, aclosing(PostgresStore(proxy.url)) as store:
        found = await outcomes(store, queues)
        assert {type(outcome) for outcome in found.values()} == {errors.StoreReadOnly}
        assert len({id(outcome) for outcome in found.values()}) == 50, "each caller has its own to add to"
        assert statements(proxy) == 1


async def test_an_unknown_outcome_is_that_of_all_and_nothing_is_sent_twice(
    store: PostgresStore, proxy: Proxy
) -> None:
    queues = some(50)
    for fault in (Fault.RESET_ANSWER, Fault.CUT_ANSWER, Fault.RESET_REQUEST):
        await store.apply("first", Inspect())
        proxy.asked.clear()
        await proxy.begin(fault, once=True)
        found = await outcomes(store, queues)
        assert {type(outcome) for outcome in found.values()} == {errors.StoreUnavailable}
        assert statements(proxy) == 1
    last = await outcomes(store, queues)
    tickets = {
        slot.ticket for outcome in last.values() if isinstance(outcome, Answer) for slot in outcome.taken
    }
    assert len(tickets) == 1, "each statement was done for all of them, or for none"
    assert tickets <= {1, 2, 3}


async def test_the_time_limit_begins_when_a_command_is_sent(
    store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that waits longer than its own limit for another's statement is sent after that."""
    queues = some(6)
    monkeypatch.setattr(postgres_queues, "_PATIENCE", 60)
    await proxy.begin(Fault.HOLD_ANSWERS)
    held = asyncio.create_task(outcomes(store, queues[:1]))
    await proxy.until(lambda: proxy.hits == 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_queues, "_PATIENCE", LIMIT)
        waiting = asyncio.create_task(outcomes(store, queues[1:]))
        await anyio.wait_all_tasks_blocked()
    over = stopwatch() + 2 * LIMIT * 1e6
    while stopwatch() < over:
        await anyio.lowlevel.checkpoint()
    assert not held.done()
    await proxy.heal()
    for queue, outcome in (await held | await waiting).items():
        check(outcome, queue)


# --- who gives up -----------------------------------------------------------------------------------


async def test_who_is_cancelled_harms_nobody_else(store: PostgresStore, proxy: Proxy) -> None:
    queues = some(40)
    await proxy.begin(Fault.HOLD_ANSWERS)
    sent = {queue: asyncio.create_task(outcomes(store, [queue])) for queue in queues[:20]}
    await proxy.until(lambda: proxy.hits == 1)
    waiting = {queue: asyncio.create_task(outcomes(store, [queue])) for queue in queues[20:]}
    await anyio.wait_all_tasks_blocked()
    cancelled = [*queues[:20:2], *queues[20::2]]
    for queue in cancelled:
        (sent | waiting)[queue].cancel()
    await anyio.wait_all_tasks_blocked()
    await proxy.heal()
    with anyio.fail_after(60):  # only a guard against a hang
        for queue, task in (sent | waiting).items():
            if queue not in cancelled:
                check((await task)[queue], queue)
    names = await store.names()
    assert set(queues[:20]) <= set(names), "what was sent is done"
    assert set(queues[20::2]).isdisjoint(names), "what was not, is not"
    assert (statements(proxy), proxy.connections) == (2, 1)


async def test_a_statement_that_nobody_waits_for_holds_nobody_up(store: PostgresStore, proxy: Proxy) -> None:
    queues = some(30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_queues, "_PATIENCE", 3600.0)
        await proxy.begin(Fault.BLACK_HOLE, once=True)
        sent = [asyncio.create_task(outcomes(store, [queue])) for queue in queues[:20]]
        await proxy.until(lambda: proxy.hits == 1)
    waiting = asyncio.create_task(outcomes(store, queues[20:]))
    await anyio.wait_all_tasks_blocked()
    for task in sent:
        task.cancel()
    with anyio.fail_after(60):  # only a guard against a hang
        for queue, outcome in (await waiting).items():
            check(outcome, queue)
    assert all(task.cancelled() for task in sent)


def test_an_event_loop_may_end_in_the_middle_and_the_next_one_goes_on(url: str) -> None:
    store = PostgresStore(url)

    async def begin() -> None:
        await outcomes(store, ["q"])
        with psycopg.connect(url) as other:
            other.execute("select 1 from intervalq.queues for update")
            left = [asyncio.create_task(outcomes(store, ["q"])) for _ in range(3)]
            while not sql(url, "select 1 from pg_stat_activity where wait_event_type = 'Lock'"):
                await anyio.lowlevel.checkpoint()
            assert not any(task.done() for task in left)

    async def go_on() -> None:
        async with aclosing(store):
            check((await outcomes(store, ["other"]))["other"], "other")

    asyncio.run(begin())
    asyncio.run(go_on())


# --- several stores ---------------------------------------------------------------------------------


async def test_the_same_queues_in_another_order_do_not_wait_for_each_other(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no deadlock, which would raise an error here, because nothing is repeated."""
    monkeypatch.setattr(_pool, "_TURNS", 1)
    queues = some(80)
    async with aclosing(PostgresStore(url)) as one, aclosing(PostgresStore(url)) as two:
        await one.names()
        for _ in range(15):
            there, back = await asyncio.gather(outcomes(one, queues), outcomes(two, queues[::-1]))
            for queue in queues:
                mine, theirs = there[queue], back[queue]
                assert isinstance(mine, Answer), mine
                assert isinstance(theirs, Answer), theirs
        last = await outcomes(one, queues)
    for outcome in last.values():
        assert isinstance(outcome, Answer)
        assert [slot.ticket for slot in outcome.taken] == [31]
