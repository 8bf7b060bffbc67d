"""Calls to a store, directly and through a service: tasks, claims and slots, by some clients at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Value

from intervalq import IntervalQueue
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import NAME
from intervalq.service._envoy import over_grpc as envoy
from intervalq.service._envoy import ratelimit_pb2 as limits
from intervalq.tasks.rules import SECOND, Begin, Delete, Insert, Modify, Session, Work
from intervalq.tasks.store import TaskStore, open_task_store

RATE: Final = "100000/s"
"""The rate of the queue: higher than anybody can use, so that slots never wait."""
LIMITS: Final = f"""
[[limit]]
domain = "bench"
match = {{ to = "envoy" }}
queue = "envoy"
rate = "{RATE}"
wait = "1m"
"""

Client = Callable[[int, int], Awaitable[None]]
"""What a client does: its number, and how many calls it makes."""


async def by_clients(client: Client, count: int, clients: int) -> float:
    """Let some clients make so many calls together; returns the seconds."""
    start = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(clients):
            group.start_soon(client, number, count // clients)
    return time.monotonic() - start


# --- tasks, directly --------------------------------------------------------------------------------


@asynccontextmanager
async def task_store(url: str, clients: int) -> AsyncIterator[TaskStore]:
    """A store of tasks, with the sessions of its clients."""
    store = open_task_store(url)
    for number in range(clients):
        await store.apply(Begin(Session(f"direct-{number}", expiry=60 * SECOND)))  # nobody renews it
    yield store
    await store.aclose()


def tasks(store: TaskStore) -> Client:
    """Insert, claim and delete a task."""

    async def client(number: int, count: int) -> None:
        session = queue = f"direct-{number}"
        for _ in range(count):
            inserts = (Insert(queue, "1", secrets.token_hex(8)),)
            await store.apply(Modify(session=session, inserts=inserts))
            worked = await store.apply(Work(session, queues=(queue,), limit=1, lease=30 * SECOND))
            (row,) = worked.claimed
            await store.apply(Modify(session=session, deletes=(Delete(row.id, row.version),)))

    return client


async def fill(url: str, queue: str, count: int) -> None:
    """Insert tasks to claim."""
    store = open_task_store(url)
    for begun in range(0, count, 500):
        inserts = [Insert(queue, "1", secrets.token_hex(8)) for _ in range(min(500, count - begun))]
        await store.apply(Modify(inserts=tuple(inserts)))
    await store.aclose()


def claims(store: TaskStore, queue: str) -> Client:
    """Claim a task of a queue that has many."""

    async def client(number: int, count: int) -> None:
        work = Work(f"direct-{number}", queues=(queue,), limit=1, lease=3_600 * SECOND)
        for _ in range(count):
            assert (await store.apply(work)).claimed

    return client


# --- tasks, through a service -----------------------------------------------------------------------


def _verb(channel: grpc.aio.Channel, name: str, request: type[Message], answer: type[Message]) -> Any:  # noqa: ANN401 - a method of gRPC
    return channel.unary_unary(
        name, request_serializer=request.SerializeToString, response_deserializer=answer.FromString
    )


def tasks_served(channel: grpc.aio.Channel) -> Client:
    """Insert, claim and delete a task."""
    modify = _verb(channel, f"/{NAME}/Modify", pb.ModifyRequest, pb.ModifyResponse)
    claim = _verb(channel, f"/{NAME}/TryClaim", pb.ClaimRequest, pb.ClaimResponse)

    async def client(number: int, count: int) -> None:
        me, queue = f"client-{number}", f"served-{number}"
        for _ in range(count):
            task = pb.TaskData(queue=queue, id=secrets.token_hex(8), value=Value(number_value=1))
            await modify(pb.ModifyRequest(claimant_id=me, inserts=[task]))
            claimed = (await claim(pb.ClaimRequest(claimant_id=me, queues=[queue]))).task
            ended = pb.TaskID(id=claimed.id, version=claimed.version, queue=queue)
            await modify(pb.ModifyRequest(claimant_id=me, deletes=[ended]))

    return client


def claims_served(channel: grpc.aio.Channel, queue: str) -> Client:
    """Claim a task of a queue that has many."""
    claim = _verb(channel, f"/{NAME}/TryClaim", pb.ClaimRequest, pb.ClaimResponse)

    async def client(number: int, count: int) -> None:
        request = pb.ClaimRequest(claimant_id=f"client-{number}", queues=[queue], duration_ms=3_600_000)
        for _ in range(count):
            assert (await claim(request)).HasField("task")

    return client


# --- slots ------------------------------------------------------------------------------------------


def slots(queue: IntervalQueue) -> Client:
    """Take slots by a handle."""

    async def client(number: int, count: int) -> None:
        del number
        for _ in range(count):
            async with queue.slot():
                pass

    return client


def slots_of_envoy(channel: grpc.aio.Channel) -> Client:
    """Take slots as Envoy does."""
    ask = _verb(channel, f"/{envoy.NAME}/ShouldRateLimit", limits.RateLimitRequest, limits.RateLimitResponse)
    entry = limits.Descriptor.Entry(key="to", value="envoy")
    request = limits.RateLimitRequest(domain="bench", descriptors=[limits.Descriptor(entries=[entry])])

    async def client(number: int, count: int) -> None:
        del number
        for _ in range(count):
            assert (await ask(request)).overall_code == limits.RateLimitResponse.OK

    return client


def slots_over_http(address: str, queue: str) -> Client:
    """Take slots over HTTP, by a client that costs as little as possible: the processors are shared."""
    body = b'{"within": 60}'
    request = (
        f"POST /v1/queues/{queue}/slot HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    message = request.encode() + body

    async def client(number: int, count: int) -> None:
        del number
        host, port = address.rsplit(":", 1)
        async with await anyio.connect_tcp(host, int(port)) as stream:
            for _ in range(count):
                await stream.send(message)
                answer = await stream.receive()
                while not answer.endswith(b"}"):  # the body is one object
                    answer += await stream.receive()
                assert answer.startswith(b"HTTP/1.1 200"), answer

    return client
