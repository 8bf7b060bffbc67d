"""A disk whose power can be cut: a folder that then forgets what was not synced."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import servers

_WITHIN = 30.0
"""Seconds that a mount and its end may take on a busy machine; usually they are fast."""


class Disk:
    """A folder, `path`, that is mounted while the context is open. It disappears with this process."""

    def __init__(self, path: Path | None = None, *, strict: bool = False) -> None:
        """Make a disk at a folder (None: a new one), whose present contents count as synced.

        strict: a name is kept only once its folder was synced, see `undo`.
        """
        self._folder = servers.Folder("disk")
        os.chmod(self._folder.path, 0o755)  # noqa: PTH101 - its contents belong to other users, too
        self.path = path or self._folder.path / "mount"
        self._how = ["strict"] if strict else []
        kept = self.kept
        if path is not None:
            path.rename(kept)
        else:
            kept.mkdir()
        self.path.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kept(self) -> Path:
        """Its contents, to be used only while it isn't mounted."""
        return self._folder.path / "kept"

    def __enter__(self) -> Self:
        try:
            self._mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()  # which it takes as the end
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_WITHIN)
            self._process.kill()
            self._close_pipes()
        with suppress(OSError):
            self.path.rmdir()
        self._folder.remove()

    def fail(self) -> None:
        """Cut the power: from now on nothing is kept, whatever the disk answers."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._hear()

    def cut(self) -> None:
        """Cut the power, and switch it on again. No process may use the disk any more: all were killed."""
        assert self._process is not None
        deadline = time.monotonic() + _WITHIN
        while (reported := self._unmounted()) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"somebody still uses {self.path}: {reported}")
            time.sleep(0.01)
        if self._process.wait(_WITHIN):
            raise RuntimeError(f"the file system of {self.path} ended with {self._process.returncode}")
        self._close_pipes()
        self._mount()

    def _unmounted(self) -> str | None:
        done = subprocess.run(["fusermount3", "-u", self.path], capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else None

    def _close_pipes(self) -> None:
        assert self._process is not None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None

    def _mount(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("forgetful.py"),
                self._folder.path,
                self.path,
                *self._how,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the keyboard must not reach it
        )
        self._hear()

    def _hear(self) -> None:
        """Wait until the file system prints a word."""
        assert self._process is not None
        assert self._process.stdout is not None
        if (
            not select.select([self._process.stdout], [], [], _WITHIN)[0]
            or not self._process.stdout.readline()
        ):
            raise RuntimeError(f"the file system of {self.path} doesn't answer")
