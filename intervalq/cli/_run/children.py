"""The parent's side of one shard: its process, its jobs, and its messages about them."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import anyio

from intervalq.cli._run.jobs import Job
from intervalq.cli._run.program import end_program
from intervalq.rules import Slot

if TYPE_CHECKING:
    from anyio.abc import Process


@dataclass(slots=True)
class Task:
    """A job on its way through a run."""

    number: int
    job: Job
    attempt: int
    last_attempt: int
    """The number of its last attempt: if that fails, the job has failed."""


@dataclass(slots=True)
class Running:
    """A task whose program was started."""

    task: Task
    ticket: int
    due: float
    started: float
    since: float = field(default_factory=anyio.current_time)
    """On the clock of this process's event loop."""
    pid: int | None = None


class Shard:
    """One shard. `heard` is called with each message that this class doesn't handle itself."""

    def __init__(
        self, number: int, options: dict[str, Any], heard: Callable[[Shard, dict[str, Any]], None]
    ) -> None:
        self.number = number
        self.waiting: dict[int, Task] = {}
        """Tasks that were given to the shard and have not begun."""
        self.running: dict[int, Running] = {}
        self.open = False
        """Whether it takes jobs."""
        self.calls = 0
        self.unused: list[Slot] = []
        """Its unused slots when the run was stopped, in the record of `generation`."""
        self.generation = ""
        self.has_stopped = False
        """Whether it begins no more jobs and has reported its unused slots."""
        self.ended_well = False
        self._options = options
        self._heard = heard
        self._process: Process | None = None
        self._unsent = bytearray()
        self._to_send = anyio.Event()

    async def live(self) -> str:
        """Run the process from its start to its end, and say how it ended."""
        # -P: a file in the working directory must not shadow a module. Options are not passed as arguments:
        # `ps` shows these to everybody, and a store's URL may contain a password.
        command = [sys.executable, "-P", "-m", "intervalq.cli._run.child"]
        try:
            # A session of its own: Ctrl-C in the terminal is for the parent alone.
            async with await anyio.open_process(
                command, stdin=PIPE, stdout=PIPE, stderr=None, start_new_session=True
            ) as self._process:
                self._unsent[:0] = _line(self._options)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._send_all)
                    await self._listen()
                    group.cancel_scope.cancel()
                code = await self._process.wait()
        except OSError as error:
            return f"could not be started: {error.strerror}"
        finally:
            self.open = False
            for running in self.running.values():
                if running.pid is not None:  # nobody would learn how it ends
                    end_program(running.pid, kill=True)
        if code < 0:
            return f"died of signal {-code} ({signal.strsignal(-code)})"
        return f"ended with exit code {code}"

    def give(self, task: Task) -> None:
        """Give the shard a job to run."""
        self.waiting[task.number] = task
        self.send(job=task.number, argv=task.job.argv, cost=task.job.cost)

    def send(self, **message: object) -> None:
        """Queue a message to the shard."""
        self._unsent += _line(message)
        self._to_send.set()

    def kill(self) -> None:
        """End the shard and all that it runs, at once."""
        for running in self.running.values():
            if running.pid is not None:
                end_program(running.pid, kill=True)
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _send_all(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):  # `live` says how it ended
            while True:
                while self._unsent:
                    data, self._unsent = bytes(self._unsent), bytearray()
                    await self._process.stdin.send(data)
                self._to_send = anyio.Event()
                await self._to_send.wait()

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        rest = bytearray()
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                chunk = await self._process.stdout.receive()
                rest += chunk
                if b"\n" in chunk:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        self.calls = message.get("calls", self.calls)
        if (number := message.get("begins")) is not None:
            task = self.waiting.pop(number)
            self.running[number] = Running(task, message["ticket"], message["due"], message["started"])
        elif (number := message.get("runs")) is not None:
            self.running[number].pid = message["pid"]
            return
        elif "ready" in message:
            self.open = True
        elif "failed" in message:
            self.open = False
        elif "unused" in message:
            self.unused = [Slot(t, due, cost, tuple(units)) for t, due, cost, units in message["unused"]]
            self.generation = message["generation"]
            self.has_stopped = True
        elif "bye" in message:
            self.ended_well = True
            return
        self._heard(self, message)


def _line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"
