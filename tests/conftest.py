"""Fixtures that every test may ask for: real servers, a quiet environment."""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

import order
import postgres_servers
import servers
from cli.command_line import CommandLine
from intervalq_stores.memory import ledgers, queues, tasks
from servers import Server
from service.processes import QUIET, Served

T = TypeVar("T")

# How long an example takes depends on how busy the machine is, so Hypothesis must not judge that.
settings.register_profile("busy", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """Make sure that interrupts arrive, and that the many processes of the tests reuse compiled modules.

    Otherwise each process would compile all modules again, which takes longer than most of its work.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cache: pytest.Cache | None = getattr(config, "cache", None)  # it may be switched off
    if cache is not None and os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir("bytecode"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by file, in the order in which the workers should get the files."""
    items.sort(key=order.rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> order.Scheduling | None:
    """Give whole files to the workers, and some together."""
    return order.schedule(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector pass over all that stays until the end: modules, and thousands of tests.

    It would walk through them again and again, for a tenth of the time of tests that run in this process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _no_store_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTERVALQ_STORE", raising=False)


@pytest.fixture(autouse=True)
def _no_action_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file in the user's state folder is for people."""
    monkeypatch.setenv("INTERVALQ_ACTIONS", os.devnull)


@pytest.fixture(autouse=True)
def _no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may have imported OpenTelemetry for another test; programs of their own show what it sees."""
    monkeypatch.setattr("intervalq._observe.telemetry.telemetry", lambda: None)


@pytest.fixture(autouse=True)
def _nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty `memory://` before each test, which could otherwise find a queue of another test."""
    for kept in (queues._PROCESS, tasks._PROCESS, ledgers._PROCESS):
        monkeypatch.setattr(kept, "_kept", {})


@contextmanager
def _url(variable: str | None, make: Callable[[], Server], answers: Callable[[str], None]) -> Iterator[str]:
    """The URL of the server that the environment names, or of one that is started for the session."""
    named = os.environ.get(variable) if variable else None
    if named:
        answers(named)  # if it doesn't answer, that is an error: its tests must not be skipped
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
    """The URL of a Redis, which may have records of other tests."""
    make = lambda: servers.redis_server(servers.redis_binary())  # noqa: E731 - shorter than its name
    with _url("INTERVALQ_TEST_REDIS_URL", make, servers.redis_answers) as url:
        yield url


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    """The URL of a Valkey, which may have records of other tests."""
    make = lambda: servers.redis_server(servers.valkey_binary())  # noqa: E731
    with _url("INTERVALQ_TEST_VALKEY_URL", make, servers.redis_answers) as url:
        yield url


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str]:
    """The URL of a cluster of one node, which refuses undeclared keys and keys of several slots."""
    with servers.redis_cluster(_made(servers.valkey_binary)) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL, which may have records of other tests."""
    # No test lets it crash, so its commits needn't wait for a disk; those that do have an `own_postgres`.
    make = lambda: postgres_servers.postgres(servers.in_memory())  # noqa: E731
    with _url("INTERVALQ_TEST_POSTGRES_URL", make, postgres_servers.answers) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database for one test, without a schema."""
    name = f"intervalq_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
        connection.execute(f"drop database {name} with (force)".encode())


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    """The URL of a PgBouncer in transaction mode in front of that PostgreSQL."""
    make = lambda: postgres_servers.pgbouncer(postgres_url)  # noqa: E731
    with _url(None, make, postgres_servers.answers) as url:
        yield url


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """The URL of a NATS with JetStream, which may have records of other tests."""
    with _url("INTERVALQ_TEST_NATS_URL", servers.nats_server, servers.nats_answers) as url:
        yield url


@pytest.fixture(scope="session")
def remote_url() -> Iterator[str]:
    """The URL of a service, which may have records of other tests: over a store in memory, or a given one."""
    with Served(
        os.environ.get("INTERVALQ_TEST_BEHIND", "memory://"), "--http", "none", program=QUIET
    ) as service:
        yield service.url


@pytest.fixture
def intervalq(tmp_path: Path) -> Iterator[CommandLine]:
    """The command line, in a folder of its own."""
    command = CommandLine(tmp_path)
    yield command
    command.end()


@pytest.fixture
def own_nats() -> Iterator[Callable[..., Server]]:
    """A function that starts a NATS, with options, which the test may kill (`stop`) and restart."""
    yield from _own(servers.nats_server)


@pytest.fixture
def own_redis() -> Iterator[Callable[..., Server]]:
    """A function that starts a Redis, with options, which the test may kill (`stop`) and restart."""
    yield from _own(lambda *options, **more: servers.redis_server(servers.redis_binary(), *options, **more))


@pytest.fixture
def own_postgres() -> Iterator[Callable[..., Server]]:
    """A PostgreSQL that the test may stop and start again."""
    yield from _own(postgres_servers.postgres)


def _own(make: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*options: str, **more: str) -> Server:
        started.append(_made(lambda: make(*options, **more)))
        return started[-1].start()

    yield start
    servers.end_all(started)
