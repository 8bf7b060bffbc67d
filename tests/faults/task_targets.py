"""The stores of a storm over durable tasks, each with the ledger that is judged."""

from __future__ import annotations

import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Self

import postgres_servers
import servers
from faults.task_process import LEDGER
from intervalq.tasks.sync import Tasks as BlockingTasks

_DONE = "select task, count(*), min(claims) from ledger group by task"
_LEDGER = "create table if not exists ledger (task bigint, claims integer)"


class Target(ABC):
    """A store, and the ledger beside its tasks."""

    url: str

    @abstractmethod
    def restart(self) -> None:
        """End it at once, and start it again."""

    @abstractmethod
    def done(self) -> list[tuple[int, int, int]]:
        """The numbers in the ledger: how often each is there, and the least of what it says of its claim."""

    def faults(self) -> dict[str, Callable[[], None]]:
        return {"server restarted": self.restart}

    @abstractmethod
    def close(self) -> None:
        """Remove everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PostgresTarget(Target):
    def __init__(self) -> None:
        self._server = postgres_servers.postgres().start()
        self.url = self._server.url
        self._query(_LEDGER)

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def done(self) -> list[tuple[int, int, int]]:
        return self._query(_DONE)

    def _query(self, sql: str) -> list[tuple[int, int, int]]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._server.close()


class SQLiteTarget(Target):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="intervalq-")
        self._path = Path(self._folder.name) / "app.db"
        self.url = f"sqlite://{self._path}"
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute(_LEDGER)
        self._path.chmod(0o600)

    def restart(self) -> None:
        pass

    def faults(self) -> dict[str, Callable[[], None]]:
        return {}

    def done(self) -> list[tuple[int, int, int]]:
        with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as connection:
            return connection.execute(_DONE).fetchall()

    def close(self) -> None:
        self._folder.cleanup()


class RedisTarget(Target):
    """Some tasks insert an entry into the ledger, a queue; the others leave one as their result."""

    def __init__(self) -> None:
        options = ("--appendonly", "yes", "--appendfsync", "always")
        self._server = servers.redis_server(servers.redis_binary(), *options).start()
        self.url = self._server.url

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def done(self) -> list[tuple[int, int, int]]:
        with BlockingTasks(self.url) as tasks:
            entries = [task.value for task in tasks.tasks(LEDGER, limit=None)]
            entries += [one.result for one in tasks.outcomes(state="done", limit=None) if one.result]
        claims: dict[int, list[int]] = {}
        for number, claim in entries:
            claims.setdefault(number, []).append(claim)
        return [(number, len(those), min(those)) for number, those in claims.items()]

    def close(self) -> None:
        self._server.close()


TARGETS: dict[str, Callable[[], Target]] = {
    "postgres": PostgresTarget,
    "sqlite": SQLiteTarget,
    "redis": RedisTarget,
}
