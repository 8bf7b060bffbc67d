"""A real standalone cluster and a Spark Connect server, both from the package `pyspark`, on loopback."""

from __future__ import annotations

import json
import os
import shlex
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

import servers
from servers import Server
from spark.programs import Program, environment

MASTER: Final = "127.0.0.1"
HOSTS: Final = ("127.0.0.2", "127.0.0.3")
"""Each has one worker with one core: loopback addresses, but separate hosts as far as Spark knows."""

ICEBERG: Final = os.environ.get("ICEBERG_JARS", "")
"""Iceberg's jars for this Spark, with commas, if they are at hand."""

_SMALL: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": MASTER,
    "spark.driver.bindAddress": MASTER,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.locality.wait": "0s",
    # Compiling a plan takes longer than a few rows take without it. Examples of the manual compile theirs.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_EXECUTORS: Final[Mapping[str, str]] = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    # The first task waits for both executors, so that each has its share of a small job.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


def small(java: str) -> dict[str, str]:
    """Settings of drivers on any master: few resources, and nothing that others can reach."""
    jars = {"spark.jars": ICEBERG} if ICEBERG else {}
    return {**_SMALL, **jars, "spark.driver.extraJavaOptions": java}


class Cluster:
    """A master and two workers, for drivers in processes of their own."""

    def __init__(self, java: str) -> None:
        """Create one that isn't started yet; `java` are options for all of its JVMs."""
        self._java = java
        self._page = servers.free_port()
        self._master = Server(
            "spark-master",
            lambda folder, port: [
                *_daemon(java, "256m", folder, "spark-class", "org.apache.spark.deploy.master.Master"),
                *("--host", MASTER, "--port", str(port), "--webui-port", str(self._page)),
            ],
            url=f"spark://{MASTER}:{{port}}",
            ready=lambda _: self.state(),
        )
        self.url = self._master.url
        self._workers = [self._worker(host) for host in HOSTS]

    def start(self) -> None:
        """Start all, and wait until both workers are registered."""
        self._master.start()
        with ThreadPoolExecutor(len(self._workers)) as pool:
            list(pool.map(Server.start, self._workers))

    def close(self) -> None:
        """Stop all; executors end with their workers."""
        servers.end_all([*self._workers, self._master])

    def state(self) -> dict[str, Any]:
        """The master's state: `workers`, `activeapps`, `completedapps`."""
        with urllib.request.urlopen(f"http://{MASTER}:{self._page}/json/", timeout=5) as answer:
            reply: dict[str, Any] = json.load(answer)
        return reply

    def submit(
        self,
        script: Path,
        *arguments: str,
        conf: Mapping[str, str] | None = None,
        store: str | None = None,
        **variables: str,
    ) -> Program:
        """Start a driver, whose master and settings are found by any `SparkSession.builder.getOrCreate()`.

        `store` is INTERVALQ_STORE for the driver and for the executors; `variables` go to both, too.
        """
        if store is not None:
            variables["INTERVALQ_STORE"] = store
        own = environment(**variables)
        shared = {f"spark.executorEnv.{name}": own[name] for name in ("PYTHONPATH", *variables)}
        java = {"spark.executor.extraJavaOptions": self._java}
        settings = {**small(self._java), **_EXECUTORS, **java, **shared, **(conf or {})}
        words = ["--master", self.url]
        words += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        return Program(
            script, arguments, {**own, "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"])}
        )

    def _worker(self, host: str) -> Server:
        def command(folder: Path, port: int) -> list[str]:
            return [
                *_daemon(self._java, "256m", folder, "spark-class", "org.apache.spark.deploy.worker.Worker"),
                *("--host", host, "--port", str(port), "--webui-port", "0"),
                *("--cores", "1", "--memory", "600m", "--work-dir", str(folder / "work")),
                self.url,
            ]

        def registered(_: int) -> None:
            known = [one["host"] for one in self.state()["workers"] if one["state"] == "ALIVE"]
            if host not in known:
                raise RuntimeError(f"the master knows only {known}")

        return Server(f"spark-worker-{host}", command, url=f"spark://{host}:{{port}}", ready=registered)


class Connect:
    """A Spark Connect server with a local master, for clients without a JVM."""

    def __init__(self, java: str) -> None:
        """Create one that isn't started yet; `java` are options for its JVM."""
        # The zone differs from that of a session that sets its own, so that the two can be told apart.
        settings = {
            **small(java),
            "spark.sql.session.timeZone": "Asia/Tokyo",
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.address": MASTER,
        }

        def command(folder: Path, port: int) -> list[str]:
            own = {
                **settings,
                "spark.connect.grpc.binding.port": str(port),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            }
            return [
                *_daemon(java, "1g", folder, "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *(word for key, value in own.items() for word in ("--conf", f"{key}={value}")),
                "spark-internal",
            ]

        self._server = Server("spark-connect", command, url=f"sc://{MASTER}:{{port}}", ready=_listens)
        self.url = self._server.url

    def start(self) -> None:
        """Start it, and wait until its port answers."""
        self._server.start()

    def close(self) -> None:
        """Stop it."""
        self._server.close()

    def submit(self, script: Path, *arguments: str, **variables: str) -> Program:
        """Start a client; `SparkSession.builder.getOrCreate()` connects it to this server."""
        return Program(script, arguments, environment(SPARK_REMOTE=self.url, **variables))


T = TypeVar("T", Cluster, Connect)


@contextmanager
def running(server: T) -> Iterator[T]:
    """Keep one of these running while the context is open."""
    try:
        server.start()
        yield server
    finally:
        server.close()


def _listens(port: int) -> None:
    socket.create_connection((MASTER, port), timeout=5).close()


def _daemon(java: str, memory: str, folder: Path, script: str, *arguments: str) -> list[str]:
    """A command that runs a script of the package, in an environment of its own."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise servers.NotInstalledError("no Spark: pip install 'intervalq[spark]'")
    home = Path(spec.origin).parent
    own = {
        **environment(SPARK_HOME=str(home)),
        "SPARK_LOCAL_DIRS": str(folder),  # files that a killed JVM can't remove are removed with the folder
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": java,
    }
    return [
        "env",
        "-i",
        *(f"{name}={value}" for name, value in own.items()),
        str(home / "bin" / script),
        *arguments,
    ]
