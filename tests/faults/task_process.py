"""A worker process of a storm: it does tasks and writes each into a ledger, in the step of the commit.

    python tests/faults/task_process.py URL QUEUE MODE

MODE is "commit": in the transaction that removes the task; or "unguarded": in an earlier transaction, as
workers do whose queue is elsewhere, by which a storm shows that it detects tasks that are done twice.
On Redis, the ledger of every other task is a queue, and that of the others are their results.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
from contextlib import suppress

import anyio

from intervalq.errors import ClaimLost
from intervalq.tasks import Claim, Tasks

EXPIRY = 1.0
LEDGER = "ledger"
"""The queue that is the ledger on Redis."""


async def main(url: str, queue: str, mode: str) -> None:
    tasks = Tasks(url, expiry=EXPIRY)
    mark = "?" if url.startswith("sqlite") else "%s"
    write = f"insert into ledger (task, claims) values ({mark}, {mark})"

    async def execute(connection: object, claim: Claim) -> None:
        done = connection.execute(write, (claim.value, claim.claims))  # type: ignore[attr-defined]
        if mark == "%s":
            await done

    @tasks.worker(queue, concurrency=4, max_attempts=None, backoff=0.05)
    async def work(claim: Claim) -> object:
        await anyio.sleep(random.uniform(0, 0.03))
        if random.random() < 0.05:
            raise RuntimeError("some attempts fail")
        if url.startswith("redis"):
            entry = [claim.value, claim.claims]
            return tasks.new(LEDGER, entry) if claim.value % 2 else entry
        if mode == "commit":
            async with claim.commit() as connection:
                await execute(connection, claim)
                await anyio.sleep(random.uniform(0, 0.01))
            return None
        async with tasks.transaction() as connection:
            await execute(connection, claim)
        await anyio.sleep(random.uniform(0, 0.01))
        with suppress(ClaimLost):
            await claim.ack()
        return None

    async with anyio.create_task_group() as group:
        group.start_soon(stop_at_sigterm, tasks)
        print("works", flush=True)
        await tasks.run(grace=2.0)
        group.cancel_scope.cancel()
    await tasks.aclose()


async def stop_at_sigterm(tasks: Tasks) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            tasks.stop()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    store, name, how = sys.argv[1:]
    anyio.run(main, store, name, how)
