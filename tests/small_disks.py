"""Small real disks for tests of what stores do when one is full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str, *, user: int = 0) -> Iterator[Path]:
    """Mount a disk at a new folder; needs root and a kernel that allows it, or else skips the test.

    Args:
        folder: it must be empty, if it exists.
        size: as `mount` takes it, for example `64k`.
        user: the id of the user who may use the disk.
    """
    folder.mkdir(exist_ok=True)
    options = f"size={size},mode=700,uid={user}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # a thread may not have closed its file yet
