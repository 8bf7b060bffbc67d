"""What does a verb cost through the service, and how much memory does a waiting claim or slot take there?

Clients over gRPC insert, claim and delete tasks, as many at a time as `--clients`. `cpu` is the processor time per task
of the process that talks to the store: the service, or in the row `direct` this one, which gives the store the same
commands. `x direct` divides the two. Then clients wait: over gRPC for tasks that never come, and over HTTP, with a
connection each, for slots.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import grpc.aio
import httpx
from google.protobuf.message import Message

from _report import words
from _store import store_of
from _table import Column, table
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.tasks.rules import SECOND, Begin, Delete, Insert, Modify, Session, Work
from intervalq.tasks.store import open_task_store

STORES = "sqlite,redis,postgres"
COLUMNS = (
    Column("store", "store"),
    Column("by", "by"),
    Column("tasks/s", "rate", "{:.0f}"),
    Column("cpu us", "cpu", "{:.0f}"),
    Column("x direct", "share", "{:.2f}"),
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


async def direct(url: str, count: int, clients: int) -> dict[str, float]:
    """The same commands, given to the store."""
    store, begun = open_task_store(url), time.process_time()
    start = time.monotonic()

    async def client(number: int) -> None:
        session, queue = f"direct-{number}", f"direct-{number}"
        await store.apply(Begin(Session(session, expiry=60 * SECOND)))  # nobody renews it
        for _ in range(count // clients):
            name = secrets.token_hex(8)
            await store.apply(Modify(session=session, inserts=(Insert(queue, "1", name),)))
            worked = await store.apply(Work(session, queues=(queue,), limit=1, lease=30 * SECOND))
            (row,) = worked.claimed
            await store.apply(Modify(session=session, deletes=(Delete(row.id, row.version),)))

    async with anyio.create_task_group() as group:
        for number in range(clients):
            group.start_soon(client, number)
    seconds = time.monotonic() - start
    await store.aclose()
    return {"rate": count / seconds, "cpu": (time.process_time() - begun) / count * 1e6}


async def served(address: str, pid: int, count: int, clients: int) -> dict[str, float]:
    """Through the service, which is the process `pid`."""
    async with grpc.aio.insecure_channel(address) as channel:

        def verb(name: str, request: type[Message], answer: type[Message]) -> Callable[..., Awaitable[Any]]:
            return channel.unary_unary(
                f"/api.EntroQ/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )

        modify = verb("Modify", pb.ModifyRequest, pb.ModifyResponse)
        claim = verb("TryClaim", pb.ClaimRequest, pb.ClaimResponse)

        async def client(number: int) -> None:
            me, queue = f"client-{number}", f"served-{number}"
            for _ in range(count // clients):
                task = pb.TaskData(queue=queue, id=secrets.token_hex(8))
                await modify(pb.ModifyRequest(claimant_id=me, inserts=[task]))
                claimed = (await claim(pb.ClaimRequest(claimant_id=me, queues=[queue]))).task
                ended = pb.TaskID(id=claimed.id, version=claimed.version, queue=queue)
                await modify(pb.ModifyRequest(claimant_id=me, deletes=[ended]))

        begun, start = cpu_of(pid), time.monotonic()
        async with anyio.create_task_group() as group:
            for number in range(clients):
                group.start_soon(client, number)
        seconds = time.monotonic() - start
    return {"rate": count / seconds, "cpu": (cpu_of(pid) - begun) / count * 1e6}


async def claims(address: str, pid: int, count: int) -> dict[str, float]:
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


async def slots(address: str, pid: int, count: int) -> dict[str, float]:
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


def main() -> None:
    """Print a row per store and way, and one of each kind that waits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stores", type=words, default=words(STORES), metavar="A,B", help=f"default: {STORES}"
    )
    parser.add_argument("--tasks", type=int, default=4_000, metavar="N", help="default: 4,000")
    parser.add_argument("--clients", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument("--waiting", type=int, default=5_000, metavar="N", help="default: 5,000")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    waits: list[dict[str, object]] = []
    for kind in options.stores:
        with store_of(kind) as url:
            load = os.getloadavg()[0]
            command = ("-m", "intervalq", "serve", "--store", url, "--grpc", "127.0.0.1:0")
            with subprocess.Popen(
                [sys.executable, *command, "--http", "127.0.0.1:0", "--json"],
                stdout=subprocess.PIPE,
                text=True,
            ) as service:
                try:
                    assert service.stdout is not None
                    said = json.loads(service.stdout.readline())
                    address = said["grpc"]
                    size = options.tasks, options.clients
                    plain = anyio.run(partial(direct, url, *size))
                    through = anyio.run(partial(served, address, service.pid, *size))
                    for what, wait, where in (("claims", claims, address), ("slots", slots, said["http"])):
                        row = anyio.run(wait, where, service.pid, options.waiting)
                        waits.append({"store": kind, "what": what, **row, "load": os.getloadavg()[0]})
                finally:
                    service.terminate()
            for by, row in (("direct", plain), ("served", through)):
                rows.append(
                    {"store": kind, "by": by, **row, "share": row["cpu"] / plain["cpu"], "load": load}
                )
    print(table(COLUMNS, rows))
    print(table(WAITING, waits))


if __name__ == "__main__":
    main()
