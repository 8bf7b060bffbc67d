"""Databases of the SQLite store, as other programs read and write them, and processes that use one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from intervalq.errors import StoreTimeout
from intervalq.rules import Settings, State
from intervalq_stores.sqlite import _queue_database
from intervalq_stores.sqlite.queues import SQLiteStore

TAKING = """
import os, signal, sys, threading, anyio
from intervalq.rules import Advance, Settings
from intervalq_stores.sqlite.queues import SQLiteStore
store = SQLiteStore(f"sqlite://{sys.argv[1]}")
store.patience = 120
def taken(count=1):
    async def main():
        for _ in range(count):
            answer = await store.apply("q", Advance(settings=Settings(1), nonce="n", take=1))
            tickets.append(answer.taken[0].ticket)
    tickets = []
    anyio.run(main)
    return tickets
def take(count=1):
    os.write(1, f"{' '.join(map(str, taken(count)))}\\n".encode())
"""
"""How scripts for `process` begin: `take(n)` takes n tickets and prints them, `taken(n)` returns them."""


def record(**changes: object) -> dict[str, object]:
    """Return a record in which some fields are changed."""
    state = State(generation="g", settings=Settings(interval=1_000_000), due=0, current_due=0, last_now=0)
    return {**state.to_dict(), **changes}


def text(**changes: object) -> str:
    return json.dumps(record(**changes))


async def refusal(call: Callable[[], Awaitable[object]]) -> str:
    """Return the error of a call with a very short time limit, made once the store's thread is ready to try.

    On a busy machine the thread may not be ready within the limit; then the error says only that.
    """
    while True:
        with pytest.raises(StoreTimeout) as raised:
            await call()
        if "the disk did not answer" not in str(raised.value):
            return str(raised.value)


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database as another program would; changes are committed, and no other file is left."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def make(path: Path, rows: dict[str, object]) -> None:
    """Create a database with these texts as records."""
    with opened(path) as connection:
        connection.executescript(f"{_queue_database._SCHEMA} PRAGMA journal_mode = WAL;")
        for name, value in rows.items():
            connection.execute("INSERT INTO queues (name, record) VALUES (?, ?)", [name, value])
    path.chmod(0o600)


def rows(path: Path) -> dict[str, object]:
    with opened(path) as connection:
        return dict(connection.execute("SELECT name, record FROM queues"))


def whole(path: Path) -> bool:
    """Return whether SQLite's integrity check passes."""
    with opened(path) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def at_rest(store: SQLiteStore) -> list[str]:
    """Return the names of the files that exist once the database is closed."""
    await store.aclose()
    with anyio.fail_after(20):
        while store._thread._thread is not None:
            await checkpoint()
    return names(store._path.parent)
