"""One process of a run of durable tasks; see `_fleet` for how it is told what to do.

install   makes the schema in a new database
fill      inserts `count` tasks, and says how long that took
filled    inserts them before it says that it is ready
work      runs tasks until the run is over, and says when each began, if that is recorded, and its CPU time
insert    inserts `count` tasks, one at a time with pauses, and says when it began with each
cancel    inserts `count` tasks, one at a time, and cancels each once it runs, and says when it began to
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
import threading
import time
import traceback
from typing import Any

from _tasks_board import Board
from task_peers.base import Adapter, Seen, Work

_LOOK = 0.01
"""Seconds between two checks whether the run is over."""


def _say(text: str) -> None:
    rest = text.encode() + b"\n"
    while rest:
        rest = rest[os.write(1, rest) :]


def _finish(found: dict[str, Any]) -> None:
    _say(json.dumps(found))
    os._exit(0)  # whatever a contender still waits for


async def _begin() -> int:
    """Report that everything is ready, and wait for the common beginning."""
    _say("ready")
    begin = int(await asyncio.to_thread(sys.stdin.readline))

    def watch() -> None:
        sys.stdin.read()  # until the process that started this one ends
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    while (left := begin - time.monotonic_ns()) > 0:
        await asyncio.sleep(left / 1e9)  # noqa: TID251
    return begin


def _until_over(board: Board, seen: Seen, cpu: float) -> None:
    while not board.over:
        time.sleep(_LOOK)
    _finish({"starts": list(seen.starts), "cpu": time.process_time() - cpu})


async def _insert(adapter: Adapter, work: Work) -> None:
    begun: list[int] = []
    draw = random.Random(work.index)
    for number in range(work.count):
        # With jitter, so that nobody's timers fall in step with it.
        await asyncio.sleep(work.every * draw.uniform(0.5, 1.5))  # noqa: TID251
        begun.append(time.monotonic_ns())
        await adapter.insert(number)
    _finish({"begun": begun})


async def _cancel(adapter: Adapter, work: Work, board: Board) -> None:
    begun: list[int] = []
    await asyncio.sleep(1)  # noqa: TID251 - by then, all workers listen for cancels
    for number in range(work.count):
        task = await adapter.insert(number)
        while board.begun < 2 * number + 1:
            await asyncio.sleep(0.001)  # noqa: TID251
        begun.append(time.monotonic_ns())
        await adapter.cancel(task)
        while board.begun < 2 * number + 2:
            await asyncio.sleep(0.001)  # noqa: TID251
    _finish({"begun": begun})


async def main(work: Work, board: Board) -> None:
    """Do the work."""
    seen = Seen(work, board)
    module, name = work.place.split(":")
    kind: type[Adapter] = getattr(importlib.import_module(f"task_peers.{module}"), name)
    adapter = kind(work, seen)
    if work.role == "install":
        await adapter.install()
        await _begin()
        _finish({})
    await adapter.open()
    if work.role == "filled":
        await adapter.fill(work.count)
        await _begin()
        _finish({})
    begin = await _begin()
    if work.role == "fill":
        await adapter.fill(work.count)
        _finish({"seconds": (time.monotonic_ns() - begin) / 1e9})
    elif work.role == "insert":
        await _insert(adapter, work)
    elif work.role == "cancel":
        await _cancel(adapter, work, board)
    else:
        cpu = time.process_time()
        threading.Thread(target=_until_over, args=(board, seen, cpu), daemon=True).start()
        await adapter.work()
        await asyncio.sleep(600)  # noqa: TID251 - the thread ends the process


def run() -> None:
    """Read the one argument, and do its work in an event loop."""
    work = Work(**json.loads(sys.argv[1]))
    board = Board(work.board)
    factory = None
    if work.uvloop:
        import uvloop  # noqa: PLC0415 - only where it is asked for

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(work, board))
    except BaseException:  # noqa: BLE001 - whatever it is, others wait for this process
        traceback.print_exc()
        sys.stderr.flush()
        board.fail()
        os._exit(1)


if __name__ == "__main__":
    run()
