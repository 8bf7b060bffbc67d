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

import postgres_servers
import servers
from intervalq_stores.memory import ledgers, queues, tasks
from servers import Server

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


# The files that take longest come first: if a long one runs last, the other processors idle meanwhile.
# Files that keep all processors busy (the model, the simulations) are spread among files that mostly wait.
LONG = (
    "cli/test_cli_tasks.py",
    "test_model_check.py",
    "faults/test_token_storm.py",
    "spark/test_pipeline.py",
    "faults/test_clocks.py",
    "test_simulation.py",
    "spark/test_calls_on_a_cluster.py",
    "cli/test_cli_run.py",
    "stores/test_postgres_tasks.py",
    "spark/test_audit.py",
    "faults/test_proxy.py",
    "test_docs.py",
    "test_benchmarks_busy.py",
    "spark/test_paced.py",
    "spark/test_clusters.py",
    "faults/test_nats_placement.py",
    "spark/test_source.py",
    "stores/test_postgres_tasks_plans.py",
    "faults/test_server_postgres.py",
    "cli/test_cli_help.py",
    "cli/test_cli_admin.py",
    "faults/test_server_redis.py",
    "faults/test_storm.py",
    "faults/test_power.py",
    "faults/test_proxy_queue.py",
    "stores/test_sqlite_tasks.py",
    "stores/test_redis_tasks.py",
    "stores/test_nats_tasks.py",
    "faults/test_server_nats.py",
    "demo/test_mapreduce.py",
    "tasks/test_task_simulation.py",
    "cli/test_cli_work.py",
    "faults/test_server_files.py",
    "test_benchmarks_run.py",
    "faults/test_task_storm.py",
    "cli/test_cli_run_ends.py",
    "test_processes.py",
    "test_benchmarks_tasks.py",
    "stores/test_redis.py",
    "stores/test_postgres.py",
    "test_rules_laws.py",
    "faults/test_partitions.py",
    "test_soak.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by file, in the order in which the workers should get the files."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


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
    with _url("INTERVALQ_TEST_POSTGRES_URL", postgres_servers.postgres, postgres_servers.answers) as url:
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
