"""Stores without a server, and commands, in processes without what only the platforms of POSIX have."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import anyio
import pytest

from intervalq.rules import Inspect
from intervalq.store import open_store

PROCESSES, STEPS = 4, 60

WITHOUT_POSIX = """
import os, select, signal, sys
import filelock  # which has a lock on every platform; here it is that of this one
import asyncio, platform, random, threading, logging, concurrent.futures, multiprocessing

sys.modules["fcntl"] = None
for name in (
    "register_at_fork", "fork", "geteuid", "getuid", "getpgid", "killpg", "setsid", "uname", "pread",
    "pwrite", "fchmod", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "sched_getaffinity",
    "timerfd_create", "pipe2",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1"):
    delattr(signal, name)
asyncio.SelectorEventLoop.add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler  # not implemented
del select.poll
"""

PROGRAM = f"""
{WITHOUT_POSIX}
import anyio
import intervalq, intervalq.sync
from intervalq.rules import Advance, Settings
from intervalq.store import open_store
from intervalq.tasks import Tasks

async def main():
    store = open_store(sys.argv[1])
    for _ in range({STEPS}):
        await store.apply("q", Advance(settings=Settings(interval=1), nonce="n", take=1))
    await store.aclose()
    queue = intervalq.IntervalQueue("fast", interval=0.05, store=sys.argv[1])
    async with queue.slot():
        pass
    await queue.close()

anyio.run(main)
with intervalq.sync.IntervalQueue("blocking", interval=0.05, store=sys.argv[1]) as queue:
    assert queue.run(lambda: "ran") == "ran"
if sys.argv[1].startswith(("sqlite", "memory")):
    async def work():
        async with Tasks(sys.argv[1]) as tasks:
            await tasks.insert("cars", {{"paint": "red"}})
    anyio.run(work)
from intervalq_stores._files import lock
assert not lock.WAITS_IN_LINE
print("ended")
"""

COMMAND = f"""
{WITHOUT_POSIX}
import anyio
from intervalq.cli import main

anyio.wait_readable = None  # for sockets only
main()
"""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
def test_processes_take_their_turns(kind: str, tmp_path: Path) -> None:
    url = {
        "memory": "memory://",
        "sqlite": f"sqlite://{tmp_path}/state.db",
        "file": f"file://{tmp_path}/state.json",
    }[kind]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    for process in processes:
        out, error = process.communicate(timeout=100)
        assert out == "ended\n", error
    if kind == "memory":
        return

    async def ticket() -> int:
        store = open_store(url)
        state = (await store.apply("q", Inspect())).state
        await store.aclose()
        assert state is not None
        return state.ticket

    assert anyio.run(ticket) == PROCESSES * STEPS
    assert (tmp_path / f"{Path(url).name}.gate").exists(), "those who waited did so behind a gate"


def unread(pipe: IO[str]) -> int:
    """How many bytes of a pipe its reader has not taken yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def is_busy(pid: int) -> bool:
    """Whether a thread of a process doesn't sleep."""
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # one has just ended
        return True
    return any(stat.rpartition(")")[2].split()[0] != "S" for stat in stats)


def test_commands_change_many_tasks_until_ctrl_c(tmp_path: Path) -> None:
    def begin(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND, "tasks", *words, "--store", str(tmp_path / "state.db")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    assert begin("insert", "q").communicate("1\n2\n3\n") == ("3 tasks inserted\n", "")
    assert begin("move", "--queue", "q", "--all", "--to", "r").communicate() == ("3 tasks moved to r\n", "")
    process = begin("insert", "q", "--follow-up", "q", "0")
    assert process.stdin is not None
    assert process.stderr is not None
    with process:
        process.stdin.write("1\n2\n")
        process.stdin.flush()
        idle = 0
        while idle < 1_000:  # it has read all, and waits for more
            os.sched_yield()
            idle = 0 if unread(process.stdin) or is_busy(process.pid) else idle + 1
        process.send_signal(signal.SIGINT)
        assert "stopping" in process.stderr.readline()
        assert process.wait() == 130, "it ends though its input goes on"
        assert "interrupted: nothing was inserted" in process.stderr.read()
