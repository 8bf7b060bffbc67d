"""A client that has many streams of wake-ups and waits for a task; its parent stops it then."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

import anyio
import grpc.aio

from intervalq.store import Waking, open_store
from service.grpc_client import GrpcClient


async def main(address: str, streams: int) -> None:
    store = open_store(f"intervalq://{address}")
    assert isinstance(store, Waking)
    async with (
        grpc.aio.insecure_channel(address) as channel,
        AsyncExitStack() as stack,
        anyio.create_task_group() as group,
    ):
        for number in range(streams):
            await stack.enter_async_context(store.wakeups(f"q{number}"))
        group.start_soon(GrpcClient(channel, "stopped").claim, "tasks")
        print("ready", flush=True)


anyio.run(main, sys.argv[1], int(sys.argv[2]))
