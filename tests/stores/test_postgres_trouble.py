"""Queues on Postgres: lost connections, errors, secrets, missing drivers, and advice."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from random import Random

import anyio
import anyio.lowlevel
import psycopg
import pytest
import trio

from intervalq import errors, rules
from intervalq.rules import Advance, Hold, Resume, Settings
from intervalq_stores.postgres import _connection as postgres_connection
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.postgres.queues import PostgresStore
from servers import free_port
from stores import postgres_sessions
from stores.postgres_sessions import CANARY, ME, caught, sql, with_options

SECOND = Settings(interval=1_000_000)
NEW = Advance(settings=SECOND, nonce="n", take=1)

url = postgres_sessions.url


async def _until_one_waits_for_a_lock(url: str) -> None:
    while not sql(url, f"select 1 {ME} and wait_event_type = 'Lock'"):
        await anyio.lowlevel.checkpoint()


async def _for_ever(waiting: Callable[[], Awaitable[None]]) -> None:
    while True:
        await waiting()


# --- faults -----------------------------------------------------------------------------------------


async def test_a_connection_that_is_ended_in_the_middle_is_unavailable_once(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        with psycopg.connect(url) as other:
            other.execute("select 1 from intervalq.queues for update")
            step = asyncio.create_task(store.apply("q", NEW))
            await _until_one_waits_for_a_lock(url)
            assert sql(url, f"select pg_terminate_backend(pid) {ME}") == [(True,)]
            assert type(await caught(step)) is errors.StoreUnavailable
        assert [slot.ticket for slot in (await store.apply("q", NEW)).taken] == [2]


async def test_cancelled_calls_leave_nothing_to_the_next_ones(url: str) -> None:
    random, done = Random(7), 0
    async with aclosing(PostgresStore(url)) as store:
        queues = [f"q{number}" for number in range(6)]
        for name in queues:
            await store.apply(name, Advance(settings=SECOND, nonce=name))

        async def call(name: str, scope: anyio.CancelScope) -> None:
            nonlocal done
            with scope:
                answer = await store.apply(name, Advance(generation=name, take=1))
                assert answer.state is not None
                assert answer.state.generation == name
                done += 1

        for _ in range(40):
            async with anyio.create_task_group() as group:
                for name in queues:
                    scope = anyio.CancelScope()
                    group.start_soon(call, name, scope)
                    for _ in range(random.choice((0, 1, 3, 10, 30, 100))):
                        await anyio.lowlevel.checkpoint()
                    if random.random() < 0.5:
                        scope.cancel()
    assert 60 < done < 240


async def test_what_the_server_says_becomes_the_errors_of_a_store(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
    with psycopg.connect(url) as other:
        other.execute("select 1 from intervalq.queues for update")
        async with aclosing(PostgresStore(with_options(url, "statement_timeout=50"))) as store:
            assert type(await caught(store.apply("q", NEW))) is errors.StoreTimeout
        async with aclosing(PostgresStore(with_options(url, "default_transaction_read_only=on"))) as store:
            assert type(await caught(store.apply("q", NEW))) is errors.StoreReadOnly


async def test_a_step_that_was_rolled_back_for_another_is_done_again(url: str) -> None:
    serializable = with_options(url, "default_transaction_isolation=serializable")
    async with aclosing(PostgresStore(serializable)) as store:
        await store.apply("q", NEW)
        with psycopg.connect(url) as other:
            other.execute("update intervalq.queues set ticket = 41")
            step = asyncio.create_task(store.apply("q", NEW))
            await _until_one_waits_for_a_lock(url)
        assert [slot.ticket for slot in (await step).taken] == [42]


async def test_steps_wait_for_each_other_and_only_then_read_the_clock(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
        for ticket in (2, 4):  # the record is being created, and then exists
            with psycopg.connect(url) as other:
                first = [json.dumps(NEW.to_dict()), rules.LAYOUT]
                other.execute("select intervalq.apply('q', %s, null, %s)", first)
                step = asyncio.create_task(store.apply("q", NEW))
                await _until_one_waits_for_a_lock(url)
                [(waited,)] = sql(url, "select extract(epoch from clock_timestamp()) * 1000000")
            assert [slot.ticket for slot in (await step).taken] == [ticket]
            assert (await step).now > waited


async def test_nobody_there_and_nobody_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (PostgresStore.names, PostgresStore.advice):
        store = PostgresStore(f"postgresql://somebody@127.0.0.1:{free_port()}/db")
        assert type(await caught(call(store))) is errors.StoreUnavailable
    monkeypatch.setattr(postgres_queues, "_PATIENCE", 0.05)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent:
        port = silent.extra(anyio.abc.SocketAttribute.local_port)
        store = PostgresStore(f"postgresql://somebody@127.0.0.1:{port}/db")
        assert type(await caught(store.names())) is errors.StoreTimeout


async def test_secrets_are_never_shown(url: str) -> None:
    place = url.rpartition("@")[2]
    for wrong in (f"nobody-there:{CANARY}@{place}", f"postgres:{CANARY}@127.0.0.1:{free_port()}/x"):
        store = PostgresStore(f"postgresql://{wrong}?application_name={CANARY}")
        shown = traceback.format_exception(await caught(store.names()))
        assert CANARY not in f"{store!r} {store.url} {shown}"
    for broken in (
        f"u:12/{CANARY}@{place}",
        f"u:x/{CANARY}@{place}",
        f"u@{place}?{CANARY}=1",
        f"u@h:{CANARY}",
    ):
        with pytest.raises(errors.InvalidOption) as refused:
            PostgresStore(f"postgresql://{broken}")
        assert CANARY not in "".join(traceback.format_exception(refused.value))


def test_a_driver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    postgres_connection.driver.cache_clear()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.MissingExtra, match=r"intervalq\[postgres\]"):
        PostgresStore("postgresql://host/db")


def test_trio_is_refused_by_name(url: str) -> None:
    store = PostgresStore(url)
    for call in (store.names, partial(store.apply, "q", NEW)):
        with pytest.raises(errors.BackendUnsupported, match=r"asyncio.*trio.*sqlite://.*file://.*memory://"):
            trio.run(call)


# --- waking and advice ------------------------------------------------------------------------------


async def test_who_gives_up_waiting_loses_no_wake_up_and_a_lost_connection_is_told(url: str) -> None:
    name = f"{'n' * 128}:{'k' * 128}"
    async with aclosing(PostgresStore(url)) as store:
        await store.apply(name, NEW)
        async with store.wakeups(name) as woken, store.wakeups("other") as other:
            for _ in range(3):
                with anyio.move_on_after(0):
                    await woken()
                await store.apply(name, Hold())
                assert (await store.apply(name, Resume())).woken
            await woken()
            with anyio.move_on_after(0) as scope:
                await other()
            assert scope.cancelled_caught
            sql(url, f"select pg_terminate_backend(pid) {ME} and query like 'listen%'")
            for waiting in (woken, other):
                assert type(await caught(_for_ever(waiting))) is errors.StoreUnavailable


async def test_advice_names_what_is_wrong(
    url: str, pgbouncer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(at: str) -> list[str]:
        async with aclosing(PostgresStore(at)) as store:
            bad = [reported for level, reported in await store.advice() if level != "ok"]
            return [reported for reported in bad if "is a superuser" not in reported]  # as it is in tests

    assert await wrong(url) == []
    bad = with_options(url, "synchronous_commit=off", "default_transaction_isolation=serializable")
    starts = [reported.split(":")[0] for reported in await wrong(bad)]
    assert starts == ["synchronous_commit is off", "transactions are serializable"]
    assert "pooler" in " ".join(await wrong(pgbouncer_url))
    monkeypatch.setattr("intervalq_stores.postgres._advice.OLD", -1.0)
    assert "has been open" in " ".join(await wrong(url))
