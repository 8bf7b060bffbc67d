"""Starts worker processes in any language, lets them begin at one instant, reads their results, ends them all.

A worker gets one JSON argument, says `ready` in a line when it has connected, reads one line with the common
beginning (nanoseconds of CLOCK_MONOTONIC), and writes one JSON object. It ends by itself when its standard
input is closed, so none outlives this process, however this one ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

_READY_WITHIN = 60.0
_AFTER_THE_END = 60.0


class WorkerError(Exception):
    """A worker failed; the message contains its output."""


class Fleet:
    """Workers of one run. Use it as a context: at its end none is left."""

    def __init__(
        self,
        command: Sequence[str],
        works: Sequence[Mapping[str, Any]],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = command
        self._works = works
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._workers: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> Self:
        try:
            for work in self._works:
                error_file = tempfile.TemporaryFile()  # closed with the worker
                worker = subprocess.Popen(
                    [*self._command, json.dumps(work)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=error_file,
                    cwd=self._folder,
                    env=self._environment,
                    start_new_session=True,  # a keyboard interrupt is for the process that started it
                )
                self._workers.append((worker, error_file))
            self._each(self._line, _READY_WITHIN)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker, _output in self._workers:
            worker.kill()
        for worker, error_file in self._workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout, error_file):
                if pipe is not None:
                    pipe.close()
        self._workers.clear()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, in the order of their work."""
        return [worker.pid for worker, _ in self._workers]

    def begin(self, at: int) -> None:
        """Tell all of them when to begin."""
        for worker, _ in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(b"%d\n" % at)
            worker.stdin.flush()

    def results(self, until: int) -> list[dict[str, Any]]:
        """The results of all workers; waits until a minute after `until`."""
        left = max(0.0, (until - time.monotonic_ns()) / 1e9) + _AFTER_THE_END
        lines = self._each(self._line, left)
        return [json.loads(line) for line in lines]

    def _line(self, index: int) -> bytes:
        stdout = self._workers[index][0].stdout
        assert stdout is not None
        return stdout.readline()

    def _each(self, read: Callable[[int], bytes], within: float) -> list[bytes]:
        """Read from all workers at once; raise with the output of the first that failed."""
        found: dict[int, bytes] = {}

        def keep(index: int) -> None:
            found[index] = read(index)

        threads = [
            threading.Thread(target=keep, args=(index,), daemon=True) for index in range(len(self._workers))
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + within
        for index, thread in enumerate(threads):
            thread.join(max(0.0, deadline - time.monotonic()))
            if not found.get(index):
                raise WorkerError(self._trouble(index, late=thread.is_alive()))
        return [found[index] for index in range(len(threads))]

    def _trouble(self, index: int, *, late: bool) -> str:
        worker, error_file = self._workers[index]
        worker.kill()
        worker.wait()
        error_file.seek(0)
        words = error_file.read().decode(errors="replace").strip()
        return (
            f"worker {index} {'took too long' if late else 'ended'}: {words[-1_500:] or '(it said nothing)'}"
        )
