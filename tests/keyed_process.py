"""A process that calls a stub server for the keys of one queue; the tests of processes start it."""

from __future__ import annotations

import json
import sys
from contextlib import suppress

import anyio
from anyio.abc import SocketStream

from intervalq import IntervalQueue
from intervalq.errors import StoreUnavailable


async def main(given: dict[str, object]) -> None:
    queue = IntervalQueue(
        str(given["name"]), rate=str(given["rate"]), each=str(given["each"]), store=str(given["store"])
    )
    keys, port = given["keys"], given["port"]
    assert isinstance(keys, list)
    assert isinstance(port, int)

    async def call(stream: SocketStream, key: str) -> None:
        async with queue[key].slot():
            shard = queue[key]._shard()
            # The time of the last check, and the slots that this process woke too late for: how slow the
            # machine is, the stub can't see.
            said = f"{key} {shard.dispatcher.last.at} {shard.given_up}\n"
            await stream.send(said.encode())

    async def caller(stream: SocketStream, key: str) -> None:
        while True:
            with suppress(StoreUnavailable):  # a busy machine may take long for the first answer
                await call(stream, key)

    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"ready\n")
        await stream.receive(1)
        async with anyio.create_task_group() as group:
            for key in keys:
                for _ in range(2):
                    group.start_soon(caller, stream, key)


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.argv[1]))
