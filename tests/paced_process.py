"""A process that starts paced jobs and prints a line for each; the tests of crashes start it."""

from __future__ import annotations

import json
import sys
from collections import Counter

import anyio

from intervalq import IntervalQueue
from intervalq._timing.clock import CLOCK


class Told(Counter[str]):
    """Counts unused slots of any cause, and prints each at once: a killed process has no last word.

    On a busy machine they include many that were revoked because a later slot was granted late.
    """

    def __setitem__(self, cause: str, count: int) -> None:
        super().__setitem__(cause, count)
        print(json.dumps({"given_up": self.total()}), flush=True)


async def main(store: str, name: str, interval: float, jobs: int, keep_running: bool) -> None:
    queue = IntervalQueue(name, interval=interval, store=store)

    async def caller(count: int) -> None:
        for _ in range(count):
            async with queue.slot() as slot:
                # The time of the last check: how long the machine takes after it is not the queue's doing.
                shard = queue._shard()
                at, state = shard.dispatcher.last.at, shard.state
                assert state is not None
                tolerance = state.tolerance + 2 * shard.time.error(state, CLOCK.get().now())
                print(json.dumps([at, slot.ticket, tolerance]), flush=True)
                if keep_running and slot.ticket > 4:
                    await anyio.sleep_forever()

    print("ready", flush=True)
    sys.stdin.readline()
    async with queue, anyio.create_task_group() as group:
        shard = queue._shard()
        shard.dispatcher.skipped = Told()
        for _ in range(4):
            group.start_soon(caller, jobs // 4)
    print(json.dumps({"regressions": shard.regressions}), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "killed")
