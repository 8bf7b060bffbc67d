"""One run of one contender of durable tasks: its processes, from their start to their results."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import _node
from _fleet import Fleet, WorkerError
from _run import HERE, Around, undisturbed
from _tasks_board import NewBoard
from _tasks_server import looking, server_cpu
from task_peers import Contender
from task_peers.base import Work

_PYTHON = [sys.executable, "-m", "task_peers.worker"]

_LEAD = 0.02
"""Seconds from announcing the start of a run to that start."""
_LOOK = 0.0005
_LOOK_AT_DATABASE = 0.003
MAX_WAIT = 120.0
"""Seconds after which a run has failed."""


def work(contender: Contender, role: str, url: str, board: NewBoard, **more: Any) -> Work:
    """The work of one process of a contender."""
    return Work(
        role,
        contender.place,
        url,
        board.path,
        options=dict(contender.options),
        **{"uvloop": contender.uvloop, **more},
    )


@contextlib.contextmanager
def processes(works: Sequence[Work]) -> Iterator[Fleet]:
    """Processes of one contender that are ready."""
    command, environment = _PYTHON, {}
    if works[0].place.endswith(".js"):
        command = ["node", os.fspath(HERE / "task_peers" / works[0].place)]
        environment = {"NODE_PATH": str(_node.modules())}
    with Fleet(command, [asdict(each) for each in works], folder=HERE, environment=environment) as fleet:
        yield fleet


def begin(fleet: Fleet) -> int:
    """Let them begin, and return the instant."""
    at = time.monotonic_ns() + int(_LEAD * 1e9)
    fleet.begin(at)
    return at


def now() -> int:
    """Nanoseconds of CLOCK_MONOTONIC; `Fleet.results` waits a minute from it."""
    return time.monotonic_ns()


def install(contender: Contender, url: str) -> None:
    """Create the schema of a contender."""
    with NewBoard() as board, processes([work(contender, "install", url, board)]) as fleet:
        begin(fleet)
        fleet.results(now())


def fill(contender: Contender, url: str, count: int) -> float:
    """Insert this many tasks, and return the seconds that it took."""
    with NewBoard() as board, processes([work(contender, "fill", url, board, count=count)]) as fleet:
        begin(fleet)
        [found] = fleet.results(now())
    return float(found["seconds"])


@dataclass(frozen=True)
class Drained:
    """The cost of doing all the tasks."""

    seconds: float
    client: float
    """CPU seconds of the workers."""
    server: float
    """CPU seconds of the server; NaN: not known."""

    def per(self, tasks: int) -> dict[str, float]:
        """The figures of a row."""
        found = {"per_s": tasks / self.seconds, "client_us": self.client / tasks * 1e6}
        return found if math.isnan(self.server) else {**found, "server_us": self.server / tasks * 1e6}


def drain(contender: Contender, url: str, count: int, workers: int) -> Drained:
    """From the start of the workers until the database has none of the tasks left."""
    with NewBoard() as board, looking(contender, url) as left:
        works = [work(contender, "work", url, board, index=index) for index in range(workers)]
        with processes([*works, work(contender, "filled", url, board, index=workers, count=count)]) as fleet:
            if not left():
                raise WorkerError("the tasks that were inserted can't be seen")
            cpu = server_cpu(url)
            begun = begin(fleet)
            wait(fleet, board, count)
            # All have begun; the last of them are still to be committed.
            while left():
                _check(fleet, board, begun, "tasks are left")
                time.sleep(_LOOK_AT_DATABASE)
            seconds = (time.monotonic_ns() - begun) / 1e9
            cpu = server_cpu(url) - cpu
            board.end()
            found = fleet.results(now())
    return Drained(seconds, sum(each["cpu"] for each in found[:workers]), cpu)


def wait(fleet: Fleet, board: NewBoard, count: int, longest: float = MAX_WAIT) -> None:
    """Wait until this many tasks have begun."""
    begun = time.monotonic_ns()
    while board.begun < count:
        _check(fleet, board, begun, f"{board.begun} of {count} tasks have begun", longest)
        time.sleep(_LOOK)


def _check(fleet: Fleet, board: NewBoard, begun: int, what: str, longest: float = MAX_WAIT) -> None:
    if board.failed:
        fleet.results(now())  # which says why
    if time.monotonic_ns() - begun > longest * 1e9:
        raise WorkerError(f"{what} after {longest:g} s")


def latency(contender: Contender, url: str, count: int, every: float, role: str = "insert") -> list[float]:
    """Milliseconds from before the insert to the function's first instruction, in an idle worker.

    With the role `cancel`: from before the cancel to the end of the function.
    """
    warm = 5
    each = 2 if role == "cancel" else 1
    with NewBoard() as board:
        works = [
            work(contender, "work", url, board, records=True),
            work(contender, role, url, board, index=1, count=count + warm, every=every),
        ]
        with processes(works) as fleet:
            begin(fleet)
            wait(fleet, board, each * (count + warm))
            time.sleep(0.1)
            board.end()
            worker, producer = fleet.results(now())
    starts = dict(reversed(worker["starts"]))
    return [(starts[number] - at) / 1e6 for number, at in enumerate(producer["begun"])][warm:]


def turns(contender: Contender, url: str, count: int, few: int) -> int:
    """How many tasks began until the last of the `few` that were inserted last did."""
    with NewBoard() as board:
        works = [work(contender, "work", url, board, records=True)]
        works.append(work(contender, "filled", url, board, index=1, count=count))
        with processes(works) as fleet:
            begin(fleet)
            wait(fleet, board, count)
            board.end()
            worker, _ = fleet.results(now())
    return 1 + max(at for at, (number, _) in enumerate(worker["starts"]) if number >= count - few)


def starts(
    contender: Contender, url: str, count: int, workers: int, seconds: float, *, around: Around = undisturbed
) -> list[int]:
    """When tasks began, while workers drained a backlog, in the time after the first start."""
    with NewBoard() as board:
        works = [work(contender, "work", url, board, index=index, records=True) for index in range(workers)]
        works.append(work(contender, "filled", url, board, index=workers, count=count))
        with processes(works) as fleet, around(fleet.pids[:workers]):
            begin(fleet)
            wait(fleet, board, 1)
            first = now()
            while now() - first < seconds * 1e9 and not board.failed:
                time.sleep(0.05)
            board.end()
            found = fleet.results(now())
    return sorted(at for each in found[:workers] for _, at in each["starts"])
