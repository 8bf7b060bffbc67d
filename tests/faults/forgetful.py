"""A file system in user space that forgets, when it is unmounted, what was not synced: see `undo`.

    python tests/faults/forgetful.py DISK MOUNT [strict]

Its contents are in the folder `kept` of the folder DISK. It prints `mounted`, and ends when it is unmounted.
After a line on its standard input, to which it prints `failed`, it keeps nothing more. When its standard
input ends, it unmounts itself at once.

One thread does everything: requests have an order, and each answer is fast.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import mfusepy

sys.path.insert(0, str(Path(__file__).parent.parent))
from faults.undo import Undo

_SYNCED = os.O_SYNC | os.O_DSYNC
_STATUS = (
    *("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks"),
    *("st_atime_ns", "st_mtime_ns", "st_ctime_ns"),
)
_FREE = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_frsize")


class Forgetful:
    """The kernel's requests. Requests about an open file or folder have a `handle`, which is a descriptor."""

    use_ns = True

    def __init__(self, disk: Path, *, strict: bool) -> None:
        self._root = disk / "kept"
        self.undo = Undo(Path(tempfile.mkdtemp(dir=disk)), strict=strict)
        self._synced: set[int] = set()
        """Handles whose writes are synced, each individually."""

    def init(self, _: str) -> None:
        print("mounted", flush=True)

    def _at(self, path: str) -> Path:
        return self._root / path.removeprefix("/")

    def _own(self, path: Path) -> None:
        if os.geteuid() == 0:
            user, group, _ = mfusepy.fuse_get_context()
            os.chown(path, user, group)

    # --- looks --------------------------------------------------------------------------------------

    def getattr(self, path: str, _: int | None = None) -> dict[str, int]:
        status = self._at(path).lstat()
        return {name.removesuffix("_ns"): getattr(status, name) for name in _STATUS}

    def statfs(self, _: str) -> dict[str, int]:
        found = os.statvfs(self._root)
        return {name: getattr(found, name) for name in _FREE}

    def opendir(self, path: str) -> int:
        return os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)

    def readdir(self, _: str, handle: int) -> list[tuple[str, dict[str, int], int]]:
        folder = {"st_mode": stat.S_IFDIR, "st_ino": 1}  # a number of 0 would hide it
        with os.scandir(handle) as found:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in found]
        return [
            *((name, folder, 0) for name in (".", "..")),
            *((name, {"st_mode": each.st_mode, "st_ino": each.st_ino}, 0) for name, each in entries),
        ]

    def read(self, _: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    # --- contents -----------------------------------------------------------------------------------

    def create(self, path: str, mode: int, flags: int) -> int:
        there = self._at(path)
        handle = os.open(there, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        self._own(there)
        self.undo.created(there)
        return self._opened(handle, flags)

    def open(self, path: str, flags: int) -> int:
        # The flags are changed: what is overwritten has to be read, and the kernel says where to append.
        return self._opened(os.open(self._at(path), os.O_RDWR), flags)

    def _opened(self, handle: int, flags: int) -> int:
        if flags & _SYNCED:
            self._synced.add(handle)
        return handle

    def write(self, _: str, data: bytes, offset: int, handle: int) -> int:
        written = self.undo.write(handle, data, offset)
        if handle in self._synced:
            self.undo.sync(handle)
        return written

    def truncate(self, path: str, size: int, _: int | None = None) -> None:
        with self._at(path).open("r+b") as file:
            self.undo.resize(file.fileno(), size)

    def fallocate(self, _: str, mode: int, offset: int, size: int, handle: int) -> None:
        if mode:
            raise OSError(errno.EOPNOTSUPP, "only at the end of a file")
        self.undo.resize(handle, max(os.fstat(handle).st_size, offset + size))

    def fsync(self, _path: str, _data: int, handle: int) -> None:
        self.undo.sync(handle)

    def release(self, _: str, handle: int) -> None:
        self._synced.discard(handle)
        os.close(handle)

    # --- names --------------------------------------------------------------------------------------

    def mkdir(self, path: str, mode: int) -> None:
        there = self._at(path)
        there.mkdir(mode)
        self._own(there)
        self.undo.created(there)

    def unlink(self, path: str) -> None:
        self.undo.remove(self._at(path))

    def rmdir(self, path: str) -> None:
        self.undo.remove(self._at(path))

    def rename(self, old: str, new: str) -> None:
        self.undo.rename(self._at(old), self._at(new))

    def link(self, new: str, old: str) -> None:
        there = self._at(new)
        there.hardlink_to(self._at(old))
        self.undo.created(there)

    def fsyncdir(self, _path: str, _data: int, handle: int) -> None:
        self.undo.sync_folder(handle)

    def releasedir(self, _: str, handle: int) -> None:
        os.close(handle)

    # --- what is never undone -----------------------------------------------------------------------

    def chmod(self, path: str, mode: int) -> None:
        self._at(path).chmod(mode)

    def chown(self, path: str, user: int, group: int) -> None:
        os.chown(self._at(path), user, group)

    def utimens(self, path: str, times: tuple[int, int]) -> None:
        os.utime(self._at(path), ns=times)


def _listen(undo: Undo, mount: str) -> None:
    for _ in sys.stdin:
        undo.fail()
        print("failed", flush=True)
    subprocess.run(["fusermount3", "-u", "-z", mount], check=False)
    os._exit(1)


def main(disk: str, mount: str, *how: str) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0)
    files = Forgetful(Path(disk), strict="strict" in how)
    threading.Thread(target=_listen, args=[files.undo, mount], daemon=True).start()
    options = {"allow_other": True} if os.geteuid() == 0 else {}  # servers may run as another user
    mfusepy.FUSE(
        files, mount, fsname=disk, foreground=True, nothreads=True, default_permissions=True,
        use_ino=True, kernel_cache=True, **options,
    )  # fmt: skip
    files.undo.forget()
    for path in (Path(disk) / "kept").rglob(".fuse_hidden*"):
        path.unlink()  # libfuse's name for a file that was removed while it was open


if __name__ == "__main__":
    main(*sys.argv[1:])
