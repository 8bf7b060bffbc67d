"""What a test needs of the machine: without it the test is skipped, or fails in continuous integration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import servers


def missing(what: str) -> NoReturn:
    """The machine doesn't have it."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} (a continuous integration run skips nothing)", pytrace=False)
    pytest.skip(what)


def need_root() -> None:
    """Namespaces of the kernel require root."""
    if sys.platform != "linux" or os.geteuid() != 0:
        missing("needs Linux and root: it makes name spaces")


def need_namespaces(*kinds: str) -> None:
    """Require namespaces of these kinds (`--net`, `--time`)."""
    need_root()
    need_command("unshare", "util-linux")
    tried = subprocess.run(["unshare", *kinds, "--fork", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        missing(f"needs name spaces ({' '.join(kinds)}): {tried.stderr.strip()}")


def need_command(name: str, package: str) -> str:
    """Require a program."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        missing(f"needs {name}: apt install {package}")
    return found


def need_fuse() -> None:
    """Require file systems in user space."""
    if sys.platform != "linux":
        missing("needs Linux: it mounts a file system of its own")
    need_command("fusermount3", "fuse3")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        missing(f"needs /dev/fuse: {error.strerror}")


def need_server(error: servers.NotInstalledError) -> NoReturn:
    """Report a server that isn't installed."""
    missing(str(error))


def faketime() -> Path:
    """Require the library that shows another time to a process."""
    for found in sorted(Path("/usr/lib").glob("**/faketime/libfaketime.so.1")):
        return found
    missing("needs libfaketime: apt install faketime")
