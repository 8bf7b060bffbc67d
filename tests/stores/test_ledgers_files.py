"""Ledgers in SQLite databases and JSON files: the properties that only files have."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends import both_backends
from databases import opened
from intervalq.errors import CorruptState, InvalidName, InvalidOption, StoreError, StoreFull, VersionMismatch
from intervalq.ledger.rules import Beat, Claim, Count, Drop, Ended, Expire, Look, Record, Verdict
from intervalq.rules import Advance, Settings
from intervalq.tasks.rules import Insert, Modify
from intervalq_stores._files import locked_file
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores.json import ledgers as json_ledgers
from intervalq_stores.json.ledgers import JSONLedgerStore
from intervalq_stores.sqlite._ledger_rows import SWEPT
from intervalq_stores.sqlite.ledgers import SQLiteLedgerStore
from intervalq_stores.sqlite.queues import SQLiteStore
from intervalq_stores.sqlite.tasks import SQLiteTaskStore

anyio_backend = both_backends

HOUR = 3_600_000_000
ROW = Record("s", HOUR, (Ended("a", "1"),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def sqlite(path: Path) -> SQLiteLedgerStore:
    return SQLiteLedgerStore(f"sqlite://{path}")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return tmp_path / "state.json.ledgers" / "run.json"


@pytest.fixture
def files(tmp_path: Path) -> JSONLedgerStore:
    return JSONLedgerStore(f"file://{tmp_path}/state.json")


def rows(path: Path, table: str) -> int:
    with opened(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM intervalq_{table}").fetchone()[0])


# --- SQLite -------------------------------------------------------------------------------------------


async def test_queues_tasks_and_ledgers_share_a_database(sqlite: SQLiteLedgerStore, path: Path) -> None:
    url = f"sqlite://{path}"
    assert await sqlite.names() == []
    assert not (await sqlite.apply("run", Count())).found
    assert not path.exists()
    await SQLiteStore(url).apply("q", Advance(settings=Settings(interval=1), nonce="n", take=1))
    assert await sqlite.names() == []
    assert (await sqlite.apply("run", ROW)).found
    await SQLiteTaskStore(url).apply(Modify(inserts=(Insert("q", "1", "id"),)))
    assert await SQLiteStore(url).names() == ["q"]
    assert await sqlite.names() == ["run"]


async def test_what_waits_at_the_same_time_shares_a_transaction_but_not_its_errors(
    sqlite: SQLiteLedgerStore, path: Path
) -> None:
    answers: dict[str, object] = {}

    async def ask(key: str) -> None:
        command = Record("s", HOUR, (Ended(key, key),)) if key else Expire(1 << 70)
        try:
            answers[key] = (await sqlite.apply("run", command)).verdicts
        except StoreError as error:
            answers[key] = error

    async with anyio.create_task_group() as group:
        with SharedFile(path, "the same").locked():
            for key in ("a", "", "b", "\ud800", "c"):
                group.start_soon(ask, key)
                await checkpoint()
                await checkpoint()
    for key in ("", "\ud800"):
        assert "can't be stored" in str(answers.pop(key))
    assert answers == {key: (Verdict("known", 1, key),) for key in "abc"}
    summary = (await sqlite.apply("run", Count())).summary
    assert summary is not None
    assert summary.done == 3


async def test_a_dropped_ledger_of_many_rows_goes_a_part_at_a_time(
    sqlite: SQLiteLedgerStore, path: Path
) -> None:
    await sqlite.apply("other", ROW)
    with opened(path) as connection:
        connection.execute("INSERT INTO intervalq_ledgers VALUES (77, NULL, 1, NULL, 0, 0, 0)")
        connection.executemany(
            "INSERT INTO intervalq_ledger_rows VALUES (77, ?, 'done', NULL, 1, '', 1)",
            [(str(number),) for number in range(SWEPT + 5)],
        )
    connection.close()
    assert await sqlite.names() == ["other"]
    await sqlite.apply("other", Beat("s", HOUR))
    assert rows(path, "ledger_rows") == 5 + 1
    assert (await sqlite.apply("other", Drop())).found
    assert [rows(path, table) for table in ("ledger_rows", "ledger_sessions", "ledgers")] == [0, 0, 0]


async def test_a_ledger_that_nobody_asks_for_expires_in_a_database(
    sqlite: SQLiteLedgerStore, path: Path
) -> None:
    now = (await sqlite.apply("old", ROW)).now
    await sqlite.apply("old", Expire(now))
    assert await sqlite.names() == []
    await sqlite.apply("new", Beat("s", HOUR))
    assert (rows(path, "ledgers"), rows(path, "ledger_rows")) == (1, 0)


async def test_tables_of_a_newer_version(sqlite: SQLiteLedgerStore, path: Path) -> None:
    await sqlite.apply("run", ROW)
    with opened(path) as connection:
        connection.execute("UPDATE intervalq_ledgers_version SET layout = 2")
    for command in (ROW, Count()):
        with pytest.raises(VersionMismatch):
            await sqlite.apply("run", command)


def test_memory_is_no_database() -> None:
    with pytest.raises(InvalidOption, match="memory://"):
        SQLiteLedgerStore("sqlite:///:memory:")


# --- JSON ---------------------------------------------------------------------------------------------


async def test_a_ledger_is_a_file_that_people_can_read(files: JSONLedgerStore, document: Path) -> None:
    await files.apply("run", Record("s", HOUR, (Ended("ü", '"x"'), Ended("b", "1", failed=True))))
    top = json.loads(document.read_text())
    assert top["name"] == "run"
    assert [(key, row[0], row[3]) for key, row in top["rows"].items()] == [
        ("ü", "done", '"x"'), ("b", "failed", "1"),
    ]  # fmt: skip
    assert document.stat().st_mode & 0o077 == 0
    await files.apply("run", Drop())
    assert list(document.parent.iterdir()) == []


async def test_a_name_leads_nowhere_else(files: JSONLedgerStore) -> None:
    with pytest.raises(InvalidName):
        await files.apply("../run", ROW)


async def test_a_document_that_would_be_too_large_is_refused_and_names_another_store(
    files: JSONLedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.apply("run", ROW)
    for module in (json_ledgers, locked_file):
        monkeypatch.setattr(module, "MAX_BYTES", 2_000)
    refused: list[str] = []

    async def ask(key: str, size: int) -> None:
        try:
            await files.apply("run", Record("s", HOUR, (Ended(key, "x" * size),)))
        except StoreFull as error:
            assert "sqlite:///" in str(error)
            refused.append(key)

    async with anyio.create_task_group() as group:
        for key, size in (("b", 1), ("c", 3_000), ("d", 1)):
            group.start_soon(ask, key, size)
    assert refused == ["c"]
    assert sorted(row.key for row in (await files.apply("run", Look())).rows) == ["a", "b", "d"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"intervalq_ledger": 1, "name": "Run"}', '{"intervalq_ledger": 1, "name": "run"}']
    + [
        f'{{"intervalq_ledger": 1, "name": "run", "created": {created}, "cancelled": {cancelled}, '
        f'"sessions": {sessions}, "rows": {rows}}}'
        for created, cancelled, sessions, rows in (
            ('"1"', "false", "{}", "{}"),
            ("1", "0", "{}", "{}"),
            ("1", "false", '{"s": 1.5}', "{}"),
            ("1", "false", "{}", '{"a": ["done", "s", 1, "", 1, 1]}'),
            ("1", "false", "{}", '{"a": ["gone", "s", 1, "", 1]}'),
            ("1", "false", "{}", '{"a": ["done", "s", 0, "", 1]}'),
        )
    ],
)
async def test_a_broken_document_is_left_as_it_is(
    files: JSONLedgerStore, document: Path, content: str
) -> None:
    document.parent.mkdir()
    document.write_text(content)
    for command in (ROW, Claim("s", HOUR, ("a",)), Look(), Drop()):
        with pytest.raises(CorruptState):
            await files.apply("run", command)
    assert document.read_text() == content


async def test_a_document_of_a_newer_version(files: JSONLedgerStore, document: Path) -> None:
    document.parent.mkdir()
    document.write_text('{"intervalq_ledger": 2}')
    with pytest.raises(VersionMismatch):
        await files.apply("run", ROW)


async def test_a_ledger_that_nobody_asks_for_expires_in_a_folder(
    files: JSONLedgerStore, document: Path
) -> None:
    now = (await files.apply("run", ROW)).now
    await files.apply("run", Expire(now))
    assert await files.names() == []
    (document.parent / "no ledger.json").write_text("")
    await files.apply("new", Beat("s", HOUR))
    assert await files.names() == ["new"]
    assert not document.exists()
