"""What a PostgreSQL or a PgBouncer may do to an active queue, and what the queue's callers see of it."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import servers
from faults.work import stands_still, working
from intervalq import errors
from intervalq.rules import Advance, Hold, Settings
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.postgres._schema import statements
from intervalq_stores.postgres.queues import PostgresStore
from servers import Server
from small_disks import mounted
from stores import postgres_sessions

url = postgres_sessions.url

MINE = "from pg_stat_activity where datname = current_database() and application_name = 'intervalq'"
TAKE = Advance(settings=Settings(interval=1_000_000), nonce="n", take=1)


def sql(url: str, *statements: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute("select")
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def lost(work: Any) -> list[int]:
    return [handle._shard().regressions for handle in work.handles]


# --- what a queue works through ---------------------------------------------------------------------


async def test_backends_are_ended_all_the_time(url: str) -> None:
    async with working([url] * 2) as work:
        for turn in range(10):
            function = "pg_cancel_backend" if turn % 2 else "pg_terminate_backend"
            sql(url, f"select {function}(pid) {MINE}")
            await work.more(1)
        await work.stop()
        work.check()
        assert lost(work) == [0, 0]


async def test_the_table_is_dropped_and_made_anew(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with working([url] * 2) as work:
        for times, harm in enumerate(("drop schema intervalq cascade", "delete from intervalq.queues"), 1):
            sql(url, harm)
            while lost(work) != [times, times]:
                await work.more(1)
        await work.stop()
        work.check(losses=2)
    assert caplog.text.count("was lost or dropped") == 4


async def test_the_function_is_dropped_and_made_again(url: str) -> None:
    async with working([url] * 2) as work:
        sql(url, "drop function intervalq.apply")
        await work.more(3)
        await work.stop()
        work.check()
        assert lost(work) == [0, 0]


async def test_an_older_state_is_put_in_its_place(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """As in a failover to a replica that lags behind, counters never go back, and the loss is reported."""
    async with working([url] * 2) as work:
        sql(url, "create table backup as select * from intervalq.queues")
        await work.more(5)
        before = max(start.ticket for start in work.starts)
        sql(
            url,
            "begin; delete from intervalq.queues; insert into intervalq.queues select * from backup; commit",
        )
        await work.more(5)
        await work.stop()
        work.check(losses=1, healed=True)
        assert max(start.ticket for start in work.starts) > before
    assert "the store lost writes that it had acknowledged" in caplog.text


async def test_the_server_is_killed_and_comes_back_and_is_a_standby_for_a_while(
    own_postgres: Callable[..., Server],
) -> None:
    """Nothing is lost, and no job begins while the server is unreachable or read-only."""
    server = own_postgres()
    async with working([server.url] * 2) as work:
        server.stop()
        await stands_still(work)
        server.start()
        await work.more(2)
        server.stop()
        (server.folder.path / "data" / "standby.signal").touch()
        server.start()
        await stands_still(work)
        async with aclosing(PostgresStore(server.url)) as store:
            with pytest.raises(errors.StoreReadOnly):
                await store.apply(work.name, Hold(length=0))
            assert "error" in dict(await store.advice())
        sql(server.url, "select pg_promote()")
        await work.more(2)
        await work.stop()
        work.check()
        assert lost(work) == [0, 0]


# --- what a queue waits for -------------------------------------------------------------------------


@contextmanager
def database(url: str, setting: str, back: str) -> Iterator[None]:
    """Break the database of `url` for all who are connected; this is done from another database."""
    parts = urlsplit(url)
    name, outside = parts.path[1:], urlunsplit(parts._replace(path="/postgres"))
    ended = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    sql(outside, f"alter database {name} {setting}", ended)
    try:
        yield
    finally:
        sql(outside, f"alter database {name} {back}", ended)


@contextmanager
def locked(url: str, *before: str) -> Iterator[None]:
    """Lock the records."""
    sql(url, *before)
    with psycopg.connect(url, options="-c statement_timeout=0") as other:
        other.execute("select 1 from intervalq.queues for update")
        yield


@contextmanager
def impatient(url: str) -> Iterator[None]:
    """Lock the records, with a time limit for statements."""
    with database(url, "set statement_timeout = '50ms'", "reset statement_timeout"), locked(url):
        yield


TROUBLE: dict[str, tuple[Callable[[str], AbstractContextManager[None]], type[errors.StoreError]]] = {
    "it is read-only": (
        lambda url: database(
            url, "set default_transaction_read_only = on", "reset default_transaction_read_only"
        ),
        errors.StoreReadOnly,
    ),
    "it lets nobody in": (
        lambda url: database(url, "allow_connections false", "allow_connections true"),
        errors.StoreUnavailable,
    ),
    "a lock is held for too long": (
        lambda url: locked(url, "alter function intervalq.apply set lock_timeout = '50ms'"),
        errors.StoreTimeout,
    ),
    "statements are cut off": (impatient, errors.StoreTimeout),
}


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_calls_wait_while_it_lasts_and_go_on_after(url: str, trouble: str) -> None:
    begin, kind = TROUBLE[trouble]
    async with working([url] * 2) as work:
        with begin(url):
            await stands_still(work)
            async with aclosing(PostgresStore(url)) as store:
                with pytest.raises(errors.StoreError) as raised:
                    await store.apply(work.name, Hold(length=0))
                assert type(raised.value) is kind
        await work.more(2)
        await work.stop()
        work.check()
        assert lost(work) == [0, 0]


async def test_a_role_may_have_no_more_connections(url: str) -> None:
    role, parts = f"intervalq_{secrets.token_hex(6)}", urlsplit(url)
    sql(url, f"create role {role} login", f"grant create on database {parts.path[1:]} to {role}")
    theirs = urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
    try:
        async with working([theirs] * 2) as work:
            sql(url, f"alter role {role} connection limit 0", f"select pg_terminate_backend(pid) {MINE}")
            await stands_still(work)
            sql(url, f"alter role {role} connection limit -1")
            await work.more(2)
            await work.stop()
            work.check()
            assert lost(work) == [0, 0]
    finally:
        sql(url, f"drop owned by {role}", f"drop role {role}")


async def test_the_pool_of_a_pooler_is_in_use(pgbouncer_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits for a connection of the pool doesn't wait for ever."""
    async with working([pgbouncer_url] * 2) as work:
        with ExitStack() as open_transactions:  # as many as the pool has
            for _ in range(10):
                other = open_transactions.enter_context(
                    psycopg.connect(pgbouncer_url, prepare_threshold=None)
                )
                other.execute("select 1")
            monkeypatch.setattr(postgres_queues, "_PATIENCE", 0.1)
            await stands_still(work)
            monkeypatch.undo()
        await work.more(2)
        await work.stop()
        work.check()
        assert lost(work) == [0, 0]
        await work.handles[0].drop()


# --- what the server says ---------------------------------------------------------------------------

PLANTED = """
create sequence attempts;
create or replace function intervalq.apply(queue text, command jsonb, now_override bigint, layout integer)
returns json
language plpgsql as $$
begin
    perform nextval('public.attempts');
    raise exception 'planted' using errcode = '{}';
end $$
"""

SAYS: dict[str, tuple[type[errors.StoreError], int]] = {
    "40001": (errors.StoreUnavailable, 6),  # rolled back in favour of another one: repeated, but not for ever
    "40P01": (errors.StoreUnavailable, 6),
    "22003": (errors.CorruptState, 1),
    "25006": (errors.StoreReadOnly, 1),
    "42501": (errors.Unauthorized, 1),
    "53100": (errors.StoreFull, 1),
    "53200": (errors.StoreUnavailable, 1),
    "53300": (errors.StoreUnavailable, 1),
    "55P03": (errors.StoreTimeout, 1),
    "57014": (errors.StoreTimeout, 1),
    "57P01": (errors.StoreUnavailable, 1),
    "IQ001": (errors.CorruptState, 1),
    "IQ002": (errors.VersionMismatch, 1),
    "XX000": (errors.StoreUnavailable, 1),
}


@pytest.mark.parametrize("code", SAYS)
async def test_each_error_has_its_name_and_is_tried_again_only_where_nothing_was_done(
    url: str, code: str
) -> None:
    kind, attempts = SAYS[code]
    sql(url, statements("queues"), PLANTED.format(code))
    async with aclosing(PostgresStore(url)) as store:
        with pytest.raises(errors.StoreError) as raised:
            await store.apply("q", TAKE)
        assert type(raised.value) is kind
    assert sql(url, "select last_value from attempts") == [(attempts,)]


@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_what_was_rolled_back_a_few_times_is_done_in_the_end(url: str, code: str) -> None:
    """The real function is behind the planted one, which lets the fourth attempt through."""
    real = statements("queues")
    sql(url, real, "alter function intervalq.apply rename to really")
    planted = (
        PLANTED.format(code)
        .replace("perform nextval", "if nextval")
        .replace(
            "('public.attempts');",
            "('public.attempts') > 3 then return intervalq.really($1, $2, $3, $4); end if;",
        )
    )
    sql(url, planted)
    async with aclosing(PostgresStore(url)) as store:
        assert [slot.ticket for slot in (await store.apply("q", TAKE)).taken] == [1]
    assert sql(url, "select last_value from attempts") == [(4,)]


# --- a real full disk -------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="intervalq-disk-"))  # other users can't read those of pytest
    user = servers.unprivileged()
    try:
        with mounted(folder, "256k", user=user.pw_uid if user else 0) as disk:
            yield disk
    finally:
        folder.rmdir()


async def test_a_full_disk_leaves_the_old_state_whole(
    own_postgres: Callable[..., Server], small_disk: Path
) -> None:
    server = own_postgres()
    async with aclosing(PostgresStore(server.url)) as store:
        await store.apply("old", TAKE)
        sql(
            server.url,
            f"create tablespace small location '{small_disk}'",
            "alter table intervalq.queues set tablespace small",
        )
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        with suppress(errors.StoreFull):  # at some point
            for number in range(1_000):
                await store.apply(f"new-{number}", TAKE)
        names = await store.names()
        before = sql(server.url, "select q::text from intervalq.queues q order by name")
        with pytest.raises(errors.StoreFull):
            await store.apply("x" * 100, TAKE)
        assert sql(server.url, "select q::text from intervalq.queues q order by name") == before
        filler.unlink()
        assert [slot.ticket for slot in (await store.apply("old", TAKE)).taken] == [2]
        assert [slot.ticket for slot in (await store.apply("x" * 100, TAKE)).taken] == [1]
        assert set(await store.names()) == {*names, "x" * 100}
