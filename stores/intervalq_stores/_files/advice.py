"""What `doctor` says about a store in a file: where it is, who may write it, if its disk is dependable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from intervalq.errors import StoreError
from intervalq_stores._files.locked_file import SharedFile

NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2"}
    | {"smb3", "smbfs", "vboxsf", "virtiofs"}
)

MOUNTS: Final = Path("/proc/self/mountinfo")

Advice = list[tuple[str, str]]


def advise(file: SharedFile, read: Callable[[], Advice]) -> Advice:
    """Pairs of `ok`, `warning` or `error`, and a sentence; `read` looks at all that is in the file."""
    said: Advice = []
    folder = file.path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    said += _place(file, folder)
    said += _disk(folder)
    try:
        file.check()
        said.append(("ok", "nobody else can put another file in its place"))
        said += read()
        if file.is_locked():
            said.append(
                ("warning", f"its lock is held just now by {file.holder()}: if that lasts, end that process")
            )
        else:
            said.append(("ok", "its lock is free"))
    except StoreError as error:
        said.append(("error", str(error)))
    return said


def _place(file: SharedFile, folder: Path) -> Advice:
    name = ascii(str(file.path))
    if not folder.is_dir():
        return [("error", f"{name} can't be made because {str(folder)!a} is a file: give another path")]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [
            (
                "error",
                f"{str(folder)!a} can't be written by this user: give the right, or give another path",
            )
        ]
    return [
        ("ok", f"{name} {'is there' if file.path.exists() else 'will be made'}; its folder can be written")
    ]


def _disk(folder: Path, mounts: Path = MOUNTS) -> Advice:
    kind = file_system(folder, mounts)
    if kind is None:
        return [
            ("warning", "the kind of its file system can't be told here: make sure that it is a local disk")
        ]
    if kind in NETWORK or kind.startswith("fuse"):
        why = f"it lies on a network file system ({kind}), where locks and renames are not dependable"
        return [("error", f"{why}: keep it on a local disk, or use a store with a server")]
    return [("ok", f"its file system is {kind}, a local one")]


def file_system(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """Tell the type of the file system that a folder is on, as Linux calls it; None: not known."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    there = folder.resolve()
    best, kind = -1, None
    for line in lines:
        head, _, tail = line.partition(" - ")
        if len(head.split()) < 5 or not tail:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), head.split()[4]))
        if (
            there.is_relative_to(point) and len(point.parts) >= best
        ):  # of two on one another the later is on top
            best, kind = len(point.parts), tail.split()[0]
    return kind
