"""A worker process of a storm: it does tasks and writes each into a ledger, in the step of the commit.

    python tests/faults/task_process.py URL MODE

MODE is "commit": in the transaction that removes the task; or "unguarded": in an earlier transaction, as
workers do whose queue is elsewhere, by which a storm shows that it detects tasks that are done twice.
On Redis, the ledger of every other task, and of some in chunks, is a queue, and that of the others are their
results.

What a task is follows from its number. An entry of a follow-up that began before its batch had ended, or of a
task that found somebody else's checkpoint, has a negative number of claims.
"""

from __future__ import annotations

import logging
import random
import secrets
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import anyio

from intervalq.errors import ClaimLost
from intervalq.tasks import Claim, Reject, Snooze, Tasks
from intervalq.tasks._spec.outcome import is_dead

EXPIRY = 1.0
LEDGER = "ledger"
"""The queue that is the ledger on Redis."""
FENCES = "fences"
"""The queue in which holders of the lock leave their fencing numbers, each with a text of its own."""
HOPELESS = "hopeless"
"""Why some tasks are rejected."""
QUEUE, CHUNKS = "storm", "storm-chunks"
BATCH = 20
"""How many tasks are inserted at a time; every other time, the last one is the follow-up of the others."""


def id_of(number: int) -> str:
    """The id of a task."""
    return f"t{number}"


def queue_of(number: int) -> str:
    """The queue of a task."""
    return CHUNKS if number % 4 == 1 else QUEUE


def parts_of(number: int) -> range:
    """The tasks whose follow-up this one is, if any."""
    return range(number - BATCH + 1, number if number % (2 * BATCH) == BATCH - 1 else 0)


def is_hopeless(number: int) -> bool:
    """Whether it goes to the dead-letter queue."""
    return number % BATCH == 6


async def main(url: str, mode: str) -> None:
    tasks = Tasks(url, expiry=EXPIRY)
    mark = "?" if url.startswith("sqlite") else "%s"
    write = f"insert into ledger (task, claims) values ({mark}, {mark})"

    async def execute(connection: object, entry: list[int]) -> None:
        done = connection.execute(write, entry)  # type: ignore[attr-defined]
        if mark == "%s":
            await done

    @tasks.worker(QUEUE, concurrency=4, max_attempts=None, backoff=0.05)
    async def work(claim: Claim) -> object:
        await anyio.sleep(random.uniform(0, 0.03))
        if mode == "commit":
            await operate(tasks, claim)
        elif random.random() < 0.05:
            raise RuntimeError("some attempts fail")
        entry = [claim.value, claim.claims if await is_timely(tasks, claim) else -1]
        if url.startswith("redis"):
            return tasks.new(LEDGER, entry) if claim.value % 2 else entry
        if mode == "commit":
            async with claim.commit() as connection:
                await execute(connection, entry)
                await anyio.sleep(random.uniform(0, 0.01))
            return None
        async with tasks.transaction() as connection:
            await execute(connection, entry)
        await anyio.sleep(random.uniform(0, 0.01))
        with suppress(ClaimLost):
            await claim.ack()
        return None

    @tasks.worker(CHUNKS, batch=8, within="20ms", concurrency=2, max_attempts=None, backoff=0.05)
    async def chunk(claims: Sequence[Claim]) -> object:
        await anyio.sleep(random.uniform(0, 0.03))
        if random.random() < 0.05:
            raise RuntimeError("some attempts fail")
        if url.startswith("redis"):
            await acknowledge(claims[::2])
            return [tasks.new(LEDGER, [claim.value, claim.claims]) for claim in claims if claim.open]
        async with tasks.commit(*claims) as connection:
            for claim in claims:
                await execute(connection, [claim.value, claim.claims])
        return None

    async with anyio.create_task_group() as group:
        group.start_soon(stop_at_sigterm, tasks)
        print("works", flush=True)
        await tasks.run(grace=2.0)
        group.cancel_scope.cancel()
    await tasks.aclose()


async def operate(tasks: Tasks, claim: Claim) -> None:
    """What functions do before they commit: they fail, snooze, report, take a lock, give up."""
    match random.randrange(20):
        case 0:
            raise RuntimeError("some attempts fail")
        case 1:
            raise Snooze(0.05)
        case 2 | 3:
            await claim.in_progress(progress=0.5, note="half", checkpoint=claim.value)
        case 4:
            with suppress(TimeoutError):
                async with tasks.lock("storm", timeout=0, expiry=EXPIRY) as fence:
                    await tasks.insert(FENCES, [fence, secrets.token_hex(8)])
    if is_hopeless(claim.value):
        raise Reject(HOPELESS)


async def acknowledge(claims: Sequence[Claim]) -> None:
    """Acknowledge some claims of a chunk by hand, with their entries as results."""
    for claim in claims:
        with suppress(ClaimLost):
            await claim.ack(result=[claim.value, claim.claims])


async def is_timely(tasks: Tasks, claim: Claim) -> bool:
    """Whether all that must have been before this task was, and nothing of others came in between."""
    left = await tasks.tasks(ids=[id_of(number) for number in parts_of(claim.value)])
    return claim.checkpoint in {None, claim.value} and all(is_dead(task.queue) for task in left)


async def stop_at_sigterm(tasks: Tasks) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            tasks.stop()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    store, how = sys.argv[1:]
    anyio.run(main, store, how)
