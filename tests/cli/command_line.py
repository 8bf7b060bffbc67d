"""Runs the command line as users do: as a process, in a folder of its own with a store."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from intervalq.cli._app import app

FIELDS = ["job", "shard", "ticket", "due", "started", "ended", "exit_code", "stdout", "stderr", "attempt"]


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
        process = self.start(*args, stdin=subprocess.PIPE)
        stdout, stderr = process.communicate(stdin, timeout=120)
        ended = Ended(process.returncode, stdout, stderr)
        assert code is None or ended.code == code, ended
        assert "Traceback" not in stderr, stderr
        return ended

    def start(self, *args: str, **more: Any) -> subprocess.Popen[str]:
        """Run a command in the background."""
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
        process = subprocess.Popen(
            [sys.executable, "-m", "intervalq.cli", *args],
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
