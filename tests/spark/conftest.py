"""Fixtures of Spark: a local session, a real cluster, a Connect server, and the API that they call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from intervalq.spark._runtime.java import java_home
from spark import archive, clusters
from spark.clusters import Cluster, Connect
from spark.pipelines import Small
from spark.programs import FAST
from spark.stand_in import SparkApi

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests with a JVM more time: one of them makes the archive, and the others wait for it."""
    for item in items:
        if "java_options" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def java_options(request: pytest.FixtureRequest) -> str:
    """Options of all JVMs of these tests, which make them start quickly; sets JAVA_HOME for all of them."""
    java_home()
    cache: pytest.Cache | None = getattr(request.config, "cache", None)  # it may be switched off
    return archive.options(None if cache is None else cache.mkdir("spark"))


@pytest.fixture(scope="session")
def spark(java_options: str) -> Iterator[SparkSession]:
    """The local session of this test run, with two Python workers; no test stops it."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("intervalq tests")
    for key, value in clusters.small(java_options).items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", clusters.MASTER)
        patch.setenv("SPARK_LAUNCHER_OPTS", FAST)
        session = builder.getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def standalone_cluster(java_options: str) -> Iterator[Cluster]:
    """A master and two workers with one core each; `submit` starts drivers."""
    with clusters.running(Cluster(java_options)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def connect_server(java_options: str) -> Iterator[Connect]:
    """A Spark Connect server; `submit` starts clients."""
    with clusters.running(Connect(java_options)) as server:
        yield server


@pytest.fixture(scope="session")
def connect_url(connect_server: Connect) -> str:
    """The address of the Spark Connect server, for `SparkSession.builder.remote`."""
    return connect_server.url


@pytest.fixture
def spark_api() -> Iterator[SparkApi]:
    """A stand-in for an API that answers at once, without a limit; make a `SparkApi(...)` for any other."""
    with SparkApi() as api:
        yield api


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """A small pipeline."""
    return Small(tmp_path)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[str]:
    """A store for ledgers of stages that run in this process, which keeps no connection to it."""
    from intervalq.spark._paced import ledger_client as _claims

    yield f"sqlite://{tmp_path}/state.db"
    _claims.ledger_store.cache_clear()
