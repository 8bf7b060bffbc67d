"""What `doctor` reports about a store in a file: its place, its permissions, and its file system."""

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
    """Pairs of `ok`, `warning` or `error`, and a sentence; `read` checks the content of the file."""
    findings: Advice = []
    folder = file.path.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    findings += _place(file, folder)
    findings += _disk(folder)
    try:
        file.check()
        findings.append(("ok", "nobody else can put another file in its place"))
        findings += read()
        if file.is_locked():
            findings.append(
                ("warning", f"its lock is held by {file.holder()}: if that lasts, end that process")
            )
        else:
            findings.append(("ok", "its lock is free"))
    except StoreError as error:
        findings.append(("error", str(error)))
    return findings


def _place(file: SharedFile, folder: Path) -> Advice:
    name = ascii(str(file.path))
    if not folder.is_dir():
        return [("error", f"{name} can't be created because {str(folder)!a} is a file: give another path")]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [
            (
                "error",
                f"this user can't write {str(folder)!a}: grant the right, or give another path",
            )
        ]
    return [("ok", f"{name} {'exists' if file.path.exists() else 'will be created'}; its folder is writable")]


def _disk(folder: Path, mounts: Path = MOUNTS) -> Advice:
    kind = file_system(folder, mounts)
    if kind is None:
        return [("warning", "the kind of its file system is unknown: make sure that it is a local disk")]
    if kind in NETWORK or kind.startswith("fuse"):
        why = f"it is on a network file system ({kind}), where locks and renames are not reliable"
        return [("error", f"{why}: keep it on a local disk, or use a store with a server")]
    return [("ok", f"its file system is {kind}, a local one")]


def file_system(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system of a folder, by its Linux name; None: unknown."""
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
        ):  # of two mounts at one place, the later one is visible
            best, kind = len(point.parts), tail.split()[0]
    return kind
