"""Driver programs in processes of their own, for clusters and Connect: one JVM can have only one session."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import servers
from spark import processes
from spark.processes import Executor, Process

_TESTS: Final = Path(__file__).parent.parent

FAST: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
"""Options of JVMs that live for seconds, which should start quickly rather than run fast."""

# $1: where to write the process id, then the program. It is killed when this test run ends.
_WATCH: Final = """
exec 3<&0
note=$1
shift
"$@" </dev/null 3<&- &
program=$!
echo "$program" >"$note"
(read -r _ <&3; kill -KILL "$program") 2>/dev/null &
watcher=$!
wait "$program"
code=$?
kill "$watcher"
exit "$code"
"""

_ENDS_WITHIN: Final = 240.0
"""How long a JVM may write its archive of classes when it ends, in seconds: long on a busy machine."""


class Program:
    """A Python script that runs; its output goes to files, so it never waits for a reader."""

    def __init__(self, script: Path, arguments: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.mark = secrets.token_hex(6)
        self._folder = servers.Folder("program")
        self._out, self._err = self._folder.path / "stdout", self._folder.path / "stderr"
        note = self._folder.path / "pid"
        words = [sys.executable, "-u", str(script), *arguments]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._watch = subprocess.Popen(
                ["sh", "-c", _WATCH, "sh", str(note), *words],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env={
                    **environment,
                    **_executors_too(environment, self.mark),
                    processes.MARK: self.mark,
                    "SPARK_LOCAL_DIRS": str(self._folder.path),
                },
                cwd=self._folder.path,
                start_new_session=True,
            )
        servers.until(lambda: note.exists() and note.read_text().endswith("\n"))
        self.pid = int(note.read_text())

    @property
    def stdout(self) -> str:
        """Its standard output so far."""
        return self._out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """Its standard error so far, including that of its JVM."""
        return self._err.read_text(errors="replace")

    def running(self) -> bool:
        """Whether the driver still exists."""
        return self._watch.poll() is None

    def until(self, happened: Callable[[], object], what: str = "it", within: float = 90.0) -> None:
        """Wait for a condition that this program causes; an error if it ends or fails before."""
        deadline = time.monotonic() + within
        while not happened():
            if not self.running() and not happened():
                raise AssertionError(f"the program ended before {what}:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} didn't come within {within:g} s:\n{self._tail()}")
            time.sleep(0.01)

    def until_printed(self, text: str) -> None:
        """Wait until its standard output contains this."""
        self.until(lambda: text in self.stdout, f"it printed {text!r}")

    def wait(self, within: float = 110.0) -> subprocess.CompletedProcess[str]:
        """Wait for its end, whatever its exit code."""
        self.until(lambda: not self.running(), "its end", within)
        return subprocess.CompletedProcess(self._watch.args, self._watch.wait(), self.stdout, self.stderr)

    def result(self, within: float = 110.0) -> str:
        """Wait for its successful end, and return its output."""
        ended = self.wait(within)
        assert ended.returncode == 0, self._tail()
        return ended.stdout

    def kill(self) -> None:
        """Kill the driver, as `kill -9` does; its JVM sees the end of its input, and executors lose it."""
        Process(self.pid, 0, ()).kill()
        self._watch.wait()

    def executors(self) -> list[Executor]:
        """The JVMs of its executors at this moment."""
        return processes.executors(self.mark)

    def left(self) -> list[Process]:
        """Every process that belongs to it at this moment, on any host, including itself."""
        return processes.of_program(self.mark)

    def close(self) -> None:
        """End it, and remove its output; wait until none of its processes is left."""
        self._watch.communicate()
        servers.until(lambda: not self.left(), _ENDS_WITHIN)
        self._folder.remove()

    def _tail(self) -> str:
        return f"--- standard output\n{self.stdout[-2_000:]}\n--- standard error\n{self.stderr[-4_000:]}"


def environment(**more: str) -> dict[str, str]:
    """The environment of a program: this Python for drivers and workers, and the modules of the tests."""
    kept = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    spark = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LAUNCHER_OPTS": FAST}
    return {**kept, **python, **spark, "PYTHONPATH": os.pathsep.join(paths), **more}


# Variables that a session of the test run may have left, and that would lead to other clusters.
_OTHERS: Final = {
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "INTERVALQ_STORE", "MASTER"),
    *("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "SPARK_LOCAL_REMOTE", "SPARK_CONF_DIR"),
}


def _executors_too(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    """The variables that its executors inherit, set in Spark's own way; nothing without a cluster."""
    arguments = environment.get("PYSPARK_SUBMIT_ARGS")
    if arguments is None:
        return {}
    return {"PYSPARK_SUBMIT_ARGS": f"--conf spark.executorEnv.{processes.MARK}={mark} {arguments}"}
