"""Tables of tasks as an older release left them, with tasks in them: what a store makes of them now."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

from file_processes import line, process
from intervalq import errors
from intervalq.tasks.rules import (
    DAY,
    SECOND,
    Beat,
    Delete,
    Finished,
    Insert,
    Kept,
    Modify,
    Outcomes,
    Range,
    Row,
    Select,
    Sessions,
    Work,
)
from intervalq.tasks.store import TaskStore, open_task_store
from intervalq_stores.postgres._schema import statements
from intervalq_stores.postgres.tasks import SCHEMA, PostgresTaskStore
from intervalq_stores.sqlite._task_schema import LAYOUT
from intervalq_stores.sqlite.tasks import SQLiteTaskStore
from servers import Server, redis_client
from stores.postgres_sessions import sql

FILES: Final = Path(__file__).parent
NOW: Final = 1_700_000_000_000_000
UUID: Final = "0190a5c2-1111-7abc-8def-000000000000"


def _row(*fields: Any, created: int = NOW, modified: int = NOW, **more: Any) -> Row:
    return Row(*fields)._replace(created=created, modified=modified, **more)


def _held(*fields: Any, session: str = "old", **more: Any) -> Row:
    return _row(*fields, session=session, claims=1, attempt=1, begun=True, **{"modified": NOW + 1, **more})


ROWS: Final = (
    _held("held", 1, "held", NOW, '{"n":1}'),
    _held("leased", 1, "leased", NOW, "2", until=NOW + 30 * SECOND + 1),
    _held("orphan", 1, "orphans", NOW, '"ü"', session="lost"),
    _held("k1", 1, "line", NOW + 2, "null", "k", 1, created=NOW + 2, modified=NOW + 3),
    *(
        _row(f"k{n}", 0, "line", NOW + 2, "null", "k", n, True, created=NOW + 2, modified=NOW + 2)
        for n in (2, 3)
    ),
    *(
        _row(*fields, created=NOW + 4, modified=NOW + 4, **more)
        for fields, more in (
            ((UUID, 0, "q", NOW + 4, "[1]"), {}),
            (("once", 0, "q", NOW + 4, "4"), {"dedupe": "d", "dedupe_for": 60 * SECOND}),
            (("tried", 0, "q", NOW + 4, "3"), {"attempt": 2, "error": "ValueError: boom"}),
            (("later", 0, "q", NOW + 60 * SECOND, "2"), {}),
        )
    ),
)
"""The tasks of each of the files `tasks_layout_*`; session `old` lives, and `lost` has lapsed.

In those for Postgres, functions have no bodies: the tables are upgraded, and all functions replaced.
"""

OPENING: Final = """
import sys, anyio
from intervalq.tasks.rules import Select
from intervalq.tasks.store import open_task_store
async def main():
    store = open_task_store(sys.argv[1])
    sys.stdout.write("here\\n"); sys.stdout.flush(); sys.stdin.readline()
    print(sum(not row.is_plain for row in await store.apply(Select())))
    await store.aclose()
anyio.run(main)
"""


@pytest.fixture(params=[1, 2, 3])
def layout(request: pytest.FixtureRequest) -> int:
    layout: int = request.param
    return layout


OLDER: Final = (("postgres", 7), ("sqlite", 6), ("redis", 6))
"""The last layout before the present one."""
on_all: Final = pytest.mark.parametrize(
    ("url", "layout"),
    [(name, layout) for name, last in OLDER for layout in range(1, last + 1)],
    indirect=["url"],
)
on_redis: Final = pytest.mark.parametrize("layout", [1, 2, 3, 4, 5, 6])
on_sqlite: Final = pytest.mark.parametrize("layout", [1, 2, 3, 4, 5, 6])


@pytest.fixture
def postgres(layout: int, postgres_url: str) -> Iterator[str]:
    name = f"intervalq_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        sql(url, (FILES / f"tasks_layout_{layout}.postgres.sql").read_text())
        yield url
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture
def database(layout: int, tmp_path: Path) -> Path:
    path = tmp_path / "app.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((FILES / f"tasks_layout_{layout}.sqlite.sql").read_text())
    path.chmod(0o600)
    return path


@pytest.fixture
def redis(layout: int, own_redis: Callable[..., Server]) -> str:
    server = own_redis()
    with redis_client(server.url) as client:
        for words in (FILES / f"tasks_layout_{layout}.redis.jsonl").read_text().splitlines():
            client.execute_command(*(word.encode("latin-1") for word in json.loads(words)))
    return server.url


@pytest.fixture
def url(request: pytest.FixtureRequest, layout: int) -> str:
    del layout  # here for those who ask for the stores by name: they need its parameters
    name: str = request.param
    if name == "sqlite":
        return f"sqlite://{request.getfixturevalue('database')}"
    url: str = request.getfixturevalue(name)
    return url


async def _ordinary(store: TaskStore, now: int) -> tuple[Row, ...]:
    return tuple(row for row in await store.apply(Select(), now) if not row.is_plain)


async def _go_on(store: TaskStore) -> None:
    """Do what a session of that time, a new session, and a producer would do next."""
    work = Work("old", (Delete("k1", 1), Delete("held", 1), Delete("leased", 1)), queues=("line",), limit=9)
    worked = await store.apply(work, NOW + 5)
    assert worked.lost == ()
    assert [row.id for row in worked.claimed] == ["k2"]
    again = tuple(Insert("q", "6", f"new-{key}", dedupe=key) for key in "def")
    modified = await store.apply(Modify(inserts=again), NOW + 6)
    assert modified.existing == (("new-d", "once"), ("new-e", "twice"))
    beaten = await store.apply(Beat("old"), NOW + 2 * SECOND)
    assert (beaten.alive, beaten.lapsed) == (True, ("lost",))
    assert [session.id for session in await store.apply(Sessions())] == ["old"]
    [orphan] = await store.apply(Select(ids=("orphan",)))
    assert (orphan.session, orphan.error) == (None, "host:8 was lost")
    claimed = (await store.apply(Work("old", queues=("q", "orphans"), limit=9), NOW + 9 * SECOND)).claimed
    assert {row.id for row in claimed} == {UUID, "once", "tried", "new-f", "orphan"}


@on_all
async def test_all_is_there_and_goes_on(url: str) -> None:
    async with aclosing(open_task_store(url)) as store:
        assert await _ordinary(store, NOW + 5) == ROWS
        await _go_on(store)


@on_all
async def test_a_change_may_come_before_any_look(url: str) -> None:
    async with aclosing(open_task_store(url)) as store:
        await _go_on(store)


@pytest.mark.parametrize(("url", "layout"), OLDER, indirect=["url"])
async def test_an_outcome_comes_after_those_of_the_older_layout(url: str) -> None:
    """Also if the clock was set back since they were written."""
    async with aclosing(open_task_store(url)) as store:
        for end in (2, 1):
            now = NOW + end
            await store.apply(Modify(inserts=(Insert("kept", "[1]", "kept", keep_for=end * DAY),)), now)
            (row,) = (await store.apply(Work("old", queues=("kept",), limit=1), now)).claimed
            done = Delete("kept", row.version, Kept(0, f'"{end}"'))
            assert (await store.apply(Work("old", (done,)), now)).lost == ()
        for asked, results in (
            (Outcomes(ids=("kept",)), ['"first"', '"2"', '"1"']),
            (Outcomes(queue="kept"), ['"1"', '"2"', '"first"']),
            (Outcomes(queue="kept", limit=2), ['"1"', '"2"']),
            (Outcomes(), ['"1"', '"2"', '"first"']),
            (Outcomes(queue="kept", ids=("kept",), state="failed"), []),
        ):
            found = [one.result for one in await store.apply(asked, NOW + 9)]
            assert found == results, asked


@on_all
def test_processes_that_open_them_at_the_same_moment_find_the_same(url: str) -> None:
    with contextlib.ExitStack() as ends:
        opening = [ends.enter_context(process(OPENING, url)) for _ in range(4)]
        assert [line(one) for one in opening] == ["here"] * 4
        for one in opening:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [line(one) for one in opening] == [str(len(ROWS))] * 4


# --- Postgres ------------------------------------------------------------------------------------------

on_postgres: Final = pytest.mark.parametrize("layout", [1, 2, 3, 4, 5, 6, 7])


def _shape(url: str) -> list[tuple[Any, ...]]:
    """The columns, indexes, types and functions, with their bodies; the order of columns doesn't matter."""
    return sql(
        url,
        "select table_name, column_name, data_type, is_nullable, coalesce(column_default, ''), collation_name"
        " from information_schema.columns where table_schema = 'intervalq'"
        " union select tablename, indexname, indexdef, '', '', '' from pg_indexes"
        " where schemaname = 'intervalq'"
        " union select proname, pg_get_function_arguments(oid), pg_get_function_result(oid), prosrc,"
        " pg_get_function_sqlbody(oid), ''"
        " from pg_proc where pronamespace = 'intervalq'::regnamespace"
        " union select relname, attname, format_type(atttypid, atttypmod), '', '', '' from pg_attribute"
        " join pg_class on pg_class.oid = attrelid and relkind = 'c'"
        " where relnamespace = 'intervalq'::regnamespace order by 1, 2, 3",
    )


@on_postgres
async def test_they_become_what_a_new_schema_is(postgres: str) -> None:
    work = "select oid::regprocedure from pg_proc where proname = 'work'"
    older = sql(postgres, work)
    async with aclosing(PostgresTaskStore(postgres)) as store:
        await store.apply(Sessions())
    found = _shape(postgres)
    sql(postgres, "drop schema intervalq cascade")
    sql(postgres, statements("tasks"))
    assert found == _shape(postgres)
    assert sql(postgres, "select number from intervalq.tasks_version") == [(SCHEMA,)]
    assert sql(postgres, work) != older  # clients that are still connected fail, and look at the version


@on_postgres
async def test_plain_tasks_and_their_ranges_are_still_who_had_them(postgres: str) -> None:
    lines = sql(postgres, "select queue, part, low, high, size from intervalq.ranges")
    held = sum(size for *_, size in lines)
    [(there,)] = sql(postgres, "select count(*) from intervalq.plain")
    async with aclosing(PostgresTaskStore(postgres)) as store:
        done = tuple(Finished(Range(*one)) for *one, _ in lines)
        worked = await store.apply(Work("old", (), done, ("plain",), limit=100), NOW + 9)
        assert worked.lost_ranges == ()
        values = [json for _, tasks in worked.ranges for _, json in tasks]
        assert len(values) == len(set(values)) == there - held
    assert sql(postgres, "select distinct queue from intervalq.heads") == [("plain",)]
    assert sql(postgres, "select distinct queue from intervalq.floors") == [("plain",)]


@pytest.mark.parametrize("layout", [1, 2, 3, 4, 5])  # from 6 on, nothing that users can use is dropped
async def test_what_fails_leaves_all_as_it_was(postgres: str, layout: int) -> None:
    """Something of the user's stands in the way: it isn't removed either."""
    given = ["null"] * 5
    given[{3: 0, 4: 1, 5: 2}.get(layout, 4)] = "true"  # with_values
    sql(postgres, f"create view mine as select * from intervalq.tasks_of({', '.join(given)})")
    before = _shape(postgres)
    async with aclosing(PostgresTaskStore(postgres)) as store:
        with pytest.raises(errors.StoreError, match="depend"):
            await store.apply(Sessions())
        assert _shape(postgres) == before
        assert sql(postgres, "select number from intervalq.tasks_version") == [(layout,)]
        sql(postgres, "drop view mine")
        assert await _ordinary(store, NOW) == ROWS


@pytest.mark.parametrize("layout", [6])
async def test_who_could_end_kept_tasks_still_can_after_an_administrators_upgrade(postgres: str) -> None:
    """Its role owns nothing, and has got the rights that the older layout needed."""
    role = f"Ann's {secrets.token_hex(4)}"
    sql(postgres, f'create role "{role}" login; grant usage on schema intervalq to "{role}"')
    rights = {"tables": "select, insert, update, delete", "sequences": "usage", "functions": "execute"}
    for kind, names in rights.items():
        sql(postgres, f'grant {names} on all {kind} in schema intervalq to "{role}"')
    sql(postgres, statements("tasks"))
    mine = postgres.replace("postgres@", f"{quote(role)}@")
    try:
        async with aclosing(PostgresTaskStore(mine)) as store:
            await store.apply(Modify(inserts=(Insert("own", "1", "own", keep_for=DAY),)), NOW + 1)
            (row,) = (await store.apply(Work("old", queues=("own",), limit=1), NOW + 1)).claimed
            done = Delete("own", row.version, Kept(0, "1"))
            assert (await store.apply(Work("old", (done,)), NOW + 1)).lost == ()
            (outcome,) = await store.apply(Outcomes(ids=("own",)), NOW + 1)
            assert outcome.result == "1"
    finally:
        sql(postgres, f'drop owned by "{role}"; drop role "{role}"')


@on_postgres
async def test_tables_whose_version_is_not_known_are_left_alone(postgres: str) -> None:
    sql(postgres, "delete from intervalq.tasks_version")
    async with aclosing(PostgresTaskStore(postgres)) as store:
        with pytest.raises(errors.CorruptState, match="insert the version"):
            await store.apply(Sessions())
    assert sql(postgres, "select count(*) from intervalq.tasks_version") == [(0,)]


# --- SQLite --------------------------------------------------------------------------------------------


def _tables(path: Path) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        columns = connection.execute(
            "SELECT m.name, c.name, c.type, c.\"notnull\", ifnull(c.dflt_value, ''), c.pk "
            "FROM sqlite_schema m, pragma_table_xinfo(m.name) c WHERE m.name LIKE 'intervalq%' "
            "UNION SELECT tbl_name, name, sql, 0, '', 0 FROM sqlite_schema WHERE type = 'index' "
            "AND name LIKE 'intervalq%' ORDER BY 1, 2, 3"
        )
        return columns.fetchall()


def _layout(path: Path) -> object:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT layout FROM intervalq_tasks_version").fetchall()


@on_sqlite
async def test_a_database_becomes_what_a_new_one_is(database: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    for path in (database, new):
        async with aclosing(SQLiteTaskStore(f"sqlite://{path}")) as store:
            await store.apply(Beat("old"))
    assert _tables(database) == _tables(new)
    assert _layout(database) == [(LAYOUT,)]


@on_sqlite
async def test_in_the_users_transaction_it_is_part_of_that(database: Path, layout: int) -> None:
    async with aclosing(SQLiteTaskStore(f"sqlite://{database}")) as store:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            before = _tables(database)
            assert await store.apply_on(connection, Select()) == ROWS
            connection.rollback()
            assert _layout(database) == [(layout,)]
            assert _tables(database) == before
            await store.apply_on(connection, Modify(deletes=(Delete("tried", 0),)))
            connection.commit()
        assert _layout(database) == [(LAYOUT,)]
        assert len(await store.apply(Select())) == len(ROWS) - 1


@on_sqlite
async def test_who_only_asks_for_advice_changes_nothing(database: Path, layout: int) -> None:
    async with aclosing(SQLiteTaskStore(f"sqlite://{database}")) as store:
        assert f"layout {LAYOUT}" in " ".join(reported for _, reported in await store.advice())
    assert _layout(database) == [(layout,)]


# --- Redis ---------------------------------------------------------------------------------------------


@on_redis
async def test_a_look_writes_no_layout_and_a_change_does(redis: str, layout: int) -> None:
    version = ("intervalq:{tasks}:meta", "version")
    async with aclosing(open_task_store(redis)) as store:
        with redis_client(redis) as client:
            await store.apply(Select())
            assert client.hget(*version) == b"%d" % layout
            await store.apply(Beat("old"), NOW + 1)
            assert client.hget(*version) == b"7"
            client.hset(*version, "8")
            for command in (Select(), Beat("old")):
                with pytest.raises(errors.VersionMismatch, match="layout 8, not up to 7"):
                    await store.apply(command, NOW + 2)
            assert client.hget(*version) == b"8"
