"""A wall clock that can be set while processes use it: libfaketime, made to leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import servers
from faults.called import now
from faults.needs import faketime
from faults.verdict import Step

_SHARED: Final = Path("/dev/shm")  # where Linux has named semaphores and shared memory

# The library's first process creates these names, and removes them when it ends by itself. A killed process
# can't, so the first one is this, which ends when the driver does, in whatever way that ends.
_HOLD: Final = "import os, sys; print(os.environ['FAKETIME_SHARED'], flush=True); sys.stdin.read()"


class FakeClock:
    """The wall clock of the processes that have `environment`, at the offset that was last set."""

    def __init__(self) -> None:
        library = faketime()
        self._folder = servers.Folder("clock", servers.unprivileged())
        self._path = self._folder.path / "offset"
        self._offset = 0
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # otherwise timed waits of threads end at any time, or never
        }
        self._holder = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.environment},
            text=True,
            start_new_session=True,  # an interrupt from the keyboard must not reach it
        )
        assert self._holder.stdout is not None
        names = self._holder.stdout.readline().strip()
        semaphore, memory = names.replace("/", "").split()
        for path in (_SHARED / f"sem.{semaphore}", _SHARED / memory):
            with suppress(FileNotFoundError):
                path.chmod(0o666)  # servers that refuse root run as another user
        self.environment["FAKETIME_SHARED"] = names

    def set(self, offset: int) -> Step:
        """Set its offset in seconds; returns an entry for a log."""
        begin = now()
        new = self._path.with_suffix(".new")
        new.write_text(f"{offset:+d}s\n")
        new.chmod(0o644)
        new.replace(self._path)
        by, self._offset = offset - self._offset, offset
        return Step(begin, now(), by * 1_000_000)

    def close(self) -> None:
        """Remove everything."""
        self._holder.communicate()
        self._folder.remove()
