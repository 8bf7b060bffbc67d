"""The stores of a storm: how each is started, and the faults that it can have."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import postgres_servers
import servers
from intervalq_stores.nats._server import Server as NATSServer
from servers import Server

_ORDERLY: Final = 10
"""Seconds that a server gets to end in an orderly way."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a store."""

    name: str
    do: Callable[[], None]
    loses: bool = False
    """It may undo writes that were acknowledged."""


class Target(ABC):
    """A store that runs while the context is open."""

    url: str

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _open(self) -> None:
        """Start its server, if it has one."""

    def faults(self) -> list[Fault]:
        """The faults that it can have."""
        return []


class RedisTarget(Target):
    """A Redis or Valkey, with or without a log of its own."""

    def __init__(self, binary: Callable[[], Path], *, durable: bool) -> None:
        super().__init__()
        self._binary = binary
        self._durable = durable

    def _open(self) -> None:
        options = ("--appendonly", "yes", "--appendfsync", "always") if self._durable else ()
        self.server = servers.redis_server(self._binary(), *options)
        self._stack.callback(self.server.close)
        self.server.start()
        self.url = self.server.url

    def faults(self) -> list[Fault]:
        """See `Target.faults`."""
        return [
            Fault("server killed", self._kill, loses=not self._durable),
            Fault("server restarted", self._restart, loses=not self._durable),
            Fault("FLUSHALL", lambda: self._say("FLUSHALL"), loses=True),
            Fault("SCRIPT FLUSH", lambda: self._say("SCRIPT", "FLUSH")),
            Fault("connections cut", lambda: self._say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")),
        ]

    def _say(self, *words: str) -> None:
        with servers.redis_client(self.url) as client:
            client.execute_command(*words)

    def _kill(self) -> None:
        self.server.stop()
        self.server.start()

    def _restart(self) -> None:
        import redis

        with (
            servers.redis_client(self.url) as client,
            suppress(redis.ConnectionError),
        ):  # it ends without a word
            client.execute_command("SHUTDOWN")
        self._kill()


class PostgresTarget(Target):
    """A PostgreSQL."""

    def _open(self) -> None:
        self.server: Server = postgres_servers.postgres()
        self._stack.callback(self.server.close)
        self.server.start()
        self.url = self.server.url

    def faults(self) -> list[Fault]:
        """See `Target.faults`."""
        return [
            Fault("server killed", self._kill),
            Fault("server restarted", self._restart),
            Fault("backends ended", self._end_backends),
            Fault("backend killed -9", self._kill_backend),
        ]

    def _kill(self) -> None:
        self.server.stop()
        self.server.start()

    def _restart(self) -> None:
        running = self.server.folder.path / "data" / "postmaster.pid"
        # A fast shutdown: sessions end, everything is written.
        os.kill(int(running.read_text().split()[0]), signal.SIGINT)
        deadline = time.monotonic() + _ORDERLY
        while running.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._kill()  # also a server that doesn't get that far, as a supervisor would

    def _end_backends(self) -> None:
        with self._session() as session:
            session.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    def _kill_backend(self) -> None:
        """The server takes this for a sign of damaged memory: it ends all sessions, and recovers."""
        with self._session() as session:
            row = session.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() LIMIT 1"
            ).fetchone()
        if row is not None:
            os.kill(row[0], signal.SIGKILL)
            servers.until(self._answers)

    def _answers(self) -> bool:
        import psycopg

        try:
            postgres_servers.answers(self.url)
        except psycopg.OperationalError:
            return False
        return True

    @contextmanager
    def _session(self) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as session:
            yield session


class NATSTarget(Target):
    """A NATS with files."""

    def _open(self) -> None:
        self.server: Server = servers.nats_server()
        self._stack.callback(self.server.close)
        self.server.start()
        self.url = self.server.url

    def faults(self) -> list[Fault]:
        """See `Target.faults`."""
        return [
            Fault("server killed", self._kill),
            Fault("log purged", lambda: self._ask("STREAM.PURGE.intervalq-log"), loses=True),
            Fault("log deleted", lambda: self._ask("STREAM.DELETE.intervalq-log"), loses=True),
            Fault("checkpoints purged", lambda: self._ask("STREAM.PURGE.intervalq-state")),
        ]

    def _kill(self) -> None:
        self.server.stop()
        self.server.start()

    def _ask(self, what: str) -> None:
        from intervalq.errors import StoreUnavailable

        async def ask() -> None:
            connection = NATSServer(self.url)
            with suppress(StoreUnavailable):  # it isn't there at the moment
                await connection.ask(what)
            await connection.close()

        asyncio.run(ask())


class FileTarget(Target):
    """A file in a folder of its own: its faults are those of the processes that use it."""

    def __init__(self, scheme: str, name: str) -> None:
        super().__init__()
        self._form = f"{scheme}://{{folder}}/{name}"

    def _open(self) -> None:
        folder = servers.Folder("storm")
        self._stack.callback(folder.remove)
        self.url = self._form.format(folder=folder.path)


TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "redis": lambda: RedisTarget(servers.redis_binary, durable=False),
    "redis-aof": lambda: RedisTarget(servers.redis_binary, durable=True),
    "valkey": lambda: RedisTarget(servers.valkey_binary, durable=False),
    "postgres": PostgresTarget,
    "nats": NATSTarget,
    "json": lambda: FileTarget("file", "state.json"),
    "sqlite": lambda: FileTarget("sqlite", "state.db"),
}
