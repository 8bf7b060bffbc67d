"""The schema of queues on Postgres: created once, upgraded, refused if newer; and the rights it needs."""

from __future__ import annotations

import secrets
from contextlib import aclosing
from typing import Final

import anyio
import anyio.lowlevel
import psycopg
import pytest

import layouts
from intervalq import errors, rules
from intervalq.rules import Advance, Settings
from intervalq_stores.postgres import _connection as postgres_connection
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.postgres._schema import statements
from intervalq_stores.postgres.queues import SCHEMA, PostgresStore
from stores import postgres_sessions
from stores.postgres_sessions import CANARY, caught, sql

SECOND = Settings(interval=1_000_000)
NEW = Advance(settings=SECOND, nonce="n", take=1)

url = postgres_sessions.url


async def test_many_make_the_schema_at_the_same_moment(url: str) -> None:
    tickets: list[int] = []

    async def begin() -> None:
        async with aclosing(PostgresStore(url)) as store:
            tickets.extend(slot.ticket for slot in (await store.apply("q", NEW)).taken)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(begin)
    assert sorted(tickets) == list(range(1, 9))
    assert sql(url, "select number from intervalq.version") == [(SCHEMA,)]


async def test_a_newer_schema_is_refused_with_both_versions(url: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
        sql(url, f"update intervalq.version set number = {SCHEMA + 1}")
        await store.aclose()
        with pytest.raises(errors.VersionMismatch, match=f"version {SCHEMA + 1}.* version {SCHEMA}: upgrade"):
            await store.apply("q", NEW)
        assert "error" in dict(await store.advice())
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="newer"):
        connection.execute(statements("queues").encode())
    assert sql(url, "select number from intervalq.version") == [(SCHEMA + 1,)]


MISSING = {
    "update intervalq.version set number = 0": ["q"],
    "drop function intervalq.names": ["q"],
    "drop schema intervalq cascade": [],
}


@pytest.mark.parametrize("harm", MISSING)
async def test_what_is_missing_in_the_schema_is_made_again(url: str, harm: str) -> None:
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        sql(url, harm)
        if "version" in harm:
            await store.aclose()
        assert await store.names() == MISSING[harm]
    assert sql(url, "select number from intervalq.version") == [(SCHEMA,)]


async def test_a_schema_that_another_makes_anew_meanwhile_is_not_made_once_more(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would change under all clients that already use it, and their statements would fail."""
    monkeypatch.setattr(postgres_queues, "_PATIENCE", 60.0)  # it waits here for as long as the test takes
    waits = "select pid from pg_stat_activity where wait_event = 'advisory' and datname = current_database()"
    type_of_answers = "select 'intervalq._answer'::regtype::oid"
    async with aclosing(PostgresStore(url)) as store:
        await store.apply("q", NEW)
        sql(url, "drop schema intervalq cascade")
        with psycopg.connect(url, autocommit=True) as other:
            other.execute(b"begin")
            other.execute(postgres_connection._LOCK)
            async with anyio.create_task_group() as group:
                group.start_soon(store.apply, "q", NEW)
                while not sql(url, waits):
                    await anyio.lowlevel.checkpoint()
                other.execute(statements("queues").encode())
                made = sql(url, type_of_answers)
        assert sql(url, type_of_answers) == made
        assert await store.names() == ["q"]


async def test_without_the_right_to_create_it_says_what_an_administrator_does(url: str) -> None:
    role = f"intervalq_{secrets.token_hex(6)}"
    sql(url, f"create role {role} login password '{CANARY}'")
    theirs = f"postgresql://{role}:{CANARY}@{url.rpartition('@')[2]}"
    try:
        async with aclosing(PostgresStore(theirs)) as store:
            with pytest.raises(errors.Unauthorized, match=r"postgres.queues\.sql"):
                await store.names()
            sql(url, statements("queues"))
            assert isinstance(await caught(store.names()), errors.Unauthorized)
            head = statements("queues").split("begin;")[0].splitlines()
            for grant in (line.strip("- ;") for line in head if line.startswith("--   grant ")):
                sql(url, grant.replace("some_role", role))
            assert (await store.apply("q", NEW)).count == 1
            assert await store.names() == ["q"]
    finally:
        sql(url, f"drop owned by {role}; drop role {role}")


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
    sql(url, SCHEMA_1)
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
    [(found,)] = sql(url, "select to_json(q) from intervalq.queues q where name = 'old'")
    leases = dict(zip(map(str, found.pop("running")), found.pop("leases"), strict=True))
    assert {**found, "running": leases} == {
        "name": "old",
        "limits": None,
        "stepped": None,
        "auto": None,
        "weight": None,
        **after,
    }
    assert sql(url, "select version, late_total from intervalq.queues where name = 'same'") == [(1, 0)]
    assert sql(url, "select number from intervalq.version") == [(SCHEMA,)]
    functions = "from pg_proc where pronamespace = 'intervalq'::regnamespace"
    assert sql(url, f"select pronargs {functions} and proname in ('apply', '_shown', '_leases')") == [(4,)]


@pytest.mark.parametrize("call", [b"select intervalq.apply(%s, %s, %s) -- %s", postgres_queues._APPLY])
async def test_a_connected_client_of_an_older_version_is_told_to_upgrade(
    url: str, monkeypatch: pytest.MonkeyPatch, call: bytes
) -> None:
    """The function that it calls doesn't exist: nothing is done, and the client checks the version."""
    monkeypatch.setattr(postgres_queues, "_APPLY", call.replace(b"-- %s", b"where %s > 0"))
    monkeypatch.setattr(postgres_queues, "LAYOUT", rules.LAYOUT - 1)
    async with aclosing(PostgresStore(url)) as store:
        await store.names()
        old = store._server.schema._replace(number=SCHEMA - 1)
        monkeypatch.setattr(store._server, "schema", old)
        with pytest.raises(errors.VersionMismatch, match=f"version {SCHEMA}.* version {SCHEMA - 1}: upgrade"):
            await store.apply("q", NEW)
        assert sql(url, "select count(*) from intervalq.queues") == [(0,)]
