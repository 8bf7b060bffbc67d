"""A hand-written baseline over SQLite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from typing import Any

from task_peers.base import Adapter, batches, carried

_CLAIM = """
UPDATE floor SET owner = ? WHERE id IN (SELECT id FROM floor WHERE owner IS NULL ORDER BY id LIMIT ?)
RETURNING id, value
"""


class Fused(Adapter):
    """Delete the last batch and claim the next, in one transaction. Options: batch."""

    async def install(self) -> None:
        """See `Adapter.install`."""
        await self.open()
        self.link.execute("CREATE TABLE floor (id INTEGER PRIMARY KEY, owner INT, value TEXT NOT NULL)")
        self.link.execute("CREATE INDEX ready ON floor (id) WHERE owner IS NULL")

    async def open(self) -> None:
        """See `Adapter.open`."""
        path = self.given.url.removeprefix("sqlite://")
        self.link = sqlite3.connect(path, isolation_level=None, timeout=60)
        # As intervalq has it: what is committed survives a power failure.
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 4000"):
            self.link.execute(f"PRAGMA {pragma}")

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        for numbers in batches(count):
            self.link.execute("BEGIN IMMEDIATE")
            self.link.executemany(
                "INSERT INTO floor (value) VALUES (?)", [(text,) for text in carried(numbers)]
            )
            self.link.execute("COMMIT")

    async def insert(self, number: int) -> None:
        """See `Adapter.insert`."""
        self.link.execute("INSERT INTO floor (value) VALUES (?)", carried([number]))

    async def work(self) -> None:
        """See `Adapter.work`."""
        note, me = self.job(), os.getpid()
        rows: Sequence[tuple[Any, ...]] = ()
        while True:
            self.link.execute("BEGIN IMMEDIATE")
            self.link.executemany("DELETE FROM floor WHERE id = ?", [(row[0],) for row in rows])
            rows = self.link.execute(_CLAIM, (me, self.given.options["batch"])).fetchall()
            self.link.execute("COMMIT")
            for row in rows:
                note(row[1])
            if not rows:
                await asyncio.sleep(0.001)  # noqa: TID251
