"""Fixtures that every test may ask for: real servers, a quiet environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

import servers
from servers import Server

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_store_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERVALQ_STORE", raising=False)


@contextmanager
def _url(variable: str | None, make: Callable[[], Server], answers: Callable[[str], None]) -> Iterator[str]:
    """That of the server that the environment names, else of one started for the session."""
    named = os.environ.get(variable) if variable else None
    if named:
        answers(named)  # one that is named but doesn't answer is an error: nobody wants it skipped in silence
        yield named
        return
    with servers.running(_made(make)) as server:
        yield server.url


def _made(make: Callable[[], T]) -> T:
    try:
        return make()
    except servers.NotInstalledError as missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing} (a continuous integration run skips no server)", pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis; it may have records of others."""
    make = lambda: servers.redis_server(servers.redis_binary())  # noqa: E731 - shorter than its name
    with _url("INTERVALQ_TEST_REDIS_URL", make, servers.redis_answers) as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """A Valkey; it may have records of others."""
    make = lambda: servers.redis_server(servers.valkey_binary())  # noqa: E731
    with _url("INTERVALQ_TEST_VALKEY_URL", make, servers.redis_answers) as url:
        yield url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """A cluster of one node, which refuses undeclared keys and those of several slots."""
    with servers.redis_cluster(_made(servers.valkey_binary)) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL; it may have records of others."""
    with _url("INTERVALQ_TEST_POSTGRES_URL", servers.postgres_server, servers.postgres_answers) as url:
        yield url


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    """A PgBouncer in transaction mode in front of that PostgreSQL."""
    make = lambda: servers.pgbouncer(postgres_url)  # noqa: E731
    with _url(None, make, servers.postgres_answers) as url:
        yield url


@pytest.fixture
def own_redis() -> Iterator[Callable[..., Server]]:
    """Starts a Redis that the test may kill (`stop`) and start again; takes options of its command line."""
    yield from _own(lambda *options, **more: servers.redis_server(servers.redis_binary(), *options, **more))


@pytest.fixture
def own_postgres() -> Iterator[Callable[..., Server]]:
    """Starts a PostgreSQL that the test may stop and start again."""
    yield from _own(servers.postgres_server)


def _own(make: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*options: str, **more: str) -> Server:
        started.append(_made(lambda: make(*options, **more)))
        return started[-1].start()

    yield start
    servers.end_all(started)
