from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends import both_backends
from databases import at_rest, make, names, opened, rows, text
from intervalq.errors import InsecurePath, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from intervalq_stores.sqlite import _queue_database as sqlite_queue_database
from intervalq_stores.sqlite.queues import SQLiteStore
from small_disks import mounted
from stores import file_stores
from stores.file_stores import PLANTED, TAKE, plant

anyio_backend = both_backends
path = file_stores.sqlite_path
store = file_stores.sqlite_store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "256k") as disk:
        yield disk


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler


# --- the disk ---------------------------------------------------------------------------------------


async def test_a_full_disk_leaves_the_old_state_whole(small_disk: Path) -> None:
    path = small_disk / "state.db"
    store = SQLiteStore(f"sqlite://{path}")
    await store.apply("q", TAKE)
    filler = fill(small_disk)
    tickets = [1]
    refused = 0
    while refused < 3:  # the log has some room left, and has room again after a checkpoint
        try:
            tickets.append((await store.apply("q", TAKE)).taken[0].ticket)
        except StoreFull as error:
            assert "make room" in str(error)
            refused += 1
    filler.unlink()
    tickets.append((await store.apply("q", TAKE)).taken[0].ticket)
    assert tickets == list(range(1, len(tickets) + 1))
    assert await store.names() == ["q"]
    assert await at_rest(store) == ["state.db", "state.db.lock"]
    with opened(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_database_for_which_there_is_no_room_is_not_begun(small_disk: Path) -> None:
    store = SQLiteStore(f"sqlite://{small_disk}/state.db")
    await store.apply("q", TAKE, now=0)
    await at_rest(store)
    (small_disk / "state.db").unlink()
    filler = fill(small_disk)
    with pytest.raises(StoreFull, match="make room"):
        await store.apply("q", TAKE)
    assert names(small_disk) == ["filler", "state.db.lock"]
    filler.unlink()
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


async def test_a_disk_that_takes_no_writes_is_told(small_disk: Path) -> None:
    path = small_disk / "state.db"
    store = SQLiteStore(f"sqlite://{path}")
    await store.apply("q", TAKE)
    await at_rest(store)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreReadOnly, match="give another path"):
        await store.apply("q", TAKE)
    with pytest.raises(StoreUnavailable, match="give another path"):
        await store.names()
    assert any(level == "error" for level, _ in await store.advice())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "StoreTimeout"),
        (sqlite3.SQLITE_LOCKED, "StoreTimeout"),
        (sqlite3.SQLITE_FULL, "StoreFull"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "StoreFull"),
        (sqlite3.SQLITE_IOERR_FSYNC, "StoreUnavailable"),
        (sqlite3.SQLITE_CANTOPEN, "StoreUnavailable"),
        (sqlite3.SQLITE_PROTOCOL, "StoreUnavailable"),
        (sqlite3.SQLITE_READONLY_DIRECTORY, "StoreReadOnly"),
        (sqlite3.SQLITE_PERM, "StoreReadOnly"),
        (sqlite3.SQLITE_CORRUPT_VTAB, "CorruptState"),
        (sqlite3.SQLITE_NOTADB, "CorruptState"),
        (None, "StoreUnavailable"),
    ],
)
async def test_what_sqlite_says_has_a_name_and_undoes_the_step(
    store: SQLiteStore, code: int | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply("q", TAKE)
    error = sqlite3.OperationalError("said so")
    if code is not None:
        error.sqlite_errorcode = code

    def broken() -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store._database, "still_ours", broken)  # all is written, and not committed
        with pytest.raises(StoreError, match="said so") as raised:
            await store.apply("q", TAKE)
    assert type(raised.value).__name__ == kind
    assert (await store.apply("q", TAKE)).taken[0].ticket == 2


async def test_a_place_where_sqlite_can_keep_no_log_is_refused(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(path, {"q": text()})
    with opened(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    rows = store._database._rows

    def without(statement: str, *values: object) -> object:
        return [] if "= WAL" in statement else rows(statement, *values)

    monkeypatch.setattr(store._database, "_rows", without)
    with pytest.raises(StoreUnavailable, match="can't use a write-ahead log here, only delete"):
        await store.apply("q", TAKE)
    monkeypatch.undo()
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


# --- what is not to be trusted ----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", ".lock", *sqlite_queue_database.BESIDE])
@pytest.mark.parametrize("what", PLANTED)
async def test_files_that_others_may_have_planted_are_refused(
    store: SQLiteStore, path: Path, end: str, what: str
) -> None:
    make(path, {"q": text()})
    planted = path.with_name(f"state.db{end}")
    planted.unlink(missing_ok=True)
    precious = plant(planted, what, lambda file: make(file, {"q": text()}))
    with pytest.raises(InsecurePath, match=f"state.db{end}'.*: |anybody may write"):
        await store.apply("q", TAKE)
    if end != ".lock":  # which reading doesn't need
        with pytest.raises(InsecurePath):
            await store.names()
    if precious.exists():
        assert rows(precious) == {"q": text()}
    assert not path.with_name("nothing").exists()
    assert any(level == "error" for level, _ in await store.advice())


async def test_a_link_planted_between_the_check_and_the_opening_is_refused(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = path.with_name("precious")
    for each in (path, precious):
        make(each, {"q": text()})
    connect = sqlite3.connect

    def late(*arguments: object, **more: object) -> sqlite3.Connection:
        path.unlink()
        path.symlink_to(precious)
        return connect(*arguments, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", late)
    with pytest.raises(InsecurePath, match="symbolic link"):
        await store.apply("q", TAKE)
    monkeypatch.undo()
    assert rows(precious) == {"q": text()}


async def test_a_folder_that_anybody_may_write_is_refused_unless_it_is_sticky(
    store: SQLiteStore, path: Path
) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(InsecurePath, match="chmod o-w"):
        await store.apply("q", TAKE)
    assert names(path.parent) == []
    path.parent.chmod(0o1777)
    await store.apply("q", TAKE)


# --- doctor -----------------------------------------------------------------------------------------


async def test_advice_of_a_store_that_is_well(tmp_path: Path) -> None:
    store = SQLiteStore(f"sqlite://{tmp_path}/new/state.db")
    found = await store.advice()
    assert {level for level, _ in found} == {"ok"}
    assert names(tmp_path) == []
    await store.apply("q", TAKE)
    await store.apply("r", TAKE)
    found = await store.advice()
    assert {level for level, _ in found} == {"ok"}
    sentences = " ".join(sentence for _, sentence in found)
    for part in ("state.db'", "2 queues", "intact", "journal mode is wal", "file system is"):
        assert part in sentences
    assert await at_rest(store) == ["state.db", "state.db.lock"]


async def test_advice_finds_damage_that_no_step_has_met(store: SQLiteStore, path: Path) -> None:
    make(path, {"q": text(), **{f"q:{number}": text() for number in range(200)}})
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\xff" * 4096)
    errors = [sentence for level, sentence in await store.advice() if level == "error"]
    assert len(errors) == 1
    assert "left as it is" in errors[0]
