from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing
from functools import partial
from random import Random
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import anyio
import anyio.lowlevel
import psycopg
import pytest
import trio
from anyio.from_thread import BlockingPortal

import layouts
from intervalq import errors, rules
from intervalq.rules import Advance, Command, Configure, Drop, Finish, Hold, Inspect, Resume, Settings
from intervalq.store import Store, Waking
from intervalq.testing import StoreSuite
from intervalq_stores.postgres import _connection as postgres_connection
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.postgres.queues import SCHEMA, PostgresStore
from servers import free_port

SECOND = Settings(interval=1_000_000)
NEW = Advance(settings=SECOND, nonce="n", take=1)
CANARY = "canary-7Hq2"
MINE: Final = "from pg_stat_activity where datname = current_database() and application_name = 'intervalq'"


class TestPostgresStore(StoreSuite):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestThroughPgBouncer(StoreSuite):
    @pytest.fixture
    def store_url(self, pgbouncer_url: str) -> str:
        return pgbouncer_url

    def test_an_end_of_a_hold_wakes_every_listener(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str]
    ) -> None:
        """LISTEN can't work through a pooler: whoever listens hears nothing, and may still ask."""
        name = queue()

        async def scenario() -> None:
            assert isinstance(store, Waking)
            await store.apply(name, NEW)
            await store.apply(name, Hold())
            async with store.wakeups(name) as one, store.wakeups(name) as two:
                assert (await store.apply(name, Resume())).woken
                for woken in (one, two):
                    with anyio.move_on_after(0) as scope:
                        await woken()
                    assert scope.cancelled_caught

        portal.call(scenario)

    def test_no_connection_of_the_pool_listens(
        self, portal: BlockingPortal, store: Store, queue: Callable[[], str], store_url: str
    ) -> None:
        self.test_an_end_of_a_hold_wakes_every_listener(portal, store, queue)
        with ExitStack() as open_transactions:  # as many at once as the pool has: each gets its own
            for _ in range(10):
                shared = open_transactions.enter_context(psycopg.connect(store_url, prepare_threshold=None))
                assert shared.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """A database without a schema, for tests that break something."""
    name = f"intervalq_{secrets.token_hex(6)}"
    _sql(postgres_url, f"create database {name}")
    yield urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    _sql(postgres_url, f"drop database {name} with (force)")


def _sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def _with(url: str, *options: str) -> str:
    return f"{url}?options={quote(' '.join(f'-c {option}' for option in options))}"


async def _caught(call: Awaitable[object]) -> BaseException:
    with pytest.raises(errors.IntervalqError) as caught:
        await call
    return caught.value


async def _until_one_waits_for_a_lock(url: str) -> None:
    while not _sql(url, f"select 1 {MINE} and wait_event_type = 'Lock'"):
        await anyio.lowlevel.checkpoint()


async def _for_ever(waiting: Callable[[], Awaitable[None]]) -> None:
    while True:
        await waiting()


# --- the schema -------------------------------------------------------------------------------------


async def test_many_make_the_schema_at_the_same_moment(url: str) -> None:
    tickets: list[int] = []

    async def begin() -> None:
        async with aclosing(PostgresStore(url)) as store:
            tickets.extend(slot.ticket for slot in (await store.apply("q", NEW)).taken)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(begin)
    assert sorted(tickets) == list(range(1, 9))
    assert _sql(url, "select number from intervalq.version") == [(SCHEMA,)]


async def test_a_newer_schema_is_refused_with_both_versions(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
        _sql(url, "update intervalq.version set number = 7")
        await store.aclose()
        with pytest.raises(errors.VersionMismatch, match=f"version 7.* version {SCHEMA}: upgrade"):
            await store.apply("q", NEW)
        assert "error" in dict(await store.advice())
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="newer"):
        connection.execute(postgres_queues._FILE.read_bytes())
    assert _sql(url, "select number from intervalq.version") == [(7,)]


MISSING = {
    "update intervalq.version set number = 0": ["q"],
    "drop function intervalq.names": ["q"],
    "drop schema intervalq cascade": [],
}


@pytest.mark.parametrize("harm", MISSING)
async def test_what_is_missing_in_the_schema_is_made_again(url: str, harm: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        _sql(url, harm)
        if "version" in harm:
            await store.aclose()
        assert await store.names() == MISSING[harm]
    assert _sql(url, "select number from intervalq.version") == [(SCHEMA,)]


async def test_a_schema_that_another_makes_anew_meanwhile_is_not_made_once_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would change under all who work with it by then, and what they are doing would fail."""
    monkeypatch.setattr(postgres_queues, "_PATIENCE", 60.0)  # it waits here for as long as the test takes
    waits = "select pid from pg_stat_activity where wait_event = 'advisory' and datname = current_database()"
    type_of_answers = "select 'intervalq._answer'::regtype::oid"
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        _sql(url, "drop schema intervalq cascade")
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(b"begin")
            other.execute(postgres_connection._LOCK)
            async with anyio.create_task_group() as group:
                group.start_soon(store.apply, "q", NEW)
                while not _sql(url, waits):
                    await anyio.lowlevel.checkpoint()
                other.execute(postgres_queues._FILE.read_bytes())
                made = _sql(url, type_of_answers)
        assert _sql(url, type_of_answers) == made
        assert await store.names() == ["q"]


async def test_without_the_right_to_create_it_says_what_an_administrator_does(url: str) -> None:
    role = f"intervalq_{secrets.token_hex(6)}"
    _sql(url, f"create role {role} login password '{CANARY}'")
    theirs = f"postgresql://{role}:{CANARY}@{url.rpartition('@')[2]}"
    try:
        async with aclosing(PostgresStore(theirs)) as store:
            with pytest.raises(errors.Unauthorized, match=re.escape(str(postgres_queues._FILE))):
                await store.names()
            _sql(url, postgres_queues._FILE.read_text())
            assert isinstance(await _caught(store.names()), errors.Unauthorized)
            head = postgres_queues._FILE.read_text().split("begin;")[0].splitlines()
            for grant in (line.strip("- ;") for line in head if line.startswith("--   grant ")):
                _sql(url, grant.replace("some_role", role))
            assert (await store.apply("q", NEW)).count == 1
            assert await store.names() == ["q"]
    finally:
        _sql(url, f"drop owned by {role}; drop role {role}")


async def test_every_step_is_a_hot_update(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        for turn in range(300):
            await store.apply(f"q{turn % 3}", NEW)
        assert store._connection is not None
        await store._connection.execute("select pg_stat_force_next_flush()")
        counts = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'queues'"
        [(updates, hot)] = _sql(url, counts)
    assert updates == 297
    assert hot > 0.9 * updates


SCHEMA_1: Final = """
    create schema intervalq;
    create table intervalq.version (
        one boolean primary key default true check (one), number integer not null
    );
    create table intervalq.queues (
        name text collate "C" primary key, version integer not null, generation text not null,
        interval bigint not null, burst bigint not null, max_running bigint not null,
        tolerance bigint not null, ephemeral boolean not null, ticket bigint not null, due bigint not null,
        current bigint not null, at bigint not null, void bigint not null, held bigint not null,
        held_since bigint, held_until bigint not null, seen bigint not null, running bigint[] not null,
        leases bigint[] not null
    ) with (fillfactor = 50);
    create function intervalq.apply(queue text, command jsonb, now_override bigint) returns jsonb
        language sql return null::jsonb;
    create function intervalq._leases(running bigint[], leases bigint[]) returns jsonb
        language sql return null::jsonb;
    create function intervalq._shown(r intervalq.queues) returns jsonb
        language sql return jsonb_build_object('running', intervalq._leases(r.running, r.leases));
    insert into intervalq.version (number) values (1);
"""
"""Schema 1, with those of its functions that schema 2 doesn't have."""


async def test_a_schema_of_version_1_is_brought_up_and_its_records_are_raised(url: str) -> None:
    _sql(url, SCHEMA_1)
    row = {**layouts.LAYOUT_1, "running": [5, 6], "leases": [*layouts.LAYOUT_1["running"].values()]}
    with psycopg.connect(url) as connection:
        for queue in ("old", "same"):
            into = f"insert into intervalq.queues (name, {', '.join(row)}) values (%s{', %s' * len(row)})"
            connection.execute(into.encode(), [queue, *row.values()])

    async def begin() -> None:
        async with aclosing(PostgresStore(url)) as store:
            assert await store.names() == ["old", "same"]

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(begin)
    async with aclosing(PostgresStore(url)) as store:
        after = await layouts.is_raised(store, "old")
    [(found,)] = _sql(url, "select to_json(q) from intervalq.queues q where name = 'old'")
    leases = dict(zip(map(str, found.pop("running")), found.pop("leases"), strict=True))
    assert {**found, "running": leases} == {"name": "old", **after}
    assert _sql(url, "select version, late from intervalq.queues where name = 'same'") == [(1, 0)]
    assert _sql(url, "select number from intervalq.version") == [(SCHEMA,)]
    functions = "from pg_proc where pronamespace = 'intervalq'::regnamespace"
    assert _sql(url, f"select pronargs {functions} and proname in ('apply', '_shown', '_leases')") == [(4,)]


@pytest.mark.parametrize("call", [b"select intervalq.apply(%s, %s, %s) -- %s", postgres_queues._APPLY])
async def test_a_connected_client_of_an_older_version_is_told_to_upgrade(
    url: str, monkeypatch: pytest.MonkeyPatch, call: bytes
) -> None:
    """What it calls is undefined: nothing is done, and it looks at the version."""
    monkeypatch.setattr(postgres_queues, "_APPLY", call.replace(b"-- %s", b"where %s > 0"))
    monkeypatch.setattr(postgres_queues, "LAYOUT", rules.LAYOUT - 1)
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
        old = store._server.schema._replace(number=SCHEMA - 1)
        monkeypatch.setattr(store._server, "schema", old)
        with pytest.raises(errors.VersionMismatch, match=f"version {SCHEMA}.* version {SCHEMA - 1}: upgrade"):
            await store.apply("q", NEW)
        assert _sql(url, "select count(*) from intervalq.queues") == [(0,)]


# --- records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm",
    [
        *("current = ticket + 1", "generation = ''", "due = 9007199254740992", "version = 0", "version = 3"),
        *("late = -1", "error = -1", "error_until = 9007199254740992"),
        *("running = '{1}'", "running = '{-1}', leases = '{1}'", "running = '{1}', leases = '{null}'"),
    ],
)
async def test_a_record_that_is_not_ours_is_refused_and_left_as_it_is(url: str, harm: str) -> None:
    kind = errors.VersionMismatch if harm == "version = 3" else errors.CorruptState
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        _sql(url, f"update intervalq.queues set {harm}")
        before = _sql(url, "select q::text from intervalq.queues q")
        for command in (NEW, Inspect(), Finish(), Drop()):
            assert type(await _caught(store.apply("q", command))) is kind
        assert _sql(url, "select q::text from intervalq.queues q") == before
        assert (await store.apply("other", NEW)).count == 1


async def test_numbers_that_no_record_holds_are_not_written(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        before = await store.apply("q", NEW, 1_000)
        for huge in (2**53, 2**63, 2**70):
            assert isinstance(await _caught(store.apply("q", Configure(interval=huge))), errors.CorruptState)
        assert await store.apply("q", Inspect(), 1_000) == rules.apply(before.state, Inspect(), 1_000)[1]


async def test_a_command_of_a_newer_version_is_refused(url: str) -> None:
    class Dance(Command):
        pass

    async with aclosing(PostgresStore(url)) as store:
        with pytest.raises(errors.VersionMismatch):
            await store.apply("q", Dance(settings=SECOND, nonce="n"))
        assert await store.names() == []


async def test_a_new_record_makes_room_by_removing_idle_ones_that_are_ephemeral(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        for number in range(40):
            keyed = Settings(interval=1_000_000, ephemeral=number % 2 == 0, max_running=1)
            take = Advance(settings=keyed, nonce="n", take=1, reach=10, lease=1_000)
            await store.apply(f"q:{number}", take, 5_000_000)
        for _ in range(60):  # each looks at one page of the table, at random
            await store.apply("new", NEW)
            await store.apply("new", Drop())
        assert set(await store.names()) == {f"q:{number}" for number in range(1, 40, 2)}


# --- faults -----------------------------------------------------------------------------------------


async def test_a_connection_that_is_ended_in_the_middle_is_unavailable_once(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        with psycopg.connect(url) as other:
            other.execute("select 1 from intervalq.queues for update")
            step = asyncio.create_task(store.apply("q", NEW))
            await _until_one_waits_for_a_lock(url)
            assert _sql(url, f"select pg_terminate_backend(pid) {MINE}") == [(True,)]
            assert type(await _caught(step)) is errors.StoreUnavailable
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
        async with aclosing(PostgresStore(_with(url, "statement_timeout=50"))) as store:
            assert type(await _caught(store.apply("q", NEW))) is errors.StoreTimeout
        async with aclosing(PostgresStore(_with(url, "default_transaction_read_only=on"))) as store:
            assert type(await _caught(store.apply("q", NEW))) is errors.StoreReadOnly


async def test_a_step_that_was_rolled_back_for_another_is_done_again(url: str) -> None:
    async with aclosing(PostgresStore(_with(url, "default_transaction_isolation=serializable"))) as store:
        await store.apply("q", NEW)
        with psycopg.connect(url) as other:
            other.execute("update intervalq.queues set ticket = 41")
            step = asyncio.create_task(store.apply("q", NEW))
            await _until_one_waits_for_a_lock(url)
        assert [slot.ticket for slot in (await step).taken] == [42]


async def test_steps_wait_for_each_other_and_only_then_read_the_clock(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
        for ticket in (2, 4):  # the record is being made; it is there
            with psycopg.connect(url) as other:
                other.execute("select intervalq.apply('q', %s, null, 2)", [json.dumps(NEW.to_dict())])
                step = asyncio.create_task(store.apply("q", NEW))
                await _until_one_waits_for_a_lock(url)
                [(waited,)] = _sql(url, "select extract(epoch from clock_timestamp()) * 1000000")
            assert [slot.ticket for slot in (await step).taken] == [ticket]
            assert (await step).now > waited


async def test_nobody_there_and_nobody_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for call in (PostgresStore.names, PostgresStore.advice):
        store = PostgresStore(f"postgresql://somebody@127.0.0.1:{free_port()}/db")
        assert type(await _caught(call(store))) is errors.StoreUnavailable
    monkeypatch.setattr(postgres_queues, "_PATIENCE", 0.05)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as silent:
        port = silent.extra(anyio.abc.SocketAttribute.local_port)
        store = PostgresStore(f"postgresql://somebody@127.0.0.1:{port}/db")
        assert type(await _caught(store.names())) is errors.StoreTimeout


async def test_secrets_are_never_shown(url: str) -> None:
    place = url.rpartition("@")[2]
    for wrong in (f"nobody-there:{CANARY}@{place}", f"postgres:{CANARY}@127.0.0.1:{free_port()}/x"):
        store = PostgresStore(f"postgresql://{wrong}?application_name={CANARY}")
        shown = traceback.format_exception(await _caught(store.names()))
        assert CANARY not in f"{store!r} {store.url} {shown}"
    for broken in (
        f"u:12/{CANARY}@{place}",
        f"u:x/{CANARY}@{place}",
        f"u@{place}?{CANARY}=1",
        f"u@h:{CANARY}",
    ):
        with pytest.raises(errors.InvalidOption) as caught:
            PostgresStore(f"postgresql://{broken}")
        assert CANARY not in "".join(traceback.format_exception(caught.value))


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
            _sql(url, f"select pg_terminate_backend(pid) {MINE} and query like 'listen%'")
            for waiting in (woken, other):
                assert type(await _caught(_for_ever(waiting))) is errors.StoreUnavailable


async def test_advice_names_what_is_wrong(
    url: str, pgbouncer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(at: str) -> list[str]:
        async with aclosing(PostgresStore(at)) as store:
            bad = [said for level, said in await store.advice() if level != "ok"]
            return [said for said in bad if "is a superuser" not in said]  # as it is in tests

    assert await wrong(url) == []
    bad = _with(url, "synchronous_commit=off", "default_transaction_isolation=serializable")
    starts = [said.split(":")[0] for said in await wrong(bad)]
    assert starts == ["synchronous_commit is off", "transactions are serializable"]
    assert "pooler" in " ".join(await wrong(pgbouncer_url))
    monkeypatch.setattr(postgres_queues, "_OLD", -1.0)
    assert "has been open" in " ".join(await wrong(url))
