from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final
from urllib.parse import quote

import anyio
import anyio.lowlevel
import psycopg
import pytest
import trio

from intervalq import errors
from intervalq.errors import UnsupportedOperation
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Begin,
    Change,
    Count,
    Delete,
    End,
    Finished,
    Insert,
    Modify,
    Row,
    Select,
    Session,
    Sessions,
    Work,
)
from intervalq.tasks.store import Guarding, Ranging, Transactional, Waking, Watched
from intervalq.testing import RangingTaskSuite, TaskSuite, TransactionalTaskSuite, WakingTaskSuite
from intervalq_stores.postgres import tasks as postgres_tasks
from intervalq_stores.postgres._task_statements import uuid_of
from intervalq_stores.postgres.tasks import SCHEMA, PostgresTaskStore
from servers import Server, free_port

CANARY: Final = "canary-7Hq2"
ME: Final = "from pg_stat_activity where datname = current_database() and application_name = 'intervalq'"


class TestPostgresTaskStore(TaskSuite, TransactionalTaskSuite, WakingTaskSuite, RangingTaskSuite):
    @pytest.fixture
    def store_url(self, postgres_url: str) -> str:
        return postgres_url


class TestThroughPgBouncer(TaskSuite, TransactionalTaskSuite, RangingTaskSuite):
    left_out = (WakingTaskSuite,)  # no wake-up comes through a pooler

    @pytest.fixture
    def store_url(self, pgbouncer_url: str) -> str:
        return pgbouncer_url


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(empty_postgres_url: str) -> str:
    return empty_postgres_url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresTaskStore]:
    async with aclosing(PostgresTaskStore(url)) as store:
        await store.apply(Sessions())
        yield store


def _sql(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


def _with(url: str, *options: str) -> str:
    return f"{url}?options={quote(' '.join(f'-c {option}' for option in options))}"


async def _caught(call: Awaitable[object]) -> BaseException:
    with pytest.raises(errors.IntervalqError) as caught:
        await call
    return caught.value


async def _begun(store: PostgresTaskStore, *sessions: str, expiry: int = 3600 * SECOND) -> None:
    for session in sessions:
        await store.apply(Begin(Session(session, "host", 7, expiry=expiry)))


async def _claim(store: PostgresTaskStore, session: str, limit: int = 1, **more: Any) -> tuple[Row, ...]:
    return (await store.apply(Work(session, queues=("q",), limit=limit, begins=2, **more))).claimed


def _inserts(*ids: str, **more: Any) -> Modify:
    return Modify(inserts=tuple(Insert("q", f'"{id_}"', id_, **more) for id_ in ids))


async def _once(watch: Callable[[float], Awaitable[Watched]]) -> Watched:
    return await watch(3600)


async def _for_ever(watch: Callable[[float], Awaitable[object]]) -> None:
    while True:
        await watch(0)
        await anyio.lowlevel.checkpoint()


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


def test_it_is_all_that_a_store_of_tasks_can_be(url: str) -> None:
    store = PostgresTaskStore(url)
    for protocol in (Transactional, Waking, Guarding, Ranging):
        assert isinstance(store, protocol)


# --- the schema -------------------------------------------------------------------------------------


async def test_many_make_the_schema_at_the_same_moment(url: str) -> None:
    async def begin(number: int) -> None:
        async with aclosing(PostgresTaskStore(url)) as store:
            await store.apply(_inserts(f"t{number}"))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(begin, number)
    assert _sql(url, "select number from intervalq.tasks_version") == [(SCHEMA,)]
    assert _sql(url, "select count(*) from intervalq.tasks") == [(8,)]


async def test_a_newer_schema_is_refused_with_both_versions(url: str, store: PostgresTaskStore) -> None:
    _sql(url, "update intervalq.tasks_version set number = 7")
    await store.aclose()
    with pytest.raises(errors.VersionMismatch, match=f"version 7.* version {SCHEMA}: upgrade"):
        await store.apply(Count())
    assert "error" in dict(await store.advice())
    with psycopg.connect(url) as connection, pytest.raises(psycopg.Error, match="newer"):
        connection.execute(postgres_tasks._FILE.read_bytes())


async def test_what_is_missing_in_the_schema_is_made_again(url: str, store: PostgresTaskStore) -> None:
    await store.apply(_inserts("t"))
    _sql(url, "drop function intervalq.stats")
    assert [stats.size for stats in await store.apply(Count())] == [1]
    _sql(url, "drop schema intervalq cascade")
    assert await store.apply(Count()) == ()


async def test_statements_are_prepared_on_the_server_s_own_connections(url: str, pgbouncer_url: str) -> None:
    for server, prepared in ((url, {True}), (pgbouncer_url, {False})):
        async with aclosing(PostgresTaskStore(server)) as store:
            session = f"s-{secrets.token_hex(6)}"
            await _begun(store, session)
            for _ in range(3):
                await _claim(store, session)
            [connection] = store._idle
            asked = (
                b"select count(*) > 0 from pg_prepared_statements where statement like '%intervalq.work(%'"
            )
            assert {row[0] async for row in await connection.execute(asked)} == prepared
            await store.apply(End(session))


async def test_a_newer_schema_is_refused_where_statements_were_prepared(
    url: str, store: PostgresTaskStore
) -> None:
    """The server says first that what they call gives rows of another type."""
    for _ in range(3):
        assert await store.apply(Sessions()) == ()
    _sql(url, "update intervalq.tasks_version set number = 7")
    _sql(url, "drop function intervalq.live_sessions")
    _sql(url, "create function intervalq.live_sessions(out a int) language sql return 1")
    with pytest.raises(errors.VersionMismatch, match="version 7"):
        await store.apply(Sessions())


async def test_without_the_right_to_create_it_says_what_an_administrator_does(url: str) -> None:
    role = f"intervalq_{secrets.token_hex(6)}"
    _sql(url, f"create role {role} login password '{CANARY}'")
    theirs = f"postgresql://{role}:{CANARY}@{url.rpartition('@')[2]}"
    try:
        async with aclosing(PostgresTaskStore(theirs)) as store:
            with pytest.raises(errors.Unauthorized, match=r"postgres.tasks\.sql"):
                await store.apply(Count())
            _sql(url, postgres_tasks._FILE.read_text())
            assert isinstance(await _caught(store.apply(Count())), errors.Unauthorized)
            head = postgres_tasks._FILE.read_text().split("begin;")[0].splitlines()
            for grant in (line.strip("- ;") for line in head if line.startswith("--   grant ")):
                _sql(url, grant.replace("some_role", role))
            await _begun(store, "s", "other")
            await store.apply(_inserts("t", "u", key="k", dedupe="d"))
            await store.apply(_inserts(uuid_of("v")[:14] + "4" + uuid_of("v")[15:]))
            await store.put("q", ["1", "2"])
            work = Work("s", queues=("q",), limit=10, idle=True)
            worked = await store.apply(work)
            await store.apply(Work("s", finished=tuple(Finished(one) for one, _ in worked.ranges)))
            await store.apply(work)
            await store.apply(work)
            async with store.wakeups("s"), store.guard("s") as guard:
                assert not (await guard(0)).removed
            await store.apply(Beat("other"))
            await store.apply(End("s"))
            assert {row.id for row in await store.apply(Select())} >= {"t"}
    finally:
        _sql(url, f"drop owned by {role}; drop role {role}")


# --- ids --------------------------------------------------------------------------------------------


async def test_client_and_server_make_the_same_uuid_of_an_id(url: str, store: PostgresTaskStore) -> None:
    uuids = ["0190a5c2-1111-7abc-8def-000000000000", "0190a5c2-1111-8abc-8def-000000000000"]
    for id_ in ("", "t", "ü", uuids[0], uuids[1], uuids[0].upper(), uuids[0] + "\n", "a" * 300):
        assert str(_sql(url, "select intervalq._id(%s)", id_)[0][0]) == uuid_of(id_), id_
    assert uuid_of(uuids[0]) == uuids[0]
    assert uuid_of(uuids[1]) != uuids[1]  # what may be the hash of another id is hashed itself


async def test_texts_that_the_server_cannot_hold_are_refused(store: PostgresTaskStore) -> None:
    id_ = "0190a5c2-1111-7abc-8def-000000000000"
    for bad in ("a\0b", "a\ud800b"):
        for insert in (Insert(bad, "1", id_), Insert("q", "1", bad), Insert("q", "1", id_, error=bad)):
            assert isinstance(await _caught(store.apply(Modify(inserts=(insert,)))), errors.StoreError)
        assert isinstance(await _caught(store.apply(Work("s", queues=(bad,), limit=1))), errors.StoreError)
    assert isinstance(
        await _caught(store.apply(Modify(deletes=(Delete(id_, 2**31),)))), errors.DependencyError
    )
    assert await store.apply(Select()) == ()


# --- sessions ---------------------------------------------------------------------------------------


async def test_a_beat_waits_for_nobody_and_frees_what_was_locked_later(
    url: str, store: PostgresTaskStore
) -> None:
    await _begun(store, "lost", expiry=1)
    await _begun(store, "s")
    await store.apply(_inserts("a", "b"))
    assert len(await _claim(store, "lost", 2)) == 2
    with psycopg.connect(_with(url, "lock_timeout=1")) as other:
        other.execute("select from intervalq.tasks where own = 'a' for update")
        assert (await store.apply(Beat("s"))).lapsed == ("lost",)
        assert {row.id: row.session is None for row in await store.apply(Select())} == {"a": False, "b": True}
    assert (await store.apply(Beat("s"))).lapsed == ()
    assert {row.id: (row.version, row.error) for row in await store.apply(Select())} == dict.fromkeys(
        "ab", (2, "host:7 was lost")
    )
    assert _sql(url, "select id from intervalq.sessions order by id") == [("s",)]


async def test_claims_made_while_their_session_is_removed_are_freed(
    url: str, store: PostgresTaskStore
) -> None:
    await _begun(store, "lost", expiry=1)
    await _begun(store, "s")
    await store.apply(_inserts("a"))
    async with store.transaction("read committed") as slow:
        assert len((await slow.apply(Work("lost", queues=("q",), limit=1, begins=1))).claimed) == 1
        assert (await store.apply(Beat("s"))).lapsed == ("lost",)
        await store.apply(Beat("s"))
        assert _sql(url, "select count(*) from intervalq.sessions") == [(2,)]
    await store.apply(Beat("s"))
    assert [(row.session, row.attempt) for row in await store.apply(Select())] == [(None, 1)]
    assert _sql(url, "select count(*) from intervalq.sessions") == [(1,)]


async def test_a_claim_is_settled_at_its_version_only(store: PostgresTaskStore) -> None:
    await _begun(store, "s")
    await store.apply(_inserts("a", "b"))
    rows = await _claim(store, "s", 2)
    await store.apply(Modify("s", changes=(Change("a", 1, keep=True),)))
    settled = tuple(Delete(row.id, row.version) for row in rows)
    assert (await store.apply(Work("s", settled=settled))).lost == ("a",)
    assert [(row.id, row.version) for row in await store.apply(Select())] == [("a", 2)]


async def test_a_dead_process_is_seen_by_the_next_of_the_ring(url: str, store: PostgresTaskStore) -> None:
    names = ["a", "b", "c", "d"]
    await _begun(store, *names)
    await store.apply(_inserts("t"))
    assert len(await _claim(store, "c")) == 1
    async with AsyncExitStack() as guards:
        watches = {name: await guards.enter_async_context(store.guard(name)) for name in names}
        seen = [await watches[name](0) for name in names]
        assert seen == [Watched(removed=False, is_idle=name != "b") for name in names]
        for name in "bc":
            line = store._direct._lines[name].connection.info.backend_pid
            assert _sql(url, "select pg_terminate_backend(%s, 5000)", line) == [(True,)]
        assert not (await watches["d"](0)).removed
        assert (await watches["a"](0)).removed
        assert [session.id for session in await store.apply(Sessions())] == ["a", "d"]
        [row] = await store.apply(Select())
        assert (row.session, row.version, row.error) == (None, 2, "host:7 was lost")
        assert not (await watches["a"](0)).removed
        assert type(await _caught(_for_ever(watches["b"]))) is errors.StoreUnavailable
    assert [session.id for session in await store.apply(Sessions())] == ["a", "d"]


async def test_a_watch_ends_its_pause_with_a_beat_that_has_looked(store: PostgresTaskStore) -> None:
    """Else a neighbour that has begun to work is looked at as rarely as one that does nothing."""
    await _begun(store, "a", "b")
    await store.apply(_inserts("t"))
    async with store.guard("a") as watch, store.guard("b"), asyncio.TaskGroup() as group:
        watching = group.create_task(_once(watch))
        await anyio.lowlevel.checkpoint()
        assert len(await _claim(store, "b")) == 1
        await store.apply(Beat("b"))
        assert not watching.done()
        await store.apply(Beat("a"))
        assert await watching == Watched(removed=False, is_idle=False)


async def test_a_guard_that_leaves_and_one_that_never_was_are_not_taken_for_dead(
    store: PostgresTaskStore,
) -> None:
    await _begun(store, "a", "b", "c")
    async with store.guard("a") as watch:
        async with store.guard("b"), store.wakeups("b"):
            assert not (await watch(0)).removed
        assert not (await watch(0)).removed
        assert len(await store.apply(Sessions())) == 3


async def test_after_a_restart_nobody_is_judged_by_a_lock_of_before(
    own_postgres: Callable[..., Server],
) -> None:
    server = own_postgres()
    async with aclosing(PostgresTaskStore(server.url)) as store:
        await _begun(store, "a", "b")
        async with store.guard("a"), store.guard("b"):
            server.stop()
            server.start()
            await store.aclose()
        async with store.guard("a") as watch:
            assert not (await watch(0)).removed
            async with store.guard("b"):
                assert not (await watch(0)).removed
            assert len(await store.apply(Sessions())) == 2


async def test_behind_a_pooler_nobody_wakes_or_is_judged(pgbouncer_url: str) -> None:
    session = f"s-{secrets.token_hex(6)}"
    async with aclosing(PostgresTaskStore(pgbouncer_url)) as store:
        await _begun(store, session)
        async with store.guard(session) as guard:
            assert not (await guard(0)).removed
            with pytest.raises(UnsupportedOperation, match="pooler"):
                async with store.wakeups(session):
                    pass
        await store.apply(End(session))
    with psycopg.connect(pgbouncer_url, prepare_threshold=None) as shared:
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert shared.execute(held.encode()).fetchone() == (0,)


async def test_behind_a_pooler_nobody_is_given_what_they_would_not_hear_of(
    pgbouncer_url: str,
) -> None:
    """A task that an insert claims for an idle session whose notices are lost would never be run."""
    queue = f"q-{secrets.token_hex(6)}"
    async with Tasks(pgbouncer_url) as working, Tasks(pgbouncer_url) as other:
        ran, seen = anyio.create_memory_object_stream[int](8)

        @working.worker(queue)
        async def work(task: Claim) -> None:
            await ran.send(task.value)

        async with anyio.create_task_group() as group:
            group.start_soon(working.run)
            with anyio.fail_after(60):
                for number in range(8):
                    await other.insert(queue, number)
                    assert await seen.receive() == number
            working.stop()
        ran.close()
        seen.close()


# --- waking -----------------------------------------------------------------------------------------


async def test_no_insert_is_missed_by_one_who_becomes_idle_in_that_moment(
    url: str, store: PostgresTaskStore
) -> None:
    """The insert is not committed yet when the idle one looks, and doesn't see that one either."""
    await _begun(store, "s")
    with psycopg.connect(url) as inserting:
        inserting.execute("select intervalq.enqueue('q', '1')")
        found: list[Row] = []

        async def look() -> None:
            found.extend(await _claim(store, "s", idle=True))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            waits = f"select 1 {ME} and wait_event = 'PgSleep'"
            await _until(lambda: _sql(url, waits))
            inserting.commit()
    assert len(found) == 1


async def test_a_lost_connection_is_told_to_who_waits_on_it(url: str, store: PostgresTaskStore) -> None:
    await _begun(store, "s")
    async with store.wakeups("s") as woken:
        line = store._direct._lines["s"].connection.info.backend_pid
        _sql(url, "select pg_terminate_backend(%s, 5000)", line)
        assert type(await _caught(woken())) is errors.StoreUnavailable
        async with store.wakeups("s") as again:  # by a new one
            await store.apply(Work("s", queues=("q",), limit=1, idle=True))
            await store.apply(_inserts("t"))
            await again()


# --- transactions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_next_of_a_key_is_fed_even_by_one_who_cannot_see_it(
    store: PostgresTaskStore, isolation: Any
) -> None:
    await _begun(store, "s")
    await store.apply(_inserts("a", key="k"))
    [row] = await _claim(store, "s")
    async with store.transaction(isolation) as mine:
        await mine.connection.execute("select 1")  # its snapshot
        await store.apply(_inserts("b", key="k"))
        await mine.apply(Modify("s", deletes=(Delete(row.id, row.version),)))
    assert [row.id for row in await _claim(store, "s")] == ["b"]


async def test_one_who_joins_a_line_that_it_cannot_see_the_end_of_is_fed(store: PostgresTaskStore) -> None:
    """The first has gone since its snapshot, so that nobody else would feed it."""
    await _begun(store, "s")
    await store.apply(_inserts("a", key="k"))
    [row] = await _claim(store, "s")
    async with store.transaction("repeatable read") as mine:
        await mine.connection.execute("select count(*) from intervalq.tasks")  # its snapshot
        await store.apply(Work("s", (Delete(row.id, row.version),)))
        await mine.apply(_inserts("b", key="k"))
    assert [row.id for row in await _claim(store, "s")] == ["b"]


async def test_two_firsts_of_a_key_are_a_conflict(store: PostgresTaskStore) -> None:
    async def insert_both() -> None:
        async with store.transaction("repeatable read") as mine:
            await mine.connection.execute("select 1")
            await store.apply(_inserts("a", key="k"))
            await mine.apply(_inserts("b", key="k"))

    assert isinstance(await _caught(insert_both()), errors.TransactionConflict)
    assert [row.id for row in await store.apply(Select())] == ["a"]


async def test_a_transaction_that_has_failed_is_not_taken_for_committed(store: PostgresTaskStore) -> None:
    async def careless() -> None:
        async with store.transaction("read committed") as mine:
            await mine.apply(_inserts("a"))
            with pytest.raises(psycopg.Error):
                await mine.connection.execute("select 1 / 0")

    assert "rolled" in str(await _caught(careless()))
    assert await store.apply(Select()) == ()


@pytest.mark.parametrize("ended", [b"commit", b"rollback"])
async def test_a_transaction_that_its_user_has_ended_takes_no_command(
    store: PostgresTaskStore, ended: bytes
) -> None:
    """Else what a claim's user has written stands, whoever has the claim by then."""
    kinds: list[str] = []
    for command in (_inserts("a"), None):

        async def hasty(command: Modify | None = command) -> None:
            async with store.transaction("read committed") as mine:
                await mine.connection.execute(ended)
                if command is not None:
                    await mine.apply(command)

        kinds.append(str(await _caught(hasty())))
    assert ["ended by a statement in it" in kind for kind in kinds] == [True, True]
    assert await store.apply(Select()) == ()


async def test_who_refuses_a_command_does_not_end_the_transaction(store: PostgresTaskStore) -> None:
    await store.apply(_inserts("a"))
    async with store.transaction("read committed") as mine:
        for _ in range(2):
            assert isinstance(await _caught(mine.apply(_inserts("b", "a"))), errors.DependencyError)
        await mine.apply(_inserts("c"))
    assert {row.id for row in await store.apply(Select())} == {"a", "c"}


async def test_a_connection_is_kept_after_a_transaction_and_dropped_after_a_failure(
    store: PostgresTaskStore,
) -> None:
    async def once(insert: Modify) -> int:
        async with store.transaction("read committed") as mine:
            await mine.apply(insert)
            return mine.connection.info.backend_pid

    first = await once(_inserts("a"))
    assert await once(_inserts("b")) == first
    assert isinstance(await _caught(once(_inserts("b"))), errors.DependencyError)
    assert await once(_inserts("c")) != first


async def test_anybody_can_insert_by_sql(url: str, store: PostgresTaskStore) -> None:
    await _begun(store, "s")
    assert _sql(url, "select intervalq.enqueue('q', '{\"a\": 1}', id => 'mine', key => 'k')") == [("mine",)]
    [(made,)] = _sql(url, "select intervalq.enqueue('q', 'null', dedupe_key => 'd', delay => '1 hour')")
    assert _sql(url, "select intervalq.enqueue('q', '2', dedupe_key => 'd')") == [(made,)]
    assert uuid_of(made) == made
    rows = {row.id: row for row in await store.apply(Select())}
    assert (rows["mine"].json, rows["mine"].key, rows[made].dedupe) == ('{"a": 1}', "k", "d")
    assert rows[made].at - rows[made].created == 3600 * SECOND
    for bad, said in (("'q', '1', id => 'mine'", "exists"), ("'q', '1', key => 'k', inbox => 0", "full")):
        with pytest.raises(psycopg.Error, match=said):
            _sql(url, f"select intervalq.enqueue({bad})")
    _sql(url, "create table cars (name text)")
    _sql(
        url,
        "create function paint() returns trigger language plpgsql as $$ begin"
        " perform intervalq.enqueue('q', to_jsonb(new), id => new.name); return new; end $$;"
        " create trigger paint after insert on cars for each row execute function paint()",
    )
    async with store.wakeups("s") as woken:
        assert [row.id for row in await _claim(store, "s", 5)] == ["mine"]
        assert await _claim(store, "s", idle=True) == ()
        _sql(url, "insert into cars values ('beetle')")
        await woken()
    [row] = await _claim(store, "s")
    assert (row.id, row.json) == ("beetle", '{"name": "beetle"}')


# --- plain tasks ------------------------------------------------------------------------------------


async def _numbers(store: PostgresTaskStore, now: int | None = None) -> list[int]:
    """What a session that finishes all of it gets, one by one; ordinary tasks are left."""
    worked = await store.apply(Work("s", queues=("q",), limit=100), now)
    done = tuple(Finished(one) for one, _ in worked.ranges)
    assert (await store.apply(Work("s", finished=done), now)).lost_ranges == ()
    return [
        *(int(json) for _, tasks in worked.ranges for _, json in tasks),
        *(int(r.json) for r in worked.claimed),
    ]


@pytest.mark.parametrize("when", ["before the claim is finished", "after it"])
async def test_plain_tasks_that_are_committed_late_are_not_lost(
    url: str, store: PostgresTaskStore, when: str
) -> None:
    await _begun(store, "s")
    for number in range(100, 164):  # in every part
        await store.put("q", [str(number)])
    with psycopg.connect(url) as late:
        for number in range(32):
            late.execute(f"select intervalq.put('q', '{number}')".encode())
        for number in range(164, 228):
            await store.put("q", [str(number)])
        worked = await store.apply(Work("s", queues=("q",), limit=1000))
        await store.apply(Beat("s"), 10 * SECOND)
        done = tuple(Finished(one) for one, _ in worked.ranges)
        if when == "after it":
            assert (await store.apply(Work("s", finished=done))).lost_ranges == ()
        await store.apply(Beat("s"), 20 * SECOND)
        late.commit()
    if when != "after it":
        await store.apply(Beat("s"), 30 * SECOND)
        assert (await store.apply(Work("s", finished=done))).lost_ranges == ()
    given = [int(json) for _, tasks in worked.ranges for _, json in tasks]
    assert sorted(given) == list(range(100, 228))
    for second in range(40, 44):
        await store.apply(Beat("s"), second * SECOND)
    rows = [row for row in await store.apply(Select(queue="q")) if row.created]  # what has become ordinary
    found: list[int] = []
    while more := await _numbers(store):
        found += more
    assert sorted(found) == list(range(32))
    assert {row.attempt for row in rows} <= {0}
    assert [(stats.size, stats.claimed) for stats in await store.apply(Count())] in (
        [],
        [(len(rows), len(rows))],
    )


async def test_sessions_begin_with_parts_of_their_own_and_leave_none(
    url: str, store: PostgresTaskStore
) -> None:
    await _begun(store, "a", "b")
    for number in range(400):
        await store.put("q", [str(number)])
    parts: dict[str, list[int]] = {}
    for session in ("a", "b"):
        worked = await store.apply(Work(session, queues=("q",), limit=100))
        parts[session] = [one.part for one, _ in worked.ranges]
    assert max(parts["a"]) < 8 <= min(parts["b"])
    left = 200
    while left:
        worked = await store.apply(Work("a", queues=("q",), limit=100))
        assert worked.ranges
        left -= sum(len(tasks) for _, tasks in worked.ranges)
    assert left == 0


# --- faults and advice ------------------------------------------------------------------------------


async def test_what_the_server_says_becomes_the_errors_of_a_store(url: str, store: PostgresTaskStore) -> None:
    await store.apply(_inserts("a"))
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks for update")
        async with aclosing(PostgresTaskStore(_with(url, "statement_timeout=50"))) as slow:
            change = Modify(changes=(Change("a", 0),))
            assert type(await _caught(slow.apply(change))) is errors.StoreTimeout
        async with aclosing(PostgresTaskStore(_with(url, "default_transaction_read_only=on"))) as replica:
            assert type(await _caught(replica.apply(_inserts("b")))) is errors.StoreReadOnly
    nobody = PostgresTaskStore(f"postgresql://somebody:{CANARY}@127.0.0.1:{free_port()}/db")
    error = await _caught(nobody.apply(Count()))
    assert type(error) is errors.StoreUnavailable
    assert CANARY not in f"{nobody!r} {nobody.url} {error}"


async def test_a_command_that_is_cancelled_leaves_nothing_to_the_next_one(
    url: str, store: PostgresTaskStore
) -> None:
    await store.apply(_inserts("a"))
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks for update")
        task = asyncio.create_task(store.apply(Modify(changes=(Change("a", 0),))))
        await _until(lambda: _sql(url, f"select 1 {ME} and wait_event_type = 'Lock'"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [row.id for row in await store.apply(Select())] == ["a"]


def test_trio_is_refused_by_name(url: str) -> None:
    with pytest.raises(errors.BackendUnsupported, match="asyncio"):
        trio.run(PostgresTaskStore(url).apply, Count())


async def test_advice_names_what_is_wrong(
    url: str, pgbouncer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(at: str) -> str:
        async with aclosing(PostgresTaskStore(at)) as store:
            return " ".join(said for level, said in await store.advice() if level != "ok")

    assert await wrong(url) == ""
    assert "synchronous_commit is off" in await wrong(_with(url, "synchronous_commit=off"))
    assert "pooler" in await wrong(pgbouncer_url)
    monkeypatch.setattr("intervalq_stores.postgres._advice._OLD", -1.0)
    assert "has been open" in await wrong(url)


async def test_an_end_frees_what_was_locked_for_a_moment_only(
    url: str, store: PostgresTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_tasks, "_MOMENTS", 13)  # a slow machine's moment
    await _begun(store, "s")
    await store.apply(_inserts("a", "b"))
    assert len(await _claim(store, "s", 2)) == 2
    with psycopg.connect(url) as other:
        other.execute("select from intervalq.tasks where own = 'a' for update")
        async with anyio.create_task_group() as group:
            group.start_soon(store.apply, End("s"))
            await _until(lambda: _sql(url, "select 1 from intervalq.tasks where session is null"))
            other.rollback()
    assert [(row.session, row.attempt) for row in await store.apply(Select())] == [(None, 0)] * 2
