"""Where it pays that sessions share the parts of a queue's plain tasks, so that their claims don't meet.

The same tasks are drained by 1 to 16 sessions, each with a connection of its own, in small ranges: with parts
of their own first, as the store does it; with parts in random order; and all beginning at the same part. The
server is the only one that works hard, so what shows is what claims cost each other.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

import psycopg

import _store  # noqa: F401 - it makes `servers` importable
import postgres_servers
import servers
from intervalq.tasks.rules import Begin, Count, End, Finished, Session, Work
from intervalq.tasks.store import Ranging, TaskStore, open_task_store
from intervalq_stores.postgres._schema import statements

_OWN = "order by (x.part * others / 16 = mine) desc, random()"
ORDERS = {
    "own parts first": _OWN,
    "parts at random": "order by random()",
    "same part first": "order by x.part",
}
_QUEUE = "parts"


def _install(url: str, order: str) -> None:
    text = statements("tasks")
    assert text.count(_OWN) == 1
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"drop schema if exists intervalq cascade")
        connection.execute(text.replace(_OWN, order).encode())


async def _work(url: str, number: int, size: int, times: list[float]) -> int:
    store = open_task_store(url)
    session = f"0000{number:04d}-parts"
    await store.apply(Begin(Session(session, expiry=60_000_000)))
    done = 0
    finished: tuple[Finished, ...] = ()
    while True:
        begun = time.perf_counter()
        worked = await store.apply(Work(session, finished=finished, queues=(_QUEUE,), limit=size))
        times.append(time.perf_counter() - begun)
        finished = tuple(Finished(range_) for range_, _ in worked.ranges)
        done += sum(len(tasks) for _, tasks in worked.ranges)
        if not finished and await _is_empty(store):
            break
    await store.apply(End(session))
    await store.aclose()
    return done


async def _is_empty(store: TaskStore) -> bool:
    return not await store.apply(Count(names=(_QUEUE,)))


async def _drain(url: str, sessions: int, tasks: int, size: int) -> tuple[float, float]:
    """Tasks a second, and the 99th percentile of a call in milliseconds."""
    store = open_task_store(url)
    assert isinstance(store, Ranging)
    for first in range(0, tasks, 1000):
        await store.put(_QUEUE, [str(number) for number in range(first, min(first + 1000, tasks))])
    await store.aclose()
    times: list[float] = []
    begun = time.perf_counter()
    done = sum(await asyncio.gather(*(_work(url, number, size, times) for number in range(sessions))))
    took = time.perf_counter() - begun
    assert done == tasks, f"{done} of {tasks}"
    return tasks / took, statistics.quantiles(times, n=100)[98] * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=20, help="tasks of a range")
    parser.add_argument("--sessions", default="1,2,4,8,16")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    counts = [int(count) for count in options.sessions.split(",")]
    head = "".join(f"{count:>7} sessions" for count in counts)
    print(f"{'claims':18}{head}   (tasks/s, p99 of a call in ms)")
    with servers.running(postgres_servers.postgres()) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(b"alter system set synchronous_commit = off")
            connection.execute(b"select pg_reload_conf()")
        for name, order in ORDERS.items():
            cells = []
            for count in counts:
                runs = []
                for _ in range(options.runs):
                    _install(server.url, order)
                    runs.append(asyncio.run(_drain(server.url, count, options.tasks, options.size)))
                rate = statistics.median(rate for rate, _ in runs)
                late = statistics.median(late for _, late in runs)
                cells.append(f"{rate:9.0f} {late:6.1f}")
            print(f"{name:18}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
