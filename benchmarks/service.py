"""What does a verb cost through the service, and how much memory does a waiting claim or slot take there?

As many clients at a time as `--clients` insert, claim and delete tasks, claim tasks of a queue that has many, and take
slots of a queue that never lets them wait: directly by the store's own client in this process, and through the service.

`cpu` is the processor time a task, claim or slot of the process that talks to the store: this one in the rows `direct`,
otherwise the service. `store` is that of the store's server, and `client` that of the client of a service, which is
this process. `x direct` divides `cpu` by that of the row `direct`, and `x all` divides the sums of `cpu` and `store`.

The rows `echo` are what the three calls of a task cost at least in Python's gRPC: a server that gives answers of the
same length at once, without reading the messages, by asyncio, as the service does it, or by threads. The rows `bare` are
an asyncio server that gives the calls to the store and does nothing else. What the service itself costs is the
difference to these.

Envoy's own rate limit service and Gubernator are programs in Go, which have no packages: they are not here.

Then clients wait: over gRPC for tasks that never come, and over HTTP, with a connection each, for slots.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import grpc.aio
import httpx

from _report import words
from _service_calls import (
    LIMITS,
    RATE,
    Client,
    by_clients,
    claims,
    claims_served,
    fill,
    slots,
    slots_of_envoy,
    slots_over_http,
    task_store,
    tasks,
    tasks_served,
)
from _store import store_of
from _table import Column, table
from intervalq import IntervalQueue
from intervalq.service._entroq import entroq_pb2 as pb

STORES = "sqlite,redis,postgres"
COLUMNS = (
    Column("store", "store"),
    Column("what", "what"),
    Column("by", "by"),
    Column("per second", "rate", "{:.0f}"),
    Column("cpu us", "cpu", "{:.0f}"),
    Column("store us", "store_us", "{:.0f}"),
    Column("client us", "client", "{:.0f}"),
    Column("x direct", "share", "{:.2f}"),
    Column("x all", "of_all", "{:.2f}"),
    Column("load", "load", "{:.1f}"),
)
WAITING = (
    Column("store", "store"),
    Column("what waits", "what"),
    Column("number", "waiting", "{:.0f}"),
    Column("KiB each", "each", "{:.1f}"),
    Column("load", "load", "{:.1f}"),
)
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def store_cpu() -> float:
    """Seconds of processor time of the servers that this process has started, and of their ended processes."""
    used, parents = 0.0, {os.getpid()}
    found: dict[int, tuple[int, str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            before, _, after = stat.read_text().rpartition(")")
            fields = after.split()
            times = sum(int(each) for each in fields[11:15]) / TICKS
            found[int(stat.parent.name)] = int(fields[1]), before.partition("(")[2], times
    while parents:
        children = {pid for pid, (parent, _, _) in found.items() if parent in parents}
        used += sum(found[pid][2] for pid in children if found[pid][1] in _SERVERS)
        parents = children
    return used


_SERVERS: Final = ("redis-server", "valkey-server", "postgres")


async def measured(client: Client, count: int, clients: int, pid: int | None) -> dict[str, float]:
    """What calls cost. `pid`: the process that talks to the store; None: this one."""
    begun = time.process_time(), store_cpu(), 0.0 if pid is None else cpu_of(pid)
    seconds = await by_clients(client, count, clients)
    own = (time.process_time() - begun[0]) / count * 1e6
    figures = {"rate": count / seconds, "store_us": (store_cpu() - begun[1]) / count * 1e6}
    if pid is None:
        return {**figures, "cpu": own}
    return {**figures, "cpu": (cpu_of(pid) - begun[2]) / count * 1e6, "client": own}


async def direct(url: str, count: int, clients: int) -> list[dict[str, Any]]:
    """Calls of the store itself."""
    await fill(url, "many-direct", count)
    async with (
        task_store(url, clients) as store,
        IntervalQueue("direct", rate=RATE, store=url) as queue,
    ):
        return [
            {"what": what, "by": "direct", **(await measured(client, count, clients, None))}
            for what, client in (
                ("task", tasks(store)),
                ("claim", claims(store, "many-direct")),
                ("slot", slots(queue)),
            )
        ]


async def served(url: str, said: dict[str, str], pid: int, count: int, clients: int) -> list[dict[str, Any]]:
    """The same through the service, which is the process `pid`."""
    await fill(url, "many-served", count)
    async with (
        grpc.aio.insecure_channel(said["grpc"]) as channel,
        httpx.AsyncClient(base_url=f"http://{said['http']}/v1/queues") as http,
        IntervalQueue("remote", rate=RATE, store=f"intervalq://{said['grpc']}") as remote,
    ):
        (await http.put("/http", json={"rate": RATE})).raise_for_status()
        return [
            {"what": what, "by": by, **(await measured(client, count, clients, pid))}
            for what, by, client in (
                ("task", "gRPC", tasks_served(channel)),
                ("claim", "gRPC", claims_served(channel, "many-served")),
                ("slot", "intervalq://", slots(remote)),
                ("slot", "Envoy's gRPC", slots_of_envoy(channel)),
                ("slot", "HTTP", slots_over_http(said["http"], "http")),
            )
        ]


async def echoed(address: str, pid: int, count: int, clients: int) -> dict[str, float]:
    """The calls of tasks to a server that does nothing."""
    async with grpc.aio.insecure_channel(address) as channel:
        return await measured(tasks_served(channel), count, clients, pid)


@contextmanager
def program(*command: str) -> Iterator[tuple[dict[str, str], int]]:
    """A server that says where it listens; also gives its process."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline()), process.pid
        finally:
            process.terminate()


async def waiting_claims(address: str, pid: int, count: int) -> dict[str, float]:
    """Claims that wait for tasks of one queue."""
    before = memory_of(pid)
    async with grpc.aio.insecure_channel(address) as channel, anyio.create_task_group() as group:
        claim = channel.unary_unary(
            "/api.EntroQ/Claim",
            request_serializer=pb.ClaimRequest.SerializeToString,
            response_deserializer=pb.ClaimResponse.FromString,
        )

        async def wait(number: int) -> None:
            with suppress(grpc.aio.AioRpcError):  # it is cancelled at the end
                await claim(pb.ClaimRequest(claimant_id=f"waits-{number}", queues=["empty"]))

        for number in range(count):
            group.start_soon(wait, number)
        used = await settled(pid)
        group.cancel_scope.cancel()
    return {"waiting": count, "each": (used - before) / count / 1024}


async def waiting_slots(address: str, pid: int, count: int) -> dict[str, float]:
    """Requests over HTTP that wait for the slots of one queue."""
    async with (
        httpx.AsyncClient(base_url=f"http://{address}/v1/queues", timeout=60) as http,
        AsyncExitStack() as all_,
    ):
        (await http.put("/slow", json={"interval": "700ms"})).raise_for_status()
        before = memory_of(pid)
        body = b'{"within": 3600}'
        head = b"POST /v1/queues/slow/slot HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        for _ in range(count):
            stream = await all_.enter_async_context(await anyio.connect_tcp(*address.rsplit(":", 1)))
            await stream.send(head % len(body) + body)
        used = await settled(pid)
        waiting = (await http.get("/slow")).json()["waiting"]
    return {"waiting": waiting, "each": (used - before) / count / 1024}


async def settled(pid: int) -> int:
    """The memory of a process once it has stopped growing."""
    used = same = 0
    while same < 3:
        await anyio.sleep(1)
        now = memory_of(pid)
        used, same = max(now, used), same + 1 if now <= used else 0
    return used


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stores", type=words, default=words(STORES), metavar="A,B", help=f"default: {STORES}"
    )
    parser.add_argument("--tasks", type=int, default=4_000, metavar="N", help="default: 4,000")
    parser.add_argument("--clients", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument(
        "--waiting", type=int, default=5_000, metavar="N", help="default: 5,000; 0: nobody waits"
    )
    return parser.parse_args()


def main() -> None:
    """Print a row per store, kind of call and way, and one of each kind that waits."""
    given = options()
    size = given.tasks, given.clients
    rows: list[dict[str, Any]] = []
    waits: list[dict[str, object]] = []
    echo = str(Path(__file__).with_name("_echo.py"))
    for kind in ("aio", "threads"):
        with program(echo, kind) as (said, pid):
            row = anyio.run(partial(echoed, said["grpc"], pid, *size))
        rows.append({"store": "-", "what": "task", "by": f"echo, {kind}", **row, "load": os.getloadavg()[0]})
    for kind in given.stores:
        with store_of(kind) as url, tempfile.NamedTemporaryFile("w", suffix=".toml") as limits:
            limits.write(LIMITS)
            limits.flush()
            found = anyio.run(partial(direct, url, *size))
            plain = {row["what"]: row for row in found}
            with program(echo, "store", url) as (said, pid):
                row = anyio.run(partial(echoed, said["grpc"], pid, *size))
            found.append({"what": "task", "by": "bare", **row})
            command = ("-m", "intervalq", "serve", "--store", url, "--grpc", "127.0.0.1:0", "--json")
            more = ("--http", "127.0.0.1:0", "--envoy", limits.name)
            with program(*command, *more) as (said, pid):
                found += anyio.run(partial(served, url, said, pid, *size))
                for what, wait, where in (
                    ("claims", waiting_claims, said["grpc"]),
                    ("slots", waiting_slots, said["http"]),
                ):
                    if given.waiting:
                        row = anyio.run(wait, where, pid, given.waiting)
                        waits.append({"store": kind, "what": what, **row, "load": os.getloadavg()[0]})
        for row in found:
            beside = plain[row["what"]]
            share = row["cpu"] / beside["cpu"]
            of_all = (row["cpu"] + row["store_us"]) / (beside["cpu"] + beside["store_us"])
            rows.append({"store": kind, **row, "share": share, "of_all": of_all, "load": os.getloadavg()[0]})
    print(table(COLUMNS, rows))
    if waits:
        print(table(WAITING, waits))


if __name__ == "__main__":
    main()
