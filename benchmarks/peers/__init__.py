"""The contenders: their names, where they run, and their settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One row's contender. `place` is `module:Class` for Python, else the kind that `node/worker.js` knows."""

    name: str
    label: str
    place: str
    settings: str
    node: bool = False


def _all(*peers: Peer) -> dict[str, Peer]:
    return {peer.name: peer for peer in peers}


PACING = _all(
    Peer("intervalq", "intervalq", "ours:Ours", "the defaults: lookahead 16, tolerance a tenth"),
    Peer("intervalq-turns", "intervalq, lookahead 1", "ours:Turns", "shards take turns"),
    Peer("intervalq-all", "intervalq, lookahead all", "ours:Greedy", "every waiting job has a ticket"),
    Peer("slots", "hand-written slot script", "floors:SlotScript",
         "the floor: one EVALSHA a job gives a slot on the server's clock, then asyncio.sleep"),
    Peer("redis-rate-limiters", "redis-rate-limiters", "token_bucket:Paced",
         "AsyncTokenBucket, capacity 1, refill 1 an interval"),
    Peer("pyrate-best", "PyrateLimiter, GCRA burst 1", "pyrate:Best",
         "its best for pacing: StateBucket with GCRA, burst 1, buffer_ms 0"),
    Peer("pyrate-documented", "PyrateLimiter, R per second", "pyrate:Documented",
         "as its README has it: RedisBucket, Rate(R, 1 s), the default buffer of 50 ms"),
    Peer("limits", "limits, moving window", "windows:Paced",
         "R per second, sleeps until the reset time that get_window_stats gives, tries again"),
    Peer("throttled-py", "throttled-py, GCRA burst 1", "gcra:Paced",
         "GCRA, R per second, burst 1, waits by its own timeout"),
    Peer("aiolimiter", "aiolimiter, R/N each", "leaky:Paced",
         "no shared store: AsyncLimiter(1, N intervals) in each of N processes"),
    Peer("bottleneck", "Bottleneck, cluster", "bottleneck",
         "minTime 1 interval, datastore ioredis, one key for all", node=True),
    Peer("bullmq", "BullMQ limiter, 1 per interval", "bullmq",
         "limiter max 1, duration of the interval in whole ms, rounded up; concurrency of all callers", node=True),
)  # fmt: skip

TIMER = Peer(
    "timer", "timer only (baseline)", "timer:Timer", "no store: sleeps to its share of a shared grid"
)
TIMER_HALF = Peer(
    "timer", "timer only (baseline)", "timer:Half", "the same, each point used or not by chance"
)

_OURS = {
    way: Peer(f"intervalq-{way}", f"intervalq, {label}", f"ours:Flood{way.capitalize()}",
              "interval 1 us, burst 20,000, lookahead all")
    for way, label in {"slot": "async with slot()", "run": "run(f)", "decorator": "@queue"}.items()
}  # fmt: skip

_FLOORS = {
    "memory": (Peer("future", "floor: a future and call_soon each", "floors:Futures", "no limiter at all"),),
    "file": (Peer("rewrite", "floor: flock and rewrite", "local_floors:Rewrite",
                  "flock, read JSON, write a new file, fsync, rename; all callers in one"),),
    "sqlite": (Peer("update", "floor: UPDATE RETURNING", "local_floors:Update",
                    "WAL, synchronous FULL; all callers in one transaction"),),
    "redis": (Peer("incr", "floor: INCR, pipelined", "floors:Incr", "all callers in one pipeline"),
              Peer("slots", "floor: EVALSHA slot script, pipelined", "floors:SlotPipeline",
                   "all callers in one pipeline"),
              Peer("batch", "floor: one EVALSHA a turn, a future each", "floors:SlotBatch",
                   "all who ask in one turn of the loop share one script")),
    "postgres": (Peer("update", "floor: UPDATE RETURNING, pipelined", "postgres_floor:Update",
                      "psycopg; all callers in one pipeline, each a transaction"),),
}  # fmt: skip

_MEMORY_PEERS = (
    Peer("aiolimiter", "aiolimiter", "leaky:Flood", "1e9 per second"),
    Peer("limits", "limits, fixed window", "windows:Flood", "1e6 per second; its cheapest strategy"),
    Peer("throttled-py", "throttled-py, GCRA", "gcra:Flood", "1e6 per second, burst 1e6"),
    Peer("pyrate", "PyrateLimiter, GCRA", "pyrate:Flood", "1e6 per second, burst 1e6"),
)
_REDIS_PEERS = (
    Peer("redis-rate-limiters", "redis-rate-limiters", "token_bucket:Flood", "capacity 1e9"),
    *_MEMORY_PEERS[1:],
    Peer("bottleneck", "Bottleneck, cluster", "bottleneck", "no minTime", node=True),
)


def throughput(kind: str) -> dict[str, Peer]:
    """The contenders without an effective limit, over one kind of store."""
    others = {"memory": _MEMORY_PEERS, "redis": _REDIS_PEERS}.get(kind, ())
    return _all(*_FLOORS[kind], *_OURS.values(), *others)


def floor(kind: str) -> Peer:
    """One bare step of a store, with which the latency of a call is compared."""
    return _FLOORS[kind][0]


LATENCY_PEERS = ("redis-rate-limiters", "pyrate-best", "limits", "throttled-py", "bottleneck", "slots")
"""Those of PACING, besides intervalq, that ask Redis for each call."""
