"""A process that starts paced jobs and prints a line for each; the tests of crashes start it."""

from __future__ import annotations

import json
import sys

import anyio

from intervalq import IntervalQueue


async def main(store: str, name: str, interval: float, jobs: int, keep_running: bool) -> None:
    queue = IntervalQueue(name, interval=interval, store=store)

    async def caller(count: int) -> None:
        for _ in range(count):
            async with queue.slot() as slot:
                # The time of the last check: how long the machine takes after it is not the queue's doing.
                shard = queue._shard()
                print(json.dumps([shard.dispatcher.last.at, slot.ticket, shard.given_up]), flush=True)
                if keep_running and slot.ticket > 4:
                    await anyio.sleep_forever()

    print("ready", flush=True)
    sys.stdin.readline()
    async with queue, anyio.create_task_group() as group:
        shard = queue._shard()
        for _ in range(4):
            group.start_soon(caller, jobs // 4)
    figures = {"given_up": shard.given_up, "regressions": shard.regressions}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "killed")
