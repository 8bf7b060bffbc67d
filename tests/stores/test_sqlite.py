from __future__ import annotations

import json
import os
import sqlite3
import stat
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends import both_backends
from databases import at_rest, make, opened, record, rows, text
from intervalq import rules
from intervalq.errors import (
    InsecurePath,
    InvalidOption,
    StoreUnavailable,
)
from intervalq.rules import Advance, Drop, Hold, Inspect, Resume, Settings
from intervalq.store import open_store
from intervalq.testing import StoreSuite
from intervalq_stores._files import locked_file
from intervalq_stores.sqlite import _queue_database, _store, queues
from intervalq_stores.sqlite.queues import SQLiteStore
from stores import file_stores
from stores.file_stores import only_the_end_of_the_hold_wakes, outcomes_of_a_failing_write

anyio_backend = both_backends
path = file_stores.sqlite_path
store = file_stores.sqlite_store

EACH_SECOND = Settings(interval=1_000_000)
EPHEMERAL = Settings(interval=1_000_000, ephemeral=True)
TAKE = Advance(settings=EACH_SECOND, nonce="n", take=1)


class TestSQLiteStore(StoreSuite):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return f"sqlite://{tmp_path}/new%20folder/state.db"


# --- the database -----------------------------------------------------------------------------------


async def test_the_files_and_their_folder_are_private_and_the_log_is_gone_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    store = SQLiteStore(f"sqlite://{folder}/state.db")
    await store.apply("q", TAKE)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = ("state.db", "state.db-shm", "state.db-wal", "state.db.lock")
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in folder.iterdir()} == dict.fromkeys(files, "0o600")
    assert await at_rest(store) == ["state.db", "state.db.lock"]
    assert (await store.apply("q", TAKE)).taken[0].ticket == 2


async def test_each_step_is_synced_to_a_log(store: SQLiteStore) -> None:
    modes: list[object] = []
    write = store._database.write

    def look(changes: dict[str, _queue_database.Change], sweep: int | None) -> None:
        modes.extend(store._database._rows("SELECT * FROM pragma_synchronous, pragma_journal_mode")[0])
        write(changes, sweep)

    await store.apply("q", TAKE)
    store._database.write = look  # type: ignore[method-assign]
    await store.apply("q", TAKE)
    await at_rest(store)
    await store.apply("q", TAKE)
    assert modes == [2, "wal", 2, "wal"]


async def test_one_connection_serves_steps_that_follow_each_other(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def counted(*arguments: object, **more: object) -> sqlite3.Connection:
        made.append(connect(*arguments, **more))  # type: ignore[call-overload]
        return made[-1]

    await store.apply("q", TAKE)
    monkeypatch.setattr(sqlite3, "connect", counted)
    for _ in range(20):
        await store.apply("q", TAKE)
    assert len(made) <= 1  # one more if the machine paused for a second


async def test_nothing_is_written_when_nothing_changed(store: SQLiteStore, path: Path) -> None:
    await store.apply("q", Inspect())
    await store.apply("q", Drop())
    assert not path.exists()
    await store.apply("q", TAKE)
    log = path.with_name("state.db-wal")
    before = path.stat(), log.stat()
    await store.apply("q", Inspect())
    await store.apply("missing", Hold())
    assert (path.stat(), log.stat()) == before


async def test_fields_and_columns_that_are_not_known_are_kept(store: SQLiteStore, path: Path) -> None:
    make(path, {"other": text(), "q": text(comment={"wait": 1.5, "ü": None})})
    with opened(path) as connection:
        connection.executescript("ALTER TABLE queues ADD COLUMN note; UPDATE queues SET note = 'x';")
    answer = await store.apply("q", Advance(take=2))
    assert answer.state is not None
    await at_rest(store)
    with opened(path) as connection:
        found = {name: (json.loads(data), note) for name, data, _, note in connection.execute(
            "SELECT * FROM queues"
        )}  # fmt: skip
    assert found == {
        "other": (record(), "x"),
        "q": ({"comment": {"wait": 1.5, "ü": None}, **answer.state.to_dict()}, "x"),
    }


async def test_idle_keyed_records_make_room_for_a_new_one(store: SQLiteStore, path: Path) -> None:
    take = Advance(settings=EPHEMERAL, nonce="n", take=1)
    limited = Advance(
        settings=Settings(interval=1, max_running=1, ephemeral=True),
        nonce="n",
        take=1,
        reach=rules.FOREVER // 2,
        lease=1,
    )
    await store.apply("busy:1", take)
    await store.apply("kept", TAKE, now=0)
    await store.apply("gone:1", take, now=0)
    await store.apply("ran:1", limited, now=0)  # runs when written; its lease has lapsed since
    await store.apply("held:1", take, now=0)
    await store.apply("held:1", Hold(), now=0)
    await store.apply("broken:1", take, now=0)
    await store.apply("newer:1", take, now=0)
    await at_rest(store)
    with opened(path) as connection:
        for name, data in (("broken:1", "{"), ("newer:1", text(version=rules.LAYOUT + 1))):
            connection.execute("UPDATE queues SET record = ? WHERE name = ?", [data, name])
    await store.apply("kept", Advance(take=1))
    await store.apply("given", TAKE, now=10**15)
    assert "gone:1" in await store.names()
    await store.apply("new", TAKE)
    assert await store.names() == ["broken:1", "busy:1", "given", "held:1", "kept", "new", "newer:1"]
    await at_rest(store)
    assert {name: rows(path)[name] for name in ("broken:1", "newer:1")} == {
        "broken:1": "{",
        "newer:1": text(version=rules.LAYOUT + 1),
    }


async def test_a_new_record_looks_at_a_bounded_number_of_old_ones_and_gets_through_all(
    store: SQLiteStore, path: Path
) -> None:
    """Records that can't be removed must not keep others from their turn."""
    make(path, {})
    dead = text(ephemeral=True, due=-(10**9))
    held = text(ephemeral=True, due=-(10**9), held_since=0, held_until=rules.FOREVER)
    with opened(path) as connection:
        for number in range(100):
            connection.execute(
                "INSERT INTO queues VALUES (?, ?, ?)", [f"q:{number}", held if number < 50 else dead, number]
            )
    left = []
    for number in range(8):
        await store.apply(f"new{number}", TAKE)
        left.append(len([name for name in await store.names() if name.startswith("q:")]))
    assert left[-1] == 50
    assert all(
        before - after <= _queue_database._SWEPT for before, after in zip([100, *left], left, strict=False)
    )


async def test_steps_that_wait_share_one_transaction_and_each_sees_the_one_before(
    store: SQLiteStore, path: Path
) -> None:
    tickets: list[int] = []
    commits: list[int] = []
    write = store._database.write

    def counted(changes: dict[str, _queue_database.Change], sweep: int | None) -> None:
        commits.append(len(changes))
        write(changes, sweep)

    store._database.write = counted  # type: ignore[method-assign]

    async def take() -> None:
        tickets.append((await store.apply("q", TAKE)).taken[0].ticket)

    async with anyio.create_task_group() as group:
        with locked_file.SharedFile(path, store.url).locked():
            for number in range(1, 51):
                group.start_soon(take)
                while len(store._thread._jobs) < number:
                    await checkpoint()
    assert sorted(tickets) == list(range(1, 51))
    assert commits == [1]


async def test_when_the_writing_fails_only_steps_that_changed_nothing_stand(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_queue_database, "MAX_TEXT", 100)
    outcomes = await outcomes_of_a_failing_write(store, path)
    monkeypatch.undo()
    assert outcomes == ["full", "full", "none"]  # the last one saw what was not kept
    assert await store.names() == []
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


# --- where it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///a/b?mode=ro",
        "sqlite:///a/b?",
        "sqlite:///a/b#c",
        "sqlite://host/a",
        "sqlite://a",
        "sqlite:///a/",
        "sqlite:///a%00b",
        "sqlite://[/a",
    ],
)
def test_urls_that_make_no_sense_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:////", "sqlite:///:memory:", "sqlite://:memory:"]
)
def test_a_database_in_memory_is_the_memory_store(url: str) -> None:
    with pytest.raises(InvalidOption, match="memory://"):
        open_store(url)


async def test_a_path_with_odd_characters_comes_back_from_its_url(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a b?#%41\n\xff") / "ü&mode=ro.db"
    url = f"sqlite{path.as_uri()[4:]}"
    store = open_store(url)
    assert store.url == url == SQLiteStore(f"sqlite://localhost{url[9:]}").url
    assert SQLiteStore(url.replace("///", "////", 1)).url == url  # as others write a whole path
    await store.apply("q", TAKE)
    assert path.exists()
    assert await store.names() == ["q"]


async def test_a_path_below_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = SQLiteStore(f"sqlite://{tmp_path}/file/state.db")
    with pytest.raises(StoreUnavailable, match="give another path"):
        await store.apply("q", TAKE)
    assert any(level == "error" for level, _ in await store.advice())


async def test_a_network_file_system_is_refused(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "file_system", lambda _: "nfs4")
    for call in (lambda: store.apply("q", TAKE), store.names):
        with pytest.raises(InsecurePath, match=r"network file system \(nfs4\).*local disk"):
            await call()
    assert list(path.parent.iterdir()) == []


# --- waking -----------------------------------------------------------------------------------------


async def test_only_the_end_of_the_hold_wakes(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await only_the_end_of_the_hold_wakes(store, SQLiteStore(store.url), monkeypatch)


async def test_a_change_in_the_same_tick_as_the_last_look_wakes_too(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's size and time can be the same before and after, so it is checked again a moment later."""
    await store.apply("q", Hold(settings=EACH_SECOND, nonce="n"))
    monkeypatch.setattr(queues, "stamp", lambda _: (1, 1, 1))
    monkeypatch.setattr(queues, "_TICK", 2**63)
    with anyio.fail_after(20):
        async with store.wakeups("q") as wait:
            await store.apply("q", Resume())
            monkeypatch.setattr(queues, "_TICK", 0)
            await wait()


async def test_a_broken_database_wakes_so_that_the_step_after_says_it(store: SQLiteStore, path: Path) -> None:
    await store.apply("q", Hold(settings=EACH_SECOND, nonce="n"))
    await at_rest(store)
    with anyio.fail_after(20):
        async with store.wakeups("q") as wait:
            path.write_text("broken")
            await wait()
            path.unlink()
            await wait()
