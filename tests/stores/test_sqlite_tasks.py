from __future__ import annotations

import contextlib
import sqlite3
import stat
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends import both_backends
from databases import refusal
from intervalq import rules as queue_rules
from intervalq.errors import (
    CorruptState,
    DependencyError,
    InvalidOption,
    InvalidTask,
    StoreError,
    TransactionConflict,
    VersionMismatch,
)
from intervalq.tasks.rules import Begin, Change, Count, Delete, Insert, Modify, Select, Session, Work
from intervalq.tasks.store import open_task_store
from intervalq.testing import TaskSuite, TransactionalTaskSuite
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores.sqlite import _task_batches as fast
from intervalq_stores.sqlite._task_schema import LAYOUT, SCHEMA
from intervalq_stores.sqlite.queues import SQLiteStore
from intervalq_stores.sqlite.tasks import SQLiteTaskStore

anyio_backend = both_backends


class TestSQLiteTaskStore(TaskSuite, TransactionalTaskSuite):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/new%20folder/app.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def store(path: Path) -> SQLiteTaskStore:
    return SQLiteTaskStore(f"sqlite://{path}")


def put(*ids: str, queue: str = "q", **fields: str) -> Modify:
    return Modify(inserts=tuple(Insert(queue, "1", id_, **fields) for id_ in ids))  # type: ignore[arg-type]


async def there(store: SQLiteTaskStore) -> list[str]:
    return sorted(row.id for row in await store.apply(Select()))


# --- the database -------------------------------------------------------------------------------------


async def test_a_look_makes_nothing_and_the_first_command_a_private_database(
    store: SQLiteTaskStore, path: Path
) -> None:
    assert await there(store) == []
    assert await store.apply(Count()) == ()
    assert list(path.parent.iterdir()) == []
    await store.apply(put("a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_one_file_serves_the_store_of_queues_as_well(store: SQLiteTaskStore, path: Path) -> None:
    await store.apply(put("a"))
    queues = SQLiteStore(f"sqlite://{path}")
    settings = queue_rules.Settings(interval=1_000_000)
    await queues.apply("cars", queue_rules.Advance(settings=settings, nonce="n", take=1))
    assert await queues.names() == ["cars"]
    assert await there(store) == ["a"]


async def test_a_database_of_the_users_is_used_as_it_is(store: SQLiteTaskStore, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "PRAGMA application_id = 7; PRAGMA user_version = 99; CREATE TABLE mine (n);"
        )
    await store.apply(put("a"))
    assert await there(store) == ["a"]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("SELECT * FROM pragma_application_id, pragma_user_version")
        assert found == (7, 99)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)


async def test_an_empty_file_is_an_empty_database(store: SQLiteTaskStore, path: Path) -> None:
    path.touch(mode=0o600)
    await store.apply(put("a"))
    assert await there(store) == ["a"]


async def test_a_newer_layout_is_refused_and_left_alone(store: SQLiteTaskStore, path: Path) -> None:
    await store.apply(put("a"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE intervalq_tasks_version SET layout = ?", [LAYOUT + 1])
        connection.commit()
        for command in (put("b"), Select()):
            with pytest.raises(VersionMismatch, match="upgrade"):
                await store.apply(command)
        with pytest.raises(VersionMismatch):
            await store.apply_on(connection, put("b"))
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM intervalq_tasks").fetchone() == (1,)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite://host/a", "sqlite:///a?mode=ro"])
def test_urls_that_make_no_sense_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        open_task_store(url)


# --- commands -----------------------------------------------------------------------------------------


async def test_commands_that_wait_share_one_transaction_and_one_that_fails_spoils_none(
    store: SQLiteTaskStore, path: Path
) -> None:
    commits: list[int] = []
    commit = store._database.commit
    refused: list[str] = []

    def counted() -> None:
        commits.append(1)
        commit()

    store._database.commit = counted  # type: ignore[method-assign]

    async def insert(number: int) -> None:
        try:
            bad = number % 5 == 0
            name = "\ud800" if number % 10 == 0 else f"t{number}"
            await store.apply(put(name, *(["first"] if bad else [])))
        except (DependencyError, InvalidTask) as error:
            refused.append(type(error).__name__)

    await store.apply(put("first"))
    commits.clear()
    async with anyio.create_task_group() as group:
        with SharedFile(path, store.url).locked():
            for number in range(1, 31):
                group.start_soon(insert, number)
                while len(store._thread._jobs) < number:
                    await checkpoint()
    assert commits == [1]
    assert sorted(refused) == ["DependencyError"] * 3 + ["InvalidTask"] * 3
    assert await there(store) == sorted(["first", *(f"t{n}" for n in range(1, 31) if n % 5)])


async def test_each_command_of_a_shared_transaction_sees_those_before(
    store: SQLiteTaskStore, path: Path
) -> None:
    await store.apply(Begin(Session("s")))
    first = Insert("q", "1", "a", key="k")
    newest = Insert("q", "1", "b", key="k", replace=True)
    commands = [Modify(inserts=(first,)), Work("s", queues=("q",), limit=1), Modify(inserts=(newest,))]
    async with anyio.create_task_group() as group:
        with SharedFile(path, store.url).locked():
            for number, command in enumerate(commands, 1):
                group.start_soon(store.apply, command)
                while len(store._thread._jobs) < number:
                    await checkpoint()
    rows = await store.apply(Select(queue="q"))
    assert sorted((row.id, row.session, row.waiting) for row in rows) == [
        ("a", "s", False),
        ("b", None, True),
    ]


async def test_what_cannot_be_kept_is_an_error_of_the_task_and_nothing_is_done(
    store: SQLiteTaskStore,
) -> None:
    for command in (put("a", "\ud800"), Modify(inserts=(Insert("q", "1", "a", at=2**63),))):
        with pytest.raises(InvalidTask):
            await store.apply(command)
    assert await there(store) == []


async def test_ids_with_odd_characters_are_told_apart(store: SQLiteTaskStore) -> None:
    ids = ["a", "a\0b", "a\0c", "A", "ä", "'", '"', "%"]
    await store.apply(put(*ids))
    await store.apply(Begin(Session("s")))
    rows = (await store.apply(Work("s", queues=("q",), limit=20))).claimed
    assert sorted(row.id for row in rows) == sorted(ids)
    settled = tuple(Delete(id_, 1) for id_ in ids[1:])
    assert (await store.apply(Work("s", settled))).lost == ()
    assert [row.id for row in await store.apply(Select(ids=tuple(ids)))] == ["a"]


async def begins(store: SQLiteTaskStore) -> None:
    async with store.transaction("serializable"):
        pytest.fail("it is held")


async def test_another_program_that_holds_the_database_is_waited_for_with_a_bound(
    store: SQLiteTaskStore, path: Path
) -> None:
    await store.apply(put("a"))
    store.patience = 0.05
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "fuser" in await refusal(lambda: store.apply(put("b")))
        assert "fuser" in await refusal(lambda: begins(store))
        assert await there(store) == ["a"]  # queries still work
        other.execute("ROLLBACK")
    store.patience = 10
    await store.apply(put("c"))
    assert await there(store) == ["a", "c"]


async def test_who_comes_later_is_not_refused_with_those_who_waited_too_long(
    store: SQLiteTaskStore, path: Path
) -> None:
    await store.apply(put("a"))
    store.patience = 0.3
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = anyio.Event()

        async def first() -> None:
            assert "fuser" in await refusal(lambda: store.apply(put("b")))
            refused.set()

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            while not store._foreign:
                await anyio.sleep(0.001)
            store.patience = 60
            group.start_soon(store.apply, put("c"))
            await refused.wait()
            while len(store._thread._jobs) != 1:  # the thread has noticed that the first one left
                await anyio.sleep(0.001)
            other.execute("ROLLBACK")
    assert await there(store) == ["a", "c"]


async def test_what_is_claimed_at_once_is_told_as_it_is_kept(store: SQLiteTaskStore) -> None:
    """These are new tasks, and tasks of which the statement's answer doesn't have all fields."""
    await store.apply(put("new", "again", "failed"), 1)
    await store.apply(put("kept", dedupe="d"), 1)
    tried = Insert("q", "1", "tried", attempt=2), Insert("q", "1", "wrong", error="no")
    await store.apply(Modify(inserts=tried), 1)
    await store.apply(put("first", "behind", key="k"), 1)
    await store.apply(Begin(Session("s")), 1)
    for now, begins in ((2, 0), (3, 1)):
        worked = await store.apply(Work("s", queues=("q",), limit=9, begins=begins), now)
        assert len(worked.claimed) == 7
        assert {row.id: row for row in await store.apply(Select(session="s"))} == {
            row.id: row for row in worked.claimed
        }
        back = [
            Change(row.id, row.version, error="no" if row.id == "failed" else None) for row in worked.claimed
        ]
        await store.apply(Work("s", tuple(back[now - 2 :])), now)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("version", 1 << 62),
        ("at", "x"),
        ("at", -(1 << 62)),
        ("created", 1.5),
        ("json", b"1"),
    ],
)
async def test_one_damaged_task_among_others_is_not_handed_out(
    store: SQLiteTaskStore, path: Path, column: str, value: object
) -> None:
    await store.apply(put("a", "b", "c"))
    await store.apply(Begin(Session("s")))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE intervalq_tasks SET {column} = ? WHERE id = 'b'", [value])
        connection.commit()
    with pytest.raises(CorruptState, match="task 'b'"):
        await store.apply(Work("s", queues=("q",), limit=3))
    assert {row.claims for row in await store.apply(Select(ids=("a", "c")))} == {0}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="where a process sees its open files")
async def test_what_can_be_undone_is_not_written_to_a_temporary_file(store: SQLiteTaskStore) -> None:
    await store.apply(put(*map(str, range(1_000))))
    changes = Modify(changes=tuple(Change(str(number), 0, json="2") for number in range(1_000)))
    async with store.transaction("serializable") as transaction:
        await transaction.apply(changes)
        there = [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        assert [file for file in there if "app.db-wal" in file]
        assert not [file for file in there if "etilqs" in file]  # SQLite's name for its own


def test_the_frequent_statements_go_by_their_index() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for statement in SCHEMA:
            connection.execute(statement)
        for statement, index in (
            (fast._SETTLE, "sqlite_autoindex_intervalq_tasks_1 (id=?)"),
            (fast._CLAIM, "INTEGER PRIMARY KEY (rowid=?)"),
            (fast._READ + fast._READY, "INDEX intervalq_tasks_ready (queue=? AND priority=? AND ready<?)"),
            (fast._READ + fast._CHOSEN, "INTEGER PRIMARY KEY (rowid=?)"),
            (fast._NUMBERS + fast._READY, "COVERING INDEX intervalq_tasks_ready (queue=? AND prio"),
        ):
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * statement.count("?"))
            steps = [step for *_, step in plan]
            assert any(index in step for step in steps), steps
            assert not any("SCAN intervalq" in step or "TEMP" in step for step in steps), steps


# --- transactions -------------------------------------------------------------------------------------


async def test_a_command_beside_an_open_transaction_ends_with_a_bound(store: SQLiteTaskStore) -> None:
    await store.apply(put("a"))
    async with store.transaction("serializable") as transaction:
        await transaction.apply(put("b"))
        store.patience = 0.05
        assert "the holder is process" in await refusal(lambda: store.apply(put("c")))
        assert "the holder is process" in await refusal(lambda: begins(store))
        store.patience = 10
    assert await there(store) == ["a", "b"]
    await store.apply(put("d"))
    assert await there(store) == ["a", "b", "d"]


async def test_a_transaction_that_its_user_ended_is_told_of(store: SQLiteTaskStore) -> None:
    with pytest.raises(StoreError, match="don't use COMMIT"):
        async with store.transaction("serializable") as transaction:
            transaction.connection.execute("ROLLBACK")
    await store.apply(put("a"))


async def test_the_users_connection_may_have_settings_of_its_own(store: SQLiteTaskStore, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        connection.execute("CREATE TABLE mine (t)")
        connection.execute("INSERT INTO mine VALUES ('x')")
        (row,) = (await store.apply_on(connection, put("a"))).inserted
        assert (row.id, row.queue) == ("a", "q")
        assert (await store.apply_on(connection, Select(queue="q"))) == (row,)
        assert connection.execute("SELECT t FROM mine").fetchone()["t"] == b"x"
        connection.rollback()
        assert await there(store) == []  # the tables were removed with it
        await store.apply_on(connection, put("b"))
        connection.commit()
    assert await there(store) == ["b"]


async def test_a_connection_that_cannot_hold_a_command_together_is_refused(
    store: SQLiteTaskStore, path: Path, tmp_path: Path
) -> None:
    await store.apply(put("a"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        with pytest.raises(InvalidOption, match="BEGIN IMMEDIATE"):
            await store.apply_on(connection, put("b"))
        connection.execute("BEGIN")
        await store.apply_on(connection, put("b"))
        connection.execute("COMMIT")
    for other in (tmp_path / "other.db", ":memory:"):
        with (
            contextlib.closing(sqlite3.connect(other)) as connection,
            pytest.raises(InvalidOption, match="does not belong to the database"),
        ):
            await store.apply_on(connection, put("c"))
    assert await there(store) == ["a", "b"]


async def test_a_transaction_of_yesterday_is_a_conflict(store: SQLiteTaskStore, path: Path) -> None:
    await store.apply(put("a"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM intervalq_tasks").fetchall()
        await store.apply(Modify(changes=(Change("a", 0),)))
        with pytest.raises(TransactionConflict, match="repeat all of it"):
            await store.apply_on(connection, Modify(deletes=(Delete("a", 0),)))
        connection.execute("ROLLBACK")
    assert await there(store) == ["a"]


async def test_a_refused_command_leaves_nothing_in_the_users_transaction(
    store: SQLiteTaskStore, path: Path
) -> None:
    await store.apply(put("a"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        with pytest.raises(DependencyError):
            await store.apply_on(connection, Modify(inserts=put("b").inserts, deletes=(Delete("x", 0),)))
        await store.apply_on(connection, put("c"))
        connection.commit()
    assert await there(store) == ["a", "c"]
