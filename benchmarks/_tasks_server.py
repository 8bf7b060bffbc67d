"""One PostgreSQL for all contenders of durable tasks: a new database for each run, made from a template."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

import _store  # noqa: F401 - it makes `servers` importable
import postgres_servers
import servers
from intervalq.tasks import sync
from task_peers import Contender
from task_peers.base import QUEUE

# Work that the server does only now and then must not happen during a row.
_SETTINGS = {"max_wal_size": "'8GB'", "checkpoint_timeout": "'1h'"}

Install = Callable[[Contender, str], None]


class Databases:
    """Creates databases. Each contender's schema is created once, and runs get copies of it."""

    def __init__(self, url: str, install: Install, *, commit: str) -> None:
        self.url = url
        self.pooled: str | None = None
        self._install = install
        self._templates: dict[str, str] = {}
        self._numbers = itertools.count()
        self._admin = psycopg.connect(url, autocommit=True)
        for name, value in {**_SETTINGS, "synchronous_commit": commit}.items():
            self._do(f"ALTER SYSTEM SET {name} = {value}")
        self._do("SELECT pg_reload_conf()")
        self.version = str(self._admin.execute("SHOW server_version").fetchall()[0][0])

    @contextlib.contextmanager
    def database(self, contender: Contender) -> Iterator[str]:
        """The URL of a new database with the contender's schema; it exists until the context ends."""
        template = self._templates.get(contender.place)
        if template is None:
            template = self._create("template1")
            self._install(contender, self.of(template))
            self._templates[contender.place] = template
        name = self._create(template)
        try:
            yield self.of(name)
        finally:
            self._do(f"DROP DATABASE {name} WITH (FORCE)")

    def of(self, name: str, url: str = "") -> str:
        """The URL of a database."""
        return f"{(url or self.url).rpartition('/')[0]}/{name}"

    def _create(self, template: str) -> str:
        name = f"bench{next(self._numbers)}"
        self._do(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _do(self, statement: str) -> None:
        self._admin.execute(statement.encode())

    def close(self) -> None:
        """Close the connection."""
        self._admin.close()


@contextlib.contextmanager
def databases(install: Install, *, commit: str) -> Iterator[Databases]:
    """A new server, which runs until the end of the context."""
    with servers.running(postgres_servers.postgres()) as server:
        made = Databases(server.url, install, commit=commit)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def pooler(url: str) -> Iterator[str]:
    """The URL of a PgBouncer in front of a server.

    Raises:
        servers.NotInstalledError: there is none here.
    """
    with servers.running(postgres_servers.pgbouncer(url)) as server:
        yield server.url


@contextlib.contextmanager
def files(contender: Contender, install: Install) -> Iterator[str]:
    """The URL of a new SQLite database."""
    with tempfile.TemporaryDirectory(prefix="intervalq-tasks-") as folder:
        url = f"sqlite://{Path(folder).resolve()}/bench.db"
        install(contender, url)
        yield url


@contextlib.contextmanager
def old_snapshot(url: str, *, held: bool) -> Iterator[None]:
    """A transaction of another session that keeps a snapshot of the tables as they are now."""
    if not held:
        yield
        return
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


@contextlib.contextmanager
def looking(contender: Contender, url: str) -> Iterator[Callable[[], bool]]:
    """A function that returns whether the database has any work left."""
    if not contender.left:
        with sync.Tasks(url) as tasks:
            yield lambda: bool(tasks.queues(QUEUE))
        return
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite://")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as file:
            yield lambda: file.execute(contender.left).fetchone() is not None
    else:
        with psycopg.connect(url, autocommit=True) as link:
            yield lambda: link.execute(contender.left.encode()).fetchone() is not None


def server_cpu(url: str) -> float:
    """CPU seconds that the PostgreSQL of a database has used so far, all of its processes; NaN: not known."""
    if not url.startswith("postgres") or not Path("/proc/self/stat").exists():
        return math.nan
    with psycopg.connect(url, autocommit=True) as link:
        main = _stat(link.info.backend_pid)[_PARENT]
    alive = [stat for stat in map(_stat, _numbers(Path("/proc"))) if stat and stat[_PARENT] == main]
    ended = _stat(main)
    ticks = sum(sum(stat[_OWN]) for stat in alive) + sum(ended[_OWN]) + sum(ended[_CHILDREN])
    return ticks / os.sysconf("SC_CLK_TCK")


# Places among the fields after the name in /proc/PID/stat.
_PARENT = 1
_OWN = slice(11, 13)
_CHILDREN = slice(13, 15)  # of children that have ended


def _numbers(folder: Path) -> Iterator[int]:
    return (int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _stat(process: int) -> list[int]:
    """The fields of /proc/PID/stat after the name, as numbers; empty if the process has ended.

    The state, a letter, is 0.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return [0, *map(int, text.rpartition(")")[2].split()[1:])]
