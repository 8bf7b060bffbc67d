"""The contenders of durable tasks, and how each is set up: the README says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import _node


@dataclass(frozen=True)
class Contender:
    """One contender in one question."""

    name: str
    """Its name for `--peers`; floors and intervalq always run."""
    label: str
    place: str
    """Its adapter: a module of this folder and a class, or a script for Node."""
    left: str = ""
    """SQL that returns a row while there is work; empty: ask intervalq itself."""
    options: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    """Its share of `--jobs`, so that no row takes much longer than others."""
    package: str = ""
    """The packages that must be installed."""
    uvloop: bool = False

    @property
    def is_node(self) -> bool:
        """Whether its adapter is a script for Node."""
        return self.place.endswith(".js")

    @property
    def missing(self) -> str:
        """The packages that aren't installed, if any."""
        if self.is_node:
            return found if isinstance(found := _node.modules(), str) else ""
        if self.package and find_spec(self.package) is None:
            return f"{self.package} is not installed"
        return ""


def ours(label: str, kind: str, share: float = 5.0, **options: Any) -> Contender:
    """One of the ways to use intervalq."""
    return Contender("intervalq", label, f"ours:{kind}", options=options, share=share)


def floor(label: str, kind: str, share: float = 5.0, module: str = "floors", **options: Any) -> Contender:
    """A floor."""
    package = "asyncpg" if module == "floors" else ""
    left = "SELECT 1 FROM floor LIMIT 1"
    return Contender("floor", f"floor: {label}", f"{module}:{kind}", left, options, share, package)


def pgqueuer(label: str, share: float = 2.0, **options: Any) -> Contender:
    """pgqueuer; its own command runs it in uvloop where that is installed."""
    return Contender(
        "pgqueuer", label, "pgqueuer_peer:Peer", "SELECT 1 FROM pgqueuer LIMIT 1", options, share, "pgqueuer",
        uvloop=find_spec("uvloop") is not None,
    )  # fmt: skip


def procrastinate(label: str, share: float = 0.05, **options: Any) -> Contender:
    """Takes one task at a time, so it gets fewer."""
    left = "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
    return Contender("procrastinate", label, "procrastinate_peer:Peer", left, options, share, "procrastinate")


def chancy(label: str, share: float = 0.25, **options: Any) -> Contender:
    """chancy, which keeps what is done."""
    left = "SELECT 1 FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed') LIMIT 1"
    return Contender("chancy", label, "chancy_peer:Peer", left, options, share, "chancy")


def oban(label: str, share: float = 0.25, **options: Any) -> Contender:
    """oban-py, which keeps what is done; its own command runs it in uvloop."""
    left = "SELECT 1 FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled') LIMIT 1"
    return Contender("oban", label, "oban_peer:Peer", left, options, share, "oban", uvloop=True)


def graphile(label: str, share: float = 1.0, **options: Any) -> Contender:
    """graphile-worker, as its own performance test has it, or with its defaults."""
    left = "SELECT 1 FROM graphile_worker.jobs LIMIT 1"
    return Contender("graphile", label, "graphile.js", left, options, share)


_GRAPHILE = {"localQueue": {"size": 500, "refetchDelay": {"durationMs": 10}}, "completeJobBatchDelay": 0}
_FUSED = floor("fused, batches of 100", "Fused", batch=100)
_RANGES = floor("range lease, 1,000 at a time", "Ranges", batch=1000)
_WORKER = ours("intervalq, @worker", "Ours")
_PLAIN = ours("intervalq, put() and @worker", "Plain")

ENQUEUE = (
    ours("intervalq, modify(1,000 x new)", "Ours"),
    ours("intervalq, put", "Plain"),
    pgqueuer("pgqueuer, enqueue of 1,000"),
    procrastinate("procrastinate, batch_defer of 1,000", share=0.5),
    chancy("chancy, push_many of 1,000"),
    oban("oban-py, enqueue_many of 1,000"),
    graphile("graphile-worker, addJobs of 1,000"),
    floor("COPY of 1,000", "Fused"),
)
DRAIN = (
    _WORKER,
    ours("intervalq, run(until_empty=True)", "Ours", until_empty=True),
    pgqueuer("pgqueuer, batch 100", batch=100),
    procrastinate("procrastinate"),
    chancy("chancy, concurrency 1,000", concurrency=1000, eager_polling=True),
    oban("oban-py, limit 1,000", limit=1000),
    graphile("graphile-worker, local queue of 500", concurrency=24, **_GRAPHILE),
    _FUSED,
    floor("fused, batches of 1,000", "Fused", batch=1000),
)
PLAIN = (
    _PLAIN,
    ours("intervalq, put(), until_empty", "Plain", until_empty=True),
    ours("intervalq, put(), in chunks of 100", "Chunked", batch=100),
    ours("intervalq, put(), in chunks of 1,000", "Chunked", batch=1000),
    floor("range lease, 100 at a time", "Ranges", batch=100),
    _RANGES,
)
SNAPSHOT = (_WORKER, _FUSED, _PLAIN, _RANGES)
SINGLE = (
    ours("intervalq, claim and ack", "OneByOne", share=0.5, callers=20),
    pgqueuer("pgqueuer, batch 10, 20 at a time", share=0.5, batch=10, tasks=20),
    procrastinate("procrastinate, concurrency 20", share=0.03, concurrency=20),
    chancy("chancy, concurrency 20", share=0.05, concurrency=20, eager_polling=True),
    oban("oban-py, limit 20", share=0.1, limit=20),
    graphile("graphile-worker, concurrency 20", share=0.25, concurrency=20),
    floor("claim 1, delete 1, by asyncpg", "OneByOne", share=0.5, callers=20),
)
LATENCY = (
    _WORKER,
    pgqueuer("pgqueuer"),
    procrastinate("procrastinate"),
    chancy("chancy"),
    oban("oban-py"),
    graphile("graphile-worker"),
    floor("LISTEN, claim", "Listening"),
)
PACE = (
    ours("intervalq, IntervalQueue 100/s", "Ours", rate="100/s"),
    chancy(
        "chancy, rate_limit 100 a second",
        rate_limit=100,
        rate_limit_window=1,
        polling_interval=1,
        eager_polling=True,
    ),
)
OUTCOMES = (
    ours("intervalq, nothing kept", "Ours", share=2.0),
    ours("intervalq, keep", "Ours", share=2.0, keep="7d"),
    ours("intervalq, keep, with a result", "Ours", share=2.0, keep="7d", result=True),
    pgqueuer("pgqueuer, its log", batch=100),
    procrastinate("procrastinate, deleted"),
    procrastinate("procrastinate, kept", delete_jobs="never"),
    oban("oban-py, kept", limit=1000),
    oban("oban-py, kept, with a result", limit=1000, result=True),
)
CANCELS = (
    ours("intervalq", "Ours", held=True),
    pgqueuer("pgqueuer", held=True),
    procrastinate("procrastinate", held=True),
    oban("oban-py, looking every 10 ms", held=True),
)
KEYS = (
    ours("intervalq, key", "Ours", share=0.05, keys=True, concurrency=1),
    procrastinate("procrastinate, lock", keys=True),
)
CRASH = ours("intervalq", "Ours")
HOLDER = ours("intervalq", "Holder")
SQLITE = (
    ours("intervalq, @worker", "Ours", concurrency=100),
    ours("intervalq, fetch(100) and ack", "Fetched", share=1.0, batch=100),
    floor("fused, batches of 100", "Fused", share=5.0, module="sqlite_floor", batch=100),
)
