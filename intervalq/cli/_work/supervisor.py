"""Several processes that run the same workers: one that dies is replaced, and all end together."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from subprocess import DEVNULL
from typing import Any, Final

import anyio
from anyio.abc import Process

from intervalq._show import seconds, warn
from intervalq.cli._app import Failed
from intervalq.cli._work.child import END, STOP
from intervalq.cli._work.worker import AT_ONCE, SLACK, Plan, heard, say_stopping

_FIRST_PAUSE: Final = 0.5
_MAX_PAUSE: Final = 30.0
"""The longest pause before a process is replaced; pauses grow while processes die with nothing done."""

_CHUNK: Final = 1 << 16


class Fleet:
    """The processes of `intervalq work`."""

    def __init__(self, plan: Plan, processes: int) -> None:
        self.counts: Counter[str] = Counter()
        self._plan, self._processes = plan, processes
        self._failed: Failed | None = None
        self._was_ready = False
        self._by: int | None = None
        self._stopping = anyio.Event()
        self._children: set[_Child] = set()

    async def run(self) -> int:
        """Run until all processes have ended, and return the exit code.

        Raises:
            Failed: they can't work.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._heed)
            async with anyio.create_task_group() as keeping:
                for number in range(1, self._processes + 1):
                    keeping.start_soon(self._keep, number)
            group.cancel_scope.cancel()
        if self._failed is not None:
            raise self._failed
        return 0 if self._by is None else 128 + self._by

    async def _heed(self) -> None:
        with anyio.open_signal_receiver(*heard()) as signals:
            async with anyio.create_task_group() as group:
                async for received in signals:
                    if not self._stopping.is_set():
                        say_stopping(self._plan)
                        self._stop()
                        group.start_soon(self._kill_after, self._plan.grace + SLACK + 1)
                    elif self._by is None:
                        self._by = int(received)
                        self._tell_all(END)
                        group.start_soon(self._kill_after, AT_ONCE + 1)

    def _stop(self) -> None:
        self._stopping.set()
        self._tell_all(STOP)

    def _tell_all(self, what: bytes) -> None:
        for child in self._children:
            child.tell(what)

    async def _kill_after(self, pause: float) -> None:
        await anyio.sleep(pause)
        for child in self._children:
            child.kill()

    async def _keep(self, number: int) -> None:
        """Keep one place of the fleet filled: replace its process when it has died."""
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            child = _Child(self._plan)
            self._children.add(child)
            try:
                code = await child.live(self._ready)
            finally:
                self._children.discard(child)
                self.counts += child.counts
            if self._stopping.is_set() or code == 0:
                return
            if child.failed is not None and not self._was_ready:
                self._failed = Failed(child.failed, code)
                self._stop()
                return
            if child.counts.total():
                pause = _FIRST_PAUSE
            how = child.failed or _how(code)
            warn(f"process {number} ({child.pid}) {how}: it is replaced in {seconds(pause)}")
            with anyio.move_on_after(pause):
                await self._stopping.wait()
            pause = min(2 * pause, _MAX_PAUSE)

    def _ready(self) -> None:
        self._was_ready = True


class _Child:
    def __init__(self, plan: Plan) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: str | None = None
        self.pid = 0
        self._plan = plan
        self._process: Process | None = None
        self._socket: socket.socket | None = None
        self._unread = b""

    async def live(self, ready: Callable[[], None]) -> int:
        """Run the process to its end, and return its exit code; a negative one is a signal."""
        ours, theirs = socket.socketpair()
        # -P: a file in the working directory must not shadow a module of ours; `load` adds that folder.
        command = [sys.executable, "-P", "-m", "intervalq.cli._work.child", str(theirs.fileno())]
        ours.setblocking(False)
        self._socket = ours
        with ours, theirs:
            # A session of its own: Ctrl-C in the terminal is for the parent alone.
            async with await anyio.open_process(
                [*command, json.dumps(asdict(self._plan))],
                stdin=DEVNULL, stdout=None, stderr=None, start_new_session=True, pass_fds=[theirs.fileno()],
            ) as self._process:  # fmt: skip
                theirs.close()
                self.pid = self._process.pid
                async with anyio.create_task_group() as group:
                    group.start_soon(self._listen, ours, ready)
                    code = await self._process.wait()
                    group.cancel_scope.cancel()
            self._take(_rest(ours), ready)
        return code

    def tell(self, what: bytes) -> None:
        """Send a message to it. Not by signals: two that arrive at the same moment count as one."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(what)

    def kill(self) -> None:
        """Kill it, if it is alive."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _listen(self, ours: socket.socket, ready: Callable[[], None]) -> None:
        while True:
            await anyio.wait_readable(ours)
            if not (data := _rest(ours)):
                return
            self._take(data, ready)

    def _take(self, data: bytes, ready: Callable[[], None]) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            if "ready" in message:
                ready()
            elif "counts" in message:
                self.counts = Counter(message["counts"])
            else:
                self.failed = message["failed"]


def _rest(ours: socket.socket) -> bytes:
    """The data that has arrived by now."""
    data = bytearray()
    with suppress(BlockingIOError, ConnectionError):
        while chunk := ours.recv(_CHUNK):
            data += chunk
    return bytes(data)


def _how(code: int) -> str:
    if code < 0:
        return f"died of signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}"
