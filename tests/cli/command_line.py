"""Runs the command line as users do: as a process, in a folder of its own with a store."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from intervalq.cli._app import app, run_app

FIELDS = ["job", "shard", "ticket", "due", "started", "ended", "exit_code", "stdout", "stderr", "attempt"]


BRIEF: Final = {
    *("status", "pause", "resume", "cool-down", "configure", "reclaim", "drop", "doctor"),
    *(
        f"tasks {name}"
        for name in ("insert", "list", "show", "delete", "modify", "move", "queues", "sessions")
    ),
    *(f"tasks {name}" for name in ("retry", "dead", "cancel", "claim", "ack", "nak")),
    *(f"schedule {name}" for name in ("list", "next", "run", "pause", "resume", "drop")),
    *(f"ledger {name}" for name in ("list", "show", "forget", "drop")),
}
"""Commands that start nothing and outlive nothing: they run without a process of their own, which would take
longer than they do. The examples of the help run each of them as a process."""


@dataclass
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def report(self) -> dict[str, Any]:
        """The report of `run --json`, which is the last line of standard error."""
        made: dict[str, Any] = json.loads(self.stderr.splitlines()[-1])
        return made


class CommandLine:
    """Runs `intervalq` in a folder; nothing that it starts outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "INTERVALQ_STORE": str(folder / "state.json"),
            "XDG_STATE_HOME": str(folder),
            "TERM": "xterm",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *args: str, stdin: str | None = "", code: int | None = 0) -> Ended:
        """Run a command to its end, and check its exit code (None: any)."""
        ended = self._here(args) if not stdin and _is_brief(args) else self._apart(args, stdin)
        assert code is None or ended.code == code, ended
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended

    def _apart(self, args: tuple[str, ...], stdin: str | None) -> Ended:
        process = self.start(*args, stdin=subprocess.PIPE)
        stdout, stderr = process.communicate(stdin, timeout=120)
        return Ended(process.returncode, stdout, stderr)

    def _here(self, args: tuple[str, ...]) -> Ended:
        with (
            pytest.MonkeyPatch.context() as environment,
            CliRunner().isolation() as (out, err, _),
        ):
            environment.chdir(self.folder)
            for name in os.environ.keys() - self.environment.keys():
                environment.delenv(name)
            for name, value in self.environment.items():
                environment.setenv(name, value)
            with _outside_of_the_event_loop():
                code = Context().run(run_app, list(args))
            return Ended(code, out.getvalue().decode(), err.getvalue().decode())

    def start(self, *args: str, **more: Any) -> subprocess.Popen[str]:
        """Run a command in the background."""
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        process = subprocess.Popen(
            [sys.executable, "-m", "intervalq", *args],
            cwd=self.folder,
            env=self.environment,
            text=True,
            **more,
        )
        self.started.append(process)
        return process

    def write(self, name: str, *lines: str) -> str:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))
        return name

    def read(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def fifo(self, name: str) -> Callable[[], str]:
        """Make a pipe to which jobs can write; returns a function that waits for this many lines."""
        path = self.folder / name
        os.mkfifo(path)
        return path.read_text

    def python(self, script: str) -> None:
        """Run Python code beside it."""
        subprocess.run([sys.executable, "-c", script], cwd=self.folder, env=self.environment, check=True)

    @staticmethod
    def until(holds: Callable[[], bool]) -> bool:
        """Repeat a check until it succeeds; each takes a while, and a test that hangs is ended by pytest."""
        while not holds():
            pass
        return True

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _is_brief(args: tuple[str, ...]) -> bool:
    words = 2 if args[:1] in {("tasks",), ("schedule",), ("ledger",)} else 1
    # A command has an event loop of its own, whose handlers of signals need the main thread.
    return " ".join(args[:words]) in BRIEF and threading.current_thread() is threading.main_thread()


@contextmanager
def _outside_of_the_event_loop() -> Iterator[None]:
    """Let another event loop run here. That of the test, if it has one, stands still as during a process."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


def help_of(*command: str) -> str:
    """The help of a command, without a process of its own, because it depends on nothing else."""
    ran = CliRunner().invoke(app, [*command, "--help"], prog_name="intervalq")
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def ends(pid: int) -> bool:
    """Wait until a process that is no child of this one has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)
