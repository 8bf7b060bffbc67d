"""Hand-written baselines over a file and over SQLite; both block their thread."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from abc import abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

from peers.base import Adapter, Job, Tally


class _Local(Adapter):
    @property
    def path(self) -> Path:
        """A path beside the store's own file."""
        return Path(urlsplit(self.work.url).path).with_name("floor")

    @property
    def in_batches(self) -> bool:
        """See `Adapter.in_batches`."""
        return True

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            self.step(self.work.callers)
            tally.jobs += self.work.callers

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        self.step(1)
        job()

    @abstractmethod
    def step(self, count: int) -> None:
        """Do this many at once."""


class Rewrite(_Local):
    """A file that is rewritten under a lock."""

    def step(self, count: int) -> None:
        """Read the file, increment the count, and rewrite the file, under its lock."""
        path = self.path
        with path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = json.loads(path.read_text()) if path.exists() else {"ticket": 0}
            state["ticket"] += count
            new = path.with_suffix(".new")
            with new.open("w") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)


class Update(_Local):
    """A row that is updated, in one transaction for all callers."""

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE IF NOT EXISTS queue (name TEXT PRIMARY KEY, ticket INTEGER)")
        self._database.execute("INSERT OR IGNORE INTO queue VALUES ('bench', 0)")

    def step(self, count: int) -> None:
        """Increment one by one, in one transaction."""
        self._database.execute("BEGIN IMMEDIATE")
        for _ in range(count):
            self._database.execute(
                "UPDATE queue SET ticket = ticket + 1 WHERE name = 'bench' RETURNING ticket"
            ).fetchone()
        self._database.execute("COMMIT")
