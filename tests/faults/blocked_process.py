"""A worker whose function blocks its event loop: it sends no heartbeat until it reads a line from its input.

    python tests/faults/blocked_process.py URL QUEUE EXPIRY

It prints "begun" and the attempt when a task begins, and ends when that task is done.
"""

from __future__ import annotations

import sys

import anyio

from intervalq.tasks import Claim, Tasks


async def main(url: str, queue: str, expiry: str) -> None:
    async with Tasks(url, expiry=float(expiry)) as tasks:

        @tasks.worker(queue)
        async def work(task: Claim) -> None:
            sys.stdout.write(f"begun {task.attempt}\n")
            sys.stdout.flush()
            sys.stdin.readline()
            tasks.stop()

        await tasks.run()


if __name__ == "__main__":
    store, name, seconds = sys.argv[1:]
    anyio.run(main, store, name, seconds)
