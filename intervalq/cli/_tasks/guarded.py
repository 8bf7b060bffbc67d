"""A command that doesn't outlive the process that has started it, however that process ends.

A process that is killed can't end what it has started. So a second process, the guard, starts the command
and waits for its end; when the first process is gone, the guard ends the command. They talk over two pipes,
in lines: the first process sends `run` with the fencing number, and numbers of signals for the command; the
guard answers with the command's process id, and then with its exit code.

At a terminal, the command stays in the foreground, in the process group of both, so that it can read from the
terminal and gets Ctrl-C from it. Otherwise it has a process group of its own, which is ended as a whole.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from subprocess import Popen
from typing import Final, NoReturn

import anyio

from intervalq.cli._run.program import GRACE, NOT_FOUND, NOT_STARTED

FENCE: Final = "INTERVALQ_FENCE"
"""The environment variable with the fencing number."""

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Guarded:
    """A command and its guard. It forks, so create it before the process has threads or an event loop."""

    def __init__(self, command: Sequence[str]) -> None:
        self.pid: int | None = None
        """The process id of the command; None: it may not have begun yet."""
        self.has_terminal = sys.stdin is not None and sys.stdin.isatty()
        """Whether the terminal itself sends its signals to the command."""
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._guard = os.fork()
        if not self._guard:
            os.close(self._orders)
            os.close(self._answers)
            _Guard(command, orders, answers, grouped=not self.has_terminal).serve()
        os.close(orders)
        os.close(answers)
        self._unread = b""

    async def run(self, fence: int, grace: float) -> int:
        """Run the command to its end, and return its exit code; as in shells, 128 and more for signals.

        If this is cancelled, the command is ended: killed, if it goes on for `grace` seconds.
        """
        self._order(f"run {fence}")
        try:
            return await self._end()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                self.send(signal.SIGTERM)
                with anyio.move_on_after(grace):
                    await self._end()
                self.send(signal.SIGKILL)
                await self._end()
            raise

    def send(self, number: int) -> None:
        """Send a signal to the command."""
        self._order(str(int(number)))

    def close(self) -> None:
        """End the guard; and the command, if it runs."""
        os.close(self._orders)
        os.close(self._answers)
        os.waitpid(self._guard, 0)

    def _order(self, line: str) -> None:
        with suppress(BrokenPipeError):  # the command has ended, or the guard was killed
            os.write(self._orders, f"{line}\n".encode())

    async def _end(self) -> int:
        while (line := await self._line()) is not None:
            word, _, number = line.partition(" ")
            if word == "code":
                return int(number)
            self.pid = int(number)
        if self.pid is not None:  # the guard was killed
            _signal(self.pid, signal.SIGKILL, grouped=not self.has_terminal)
        return 128 + signal.SIGKILL

    async def _line(self) -> str | None:
        while b"\n" not in self._unread:
            await anyio.wait_readable(self._answers)
            more = os.read(self._answers, 256)
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


class _Guard:
    """The guard's side."""

    def __init__(self, command: Sequence[str], orders: int, answers: int, *, grouped: bool) -> None:
        self._command = command
        self._orders = os.fdopen(orders)
        self._answers = answers
        self._grouped = grouped
        self._was_signalled = False

    def serve(self) -> NoReturn:
        """Do what the first process orders, until the command or the first process has ended."""
        for number in _HANDLED:  # ignored signals would stay ignored in the command
            signal.signal(number, lambda *_: None)
        try:
            for line in self._orders:
                if line.startswith("run "):
                    self._run(line.removeprefix("run ").strip())
                    break
        finally:
            os._exit(0)  # nothing of the first process is to be cleaned up here

    def _run(self, fence: str) -> None:
        try:
            process = Popen(  # noqa: S603 - the purpose of this module
                self._command,
                env={**os.environ, FENCE: fence},
                process_group=0 if self._grouped else None,
                # Before the command runs: if the guard is killed then, the first process can end it.
                preexec_fn=self._report_pid,  # noqa: PLW1509 - the guard has no other thread yet
            )
        except OSError as error:
            sys.stderr.write(f"intervalq: {self._command[0]}: {error.strerror}\n")
            sys.stderr.flush()
            self._answer("code", NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED)
            return
        threading.Thread(target=self._obey, args=(process,), daemon=True).start()
        code = process.wait()
        if self._was_signalled and self._grouped:  # some processes of its group may ignore that signal
            _signal(process.pid, signal.SIGKILL, grouped=True)
        self._answer("code", code if code >= 0 else 128 - code)

    def _obey(self, process: Popen[bytes]) -> None:
        for line in self._orders:
            self._signal(process, int(line))
        # The first process is gone.
        self._signal(process, signal.SIGTERM)
        time.sleep(GRACE)
        self._signal(process, signal.SIGKILL)

    def _signal(self, process: Popen[bytes], number: int) -> None:
        self._was_signalled = True
        if self._grouped:
            _signal(process.pid, number, grouped=True)
        else:
            process.send_signal(number)

    def _report_pid(self) -> None:
        self._answer("pid", os.getpid())

    def _answer(self, word: str, number: int) -> None:
        with suppress(BrokenPipeError):
            os.write(self._answers, f"{word} {number}\n".encode())


def _signal(pid: int, number: int, *, grouped: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if grouped else os.kill)(pid, number)
