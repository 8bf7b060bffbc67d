"""One program of a run: starts it in a session of its own, captures its output, and waits for its end."""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from subprocess import DEVNULL, PIPE, Popen
from typing import Final

import anyio
import anyio.to_thread

MAX_OUTPUT: Final = 1 << 20
"""The maximum number of bytes that are kept of each of a job's two outputs."""

NOT_FOUND: Final = 127
NOT_STARTED: Final = 126
"""Exit codes for programs that can't be started, as in shells."""

GRACE: Final = 2.0
"""Seconds that programs have to end after SIGTERM before they are killed."""

_CHUNK: Final = 1 << 16

_LINGER: Final = 2.0
"""Seconds to wait for output after a program ended: processes that it left may keep its pipes open."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    at: float
    """What `clock` read when it ended."""
    stdout: str
    stderr: str


async def run_program(
    argv: Sequence[str], clock: Callable[[], float], started: Callable[[int], object]
) -> Ended:
    """Run a program to its end.

    Args:
        argv: the program and its arguments.
        clock: read once, when it ends.
        started: called with its process id as soon as there is one. This is also the id of its session and
            process group, so it gets no signals from a terminal, and can be ended with all that it started.
    """
    try:
        # Not started through the event loop, which would report the process id a moment later: if this
        # process were killed in that moment, nobody would know of the program.
        process = Popen(argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, bufsize=0, start_new_session=True)  # noqa: ASYNC220, S603
    except OSError as error:
        code = NOT_FOUND if error.errno in {errno.ENOENT, errno.ENOTDIR} else NOT_STARTED
        what = "not found" if code == NOT_FOUND else error.strerror or str(error)
        return Ended(code, clock(), "", f"intervalq: {argv[0] if argv else ''}: {what}\n")
    started(process.pid)
    try:
        return await _caught(process, clock)
    finally:
        if process.poll() is None:  # this task was cancelled
            end_program(process.pid, kill=True)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


async def _caught(process: Popen[bytes], clock: Callable[[], float]) -> Ended:
    out, err = _Output(), _Output()
    async with anyio.create_task_group() as group:
        for output, pipe in ((out, process.stdout), (err, process.stderr)):
            assert pipe is not None
            group.start_soon(output.read, pipe.fileno())
        code = await _exit_code(process)
        at = clock()
        group.cancel_scope.deadline = anyio.current_time() + _LINGER
    return Ended(code, at, out.text(), err.text())


@cache
def _threads() -> anyio.CapacityLimiter:
    return anyio.CapacityLimiter(math.inf)


async def _exit_code(process: Popen[bytes]) -> int:
    if sys.platform == "linux":
        with suppress(OSError):  # the kernel is too old
            descriptor = os.pidfd_open(process.pid)
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
            return process.wait()
    return await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True, limiter=_threads())


def end_program(pid: int, *, kill: bool) -> None:
    """Ask a program and all that it started to end, or end them."""
    # It may have ended already, and a program of another user (sudo) can't be ended.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL if kill else signal.SIGTERM)


class _Output:
    """The beginning of a program's output; the rest is read, but only counted."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size = 0

    async def read(self, pipe: int) -> None:
        while True:
            await anyio.wait_readable(pipe)
            chunk = os.read(pipe, _CHUNK)
            if not chunk:
                return
            self._size += len(chunk)
            self._kept += chunk[: MAX_OUTPUT - len(self._kept)]

    def text(self) -> str:
        text = self._kept.decode(errors="replace")
        if self._size > MAX_OUTPUT:
            text += f"\n[intervalq: cut here, after {MAX_OUTPUT} of {self._size} bytes]\n"
        return text
