"""Processes of tests that use a store's file, or hold its lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio
import pytest
from anyio.lowlevel import checkpoint

HOLD = """
import sys
from pathlib import Path
from intervalq_stores._files.locked_file import SharedFile
with SharedFile(Path(sys.argv[1]), "x").locked():
    print("held", flush=True)
    sys.stdin.read()
"""
"""A script that holds the lock of a file until its standard input ends."""


class _Waiting(Protocol):
    @property
    def waiting(self) -> bool: ...


class _Store(Protocol):
    @property
    def _file(self) -> _Waiting: ...


@contextmanager
def process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process, which is killed at the end of the context."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def line(running: subprocess.Popen[str]) -> str:
    """Return the next line that the process prints."""
    assert running.stdout is not None
    assert running.stderr is not None
    return running.stdout.readline().strip() or pytest.fail(f"it ended: {running.stderr.read()}")


async def blocked(store: _Store) -> None:
    """Wait until the store waits for the lock of its file."""
    with anyio.fail_after(60):
        while not store._file.waiting:
            await checkpoint()
