"""Finds the processes of Spark on this machine (executors and Python workers), to be examined and killed.

Linux only, like the cluster of these tests: its hosts are loopback addresses that other systems lack.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = "INTERVALQ_TEST_PROGRAM"
"""The environment variable that marks all processes of a program, including executors and Python workers."""

_EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DAEMON: Final = "pyspark.daemon"


@dataclass(frozen=True)
class Process:
    """A process, as it was when it was examined."""

    pid: int
    parent: int
    words: tuple[str, ...]

    def kill(self) -> None:
        """Kill it, as `kill -9` does; it may have ended before."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    @property
    def lives(self) -> bool:
        """Whether it still runs; a zombie doesn't."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] not in "ZX"


@dataclass(frozen=True)
class Executor(Process):
    """An executor's JVM."""

    number: str
    host: str

    def workers(self) -> list[Process]:
        """Its Python workers at this moment, which its daemon forked."""
        return python_workers(self.pid)


def executors(mark: str) -> list[Executor]:
    """The executors of the program with this mark, by their numbers."""
    found = [
        Executor(one.pid, one.parent, one.words, _after(one, "--executor-id"), _after(one, "--hostname"))
        for one in processes()
        if _EXECUTOR in one.words and marked(one, mark)
    ]
    return sorted(found, key=lambda one: int(one.number))


def python_workers(jvm: int) -> list[Process]:
    """The Python workers of a JVM: an executor's, or that of a local session."""
    daemons = [one for one in processes() if _DAEMON in one.words]
    own = {one.pid for one in daemons if one.parent == jvm}
    return [one for one in daemons if one.parent in own]


def of_program(mark: str) -> list[Process]:
    """All processes that a program started and that still exist, on any of the cluster's hosts."""
    return [one for one in processes() if marked(one, mark)]


def marked(process: Process, mark: str) -> bool:
    """Whether it belongs to that program."""
    try:
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def processes() -> Iterator[Process]:
    """All processes that this user may see, except those that ended meanwhile."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = folder.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
                status = folder.joinpath("stat").read_text(encoding="utf-8", errors="replace")
                yield Process(int(folder.name), int(status.rpartition(")")[2].split()[1]), tuple(words[:-1]))


def _after(process: Process, option: str) -> str:
    return process.words[process.words.index(option) + 1]
