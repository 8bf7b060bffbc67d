"""How soon another worker begins the task of one that was killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from _tasks_board import NewBoard
from _tasks_run import begin, processes, wait, work
from intervalq.tasks import sync
from task_peers import CRASH, HOLDER
from task_peers.base import QUEUE

_MAX_WAIT = 60.0
_AGAIN = 0.1


def crashes(url: str, *, times: int) -> Iterator[float]:
    """Seconds from a SIGKILL to the next start of the worker's task.

    This is repeated, while another worker keeps running.
    """
    draw = random.Random(1)
    with (
        sync.Tasks(url) as tasks,
        NewBoard() as steady,
        processes([work(CRASH, "work", url, steady)]) as other,
    ):
        begin(other)
        for _ in range(times):
            with NewBoard() as board:
                with processes([work(HOLDER, "work", url, board)]) as fleet:
                    begin(fleet)
                    while not board.begun:  # the other worker may be quicker, and do the task at once
                        tasks.insert(QUEUE, {"n": 0})
                        time.sleep(_AGAIN)
                    time.sleep(
                        0.2 + draw.random()
                    )  # it dies anywhere between two heartbeats, which come each second
                    before = steady.begun
                    killed = time.monotonic_ns()
                # Leaving the context has killed it.
                wait(other, steady, before + 1, _MAX_WAIT)
                yield (time.monotonic_ns() - killed) / 1e9
        steady.end()
