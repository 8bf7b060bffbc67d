"""On a machine without free processors, a job still begins after a bounded number of questions.

The tests count questions to the store and missed slots, never seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from intervalq import IntervalQueue

JOBS = 40
QUESTIONS = 20
"""The most questions that one job may need, however late its process wakes: the notice doubles each time, ten
times until it is a second, and five questions in a row may be spent on the store's clock.
"""


@pytest.fixture
def pressed() -> Iterator[None]:
    """Keep two busy loops on each processor, at ordinary priority."""
    loop = "import os\nwhile os.getppid() == parent: pass"  # ends with this process, however that ends
    script = f"parent = {os.getpid()}\n{loop}"
    loops = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


async def nothing() -> None:
    pass


async def lone_calls(url: str, interval: float) -> list[int]:
    """The number of questions that each of some calls needs, made one after the other on an idle queue."""
    queue = IntervalQueue(f"lone-{interval}", interval=interval, store=url)
    needed: list[int] = []
    async with queue:
        await queue.run(nothing)
        for _ in range(JOBS):
            await anyio.sleep(3 * interval)
            before = queue._shard().calls
            await queue.run(nothing)
            needed.append(queue._shard().calls - before)
    return needed


@pytest.mark.parametrize("interval", [0.001, 0.01])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_lone_caller_begins_beside_busy_loops(
    store: str, interval: float, pressed: None, tmp_path: Path
) -> None:
    url = "memory://" if store == "memory" else f"sqlite://{tmp_path}/state.db"
    needed = await lone_calls(url, interval)
    assert len(needed) == JOBS
    assert max(needed) <= QUESTIONS


STOPPED = """
import asyncio, json, sys
sys.path.insert(0, {tests!r})
from test_busy_machine import lone_calls
print("ready", flush=True)
print(json.dumps(asyncio.run(lone_calls("memory://", 0.001))), flush=True)
"""


def test_a_lone_caller_begins_in_a_process_that_is_stopped_for_most_of_the_time() -> None:
    """The process is stopped as under a CPU quota: it runs for 3 ms of every 15."""
    script = STOPPED.format(tests=str(Path(__file__).parent))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        over = threading.Event()

        def take_away() -> None:
            while not over.wait(0.003):
                process.send_signal(signal.SIGSTOP)
                over.wait(0.012)
                process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=take_away)
        thread.start()
        try:
            needed = process.stdout.readline()
        finally:
            over.set()
            thread.join()
            process.send_signal(signal.SIGCONT)
            process.kill()
    counts = [int(number) for number in needed.strip("[]\n").split(",")]
    assert len(counts) == JOBS
    assert max(counts) <= QUESTIONS
