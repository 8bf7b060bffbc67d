"""Keeps a fuzzed command line in its folder and off the network, whatever its arguments are."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_allowed: list[str] = []  # one folder at most, because an audit hook stays for the life of the process
_hooked: list[bool] = []

_CHANGES = {
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _allowed:
        return
    if event in {"socket.getaddrinfo", "socket.connect"}:
        raise socket.gaierror(socket.EAI_NONAME, "there is no network in this test")
    if event == "subprocess.Popen" or event.startswith(("os.exec", "os.posix_spawn", "os.fork")):
        raise AssertionError(f"a fuzzed command line started a process: {event} {arguments}")
    if event == "open":
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) or set(mode or "") & set("wax+")
        _refuse(path, writes=bool(writes))
    elif event in _CHANGES:
        _refuse(arguments[0], writes=True)
    elif event == "sqlite3.connect":
        _refuse(str(arguments[0]).removeprefix("file:").partition("?")[0], writes=True)


def _refuse(path: object, *, writes: bool) -> None:
    if not writes or isinstance(path, int) or path == os.devnull:
        return
    whole = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]
    if not whole.startswith(_allowed[0]) and Path(whole).parent != Path("/dev/shm"):
        raise PermissionError(13, "Permission denied", whole)


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Forbid writes outside the folder, the network, and other processes."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)
    _allowed.append(os.path.realpath(folder))
    try:
        yield
    finally:
        _allowed.clear()
