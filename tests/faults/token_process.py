"""A worker process of a storm over work tokens: it writes into a ledger when it begins and ends a task,
and when its acknowledgement has been confirmed.

    python tests/faults/token_process.py URL QUEUE LEDGER MODE

MODE is "careful"; or "careless": with a store that doesn't renew its claims, and works on messages delivered
earlier, as plain clients of JetStream do, by which a storm shows that it detects two workers on a key.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.task_process import stop_at_sigterm
from intervalq.tasks import Claim, Tasks
from intervalq_stores.nats._task import claims as nats_task_claims
from intervalq_stores.nats._task import message as nats_task_message
from intervalq_stores.nats._task import restore as nats_task_restore
from intervalq_stores.nats._task.holdings import Holdings

EXPIRY = 1.5
ALIVE = 0.05
"""How often a worker writes that it isn't stopped, in seconds."""


def careless() -> None:
    """Break the store on purpose."""
    true = nats_task_message.delivered

    async def beat(self: Holdings) -> bool:
        return self is not None

    def delivered(message: Any) -> Any:
        return true(message)._replace(times=1)

    Holdings.beat = beat  # type: ignore[method-assign]
    for module in (nats_task_claims, nats_task_restore):
        module.delivered = delivered  # type: ignore[attr-defined]


async def main(url: str, queue: str, ledger: int, mode: str) -> None:
    tasks = Tasks(url, expiry=EXPIRY)

    def note(what: str, claim: Claim) -> None:
        write(what, claim.key or "-", claim.value)

    def write(what: str, key: str, value: object) -> None:
        os.write(ledger, f"{what} {key} {value} {os.getpid()} {time.monotonic():.3f}\n".encode())

    async def live() -> None:
        while True:
            write("alive", "-", 0)
            await anyio.sleep(ALIVE)

    @tasks.worker(queue, concurrency=4, max_attempts=None, backoff=0.02)
    async def work(claim: Claim) -> None:
        if random.random() < 0.05:
            raise RuntimeError("some attempts fail")
        note("begin", claim)
        try:
            slow = mode == "careless" and random.random() < 0.1
            await anyio.sleep(random.uniform(1, 2) * EXPIRY if slow else random.uniform(0, 0.03))
        except BaseException:
            note("stop", claim)
            raise
        note("end", claim)
        await claim.ack()
        note("acked", claim)

    async with anyio.create_task_group() as group:
        group.start_soon(stop_at_sigterm, tasks)
        group.start_soon(live)
        await tasks.run(grace=2.0)
        group.cancel_scope.cancel()
    await tasks.aclose()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    store, name, path, how = sys.argv[1:]
    if how == "careless":
        careless()
    anyio.run(main, store, name, os.open(path, os.O_WRONLY | os.O_APPEND), how)
