"""A small file that processes share: a lock file beside it, checked reads, and atomic replacement."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from intervalq.errors import InsecurePath, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from intervalq_stores._files import lock

MAX_BYTES: Final = 16 * 1024 * 1024
"""The largest file that is read or written: some 40,000 records."""

_PRIVATE: Final = 0o600
_CAREFUL: Final = sum(getattr(os, f"O_{name}", 0) for name in ("NOFOLLOW", "NONBLOCK", "CLOEXEC", "BINARY"))
"""Flags for opening files, as far as the platform has them. Without NONBLOCK, a pipe in place of the file
would block this process for ever."""

_HAS_OWNERS: Final = hasattr(os, "geteuid")
"""Whether files have POSIX owners and permissions. Elsewhere, their folders protect them."""
_READ_ONLY: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

log: Final = logging.getLogger("intervalq")

_warned: Final[set[str]] = set()
"""Files and folders about which this process has warned: once is enough."""


class SharedFile:
    """One file and its lock, for one thread at a time. All errors are StoreErrors that name `url`."""

    def __init__(self, path: Path, url: str, beside: tuple[str, ...] = ()) -> None:
        """Open nothing yet; `beside` are the suffixes of files that others keep beside it."""
        self.path = path
        self.url = url
        self.lock_path = path.with_name(f"{path.name}.lock")
        self.waiting = False
        """Whether it is waiting for the lock; any thread may read this."""
        self._lock = -1
        self._beside = [path.with_name(path.name + end) for end in beside]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. The wait for it has no bound, and can't be interrupted."""
        self._lock = self._take_lock()
        try:
            self._succeed(self._lock)
            yield
        finally:
            held, self._lock = self._lock, -1
            lock.let_go(held)

    def read(self) -> bytes | None:
        """Read the content, or the first part of it if it is larger than MAX_BYTES; None: there is no file.

        This needs no lock: a file that is being replaced is read either as it was or as it will be.
        """
        with self._explained("read"):
            try:
                descriptor = self._open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                return file.read(MAX_BYTES + 1)

    def replace(self, content: bytes) -> None:
        """Replace the file by `content`, all or nothing: it is safely on the disk when this returns.

        Call this only under the lock.
        """
        if len(content) > MAX_BYTES:
            raise StoreFull(
                self.url,
                f"its records would have more than {MAX_BYTES} bytes, so nothing was written: drop queues "
                "that are no longer used, or use a store with a server",
            )

        def write(_: Path, descriptor: int) -> None:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]

        self.install(write)

    def install(self, write: Callable[[Path, int], None]) -> None:
        """Replace the file by one that `write` fills, given the path and descriptor of an empty file.

        As with `replace`, this is atomic, and must be called under the lock. Files beside it belong to the
        old file, and are removed.
        """
        temporary = self._temporary(os.getpid())
        with self._explained("written"):
            temporary.unlink(missing_ok=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                descriptor = os.open(temporary, flags | _CAREFUL, _PRIVATE)
                try:
                    write(temporary, descriptor)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                if not self.path.exists():
                    _sync_parents(self.path.parent)
                self.still_locked()
                for path in self._beside:
                    path.unlink(missing_ok=True)
                temporary.replace(self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise
            _sync_folder(self.path.parent)

    def still_locked(self) -> None:
        """Make sure, before something is committed, that nobody else can have the lock by now."""
        if not self._is_lock_file(self._lock):
            raise StoreUnavailable(
                self.url,
                f"somebody removed its lock file {self.lock_path.name!a} while this process held it, so "
                "nothing was written: try again; leave that file alone, because it is always needed",
            )

    def check(self) -> None:
        """Refuse a folder or file that others could replace or change, without opening any of them."""
        with self._explained("looked at"):
            with contextlib.suppress(FileNotFoundError):  # it will be created
                self._check_folder()
            for path in (self.path, self.lock_path, *self._beside):
                with contextlib.suppress(FileNotFoundError):
                    self._refuse(path, os.lstat(path))

    def is_locked(self) -> bool:
        """Whether somebody holds the lock right now."""
        with self._explained("locked"):
            try:
                descriptor = self._open(self.lock_path, os.O_RDWR)
            except FileNotFoundError:
                return False
            lock.opened(descriptor)
            try:
                return not lock.try_to_take(descriptor)
            finally:
                lock.let_go(descriptor)

    def holder(self) -> str:
        """The last process that took the lock, for messages."""
        written = b""
        with contextlib.suppress(OSError, StoreError):
            descriptor = self._open(self.lock_path, os.O_RDONLY)
            try:
                written = os.read(descriptor, 200)
            finally:
                os.close(descriptor)
        pid, _, host = written.decode("ascii", "replace").strip().partition(" ")
        return f"process {pid} on {host!a}" if pid.isdigit() else "an unknown process"

    # --- the lock -----------------------------------------------------------------------------------

    def _take_lock(self) -> int:
        with self._explained("locked"):
            for _ in range(100):
                descriptor = lock.opened(self._open_lock(self.lock_path))
                try:
                    self.waiting = True
                    self._wait_for(descriptor)
                    if self._is_lock_file(descriptor):
                        return descriptor
                except BaseException:
                    lock.let_go(descriptor)
                    raise
                finally:
                    self.waiting = False
                # Somebody removed the lock file during the wait, so later processes lock another one.
                lock.let_go(descriptor)
        raise StoreUnavailable(
            self.url, f"its lock file {self.lock_path.name!a} keeps being removed: leave it alone"
        )

    def _wait_for(self, descriptor: int) -> None:
        if lock.WAITS_IN_LINE:
            lock.take(descriptor)
            return
        gate = lock.opened(self._open_lock(self.lock_path.with_suffix(".gate")))
        try:
            lock.take(descriptor, gate)
        finally:
            lock.let_go(gate)

    def _open_lock(self, path: Path) -> int:
        try:
            self._check_folder()
        except FileNotFoundError:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_folder()
        while True:
            with contextlib.suppress(FileNotFoundError):
                return self._open(path, os.O_RDWR)
            with contextlib.suppress(FileExistsError):
                return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _is_lock_file(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.lock_path))
        except FileNotFoundError:
            return False

    def _succeed(self, descriptor: int) -> None:
        """Clean up after the last holder, in case it died while writing, and record this process instead."""
        mine = f"{os.getpid()} {socket.gethostname()}\n".encode("ascii", "replace").ljust(80)[:200]
        with contextlib.suppress(OSError):  # a leftover file and a missing record do no harm
            last = os.read(descriptor, 200)
            if last != mine:
                pid = last.partition(b" ")[0]
                if pid.isdigit() and len(pid) < 20:
                    self._temporary(int(pid)).unlink(missing_ok=True)
                os.lseek(descriptor, 0, os.SEEK_SET)
                os.write(descriptor, mine)
                os.ftruncate(descriptor, len(mine))

    # --- the file -----------------------------------------------------------------------------------

    def _temporary(self, pid: int) -> Path:
        # Under the lock there is one writer. Its pid is in the lock file, so its leftover can be found.
        return self.path.with_name(f"{self.path.name}.{pid}.tmp")

    def _open(self, path: Path, flags: int) -> int:
        try:
            descriptor = os.open(path, flags | _CAREFUL, _PRIVATE)
        except FileNotFoundError:
            raise
        except OSError:
            with contextlib.suppress(OSError):
                self._refuse(path, os.lstat(path))  # raises a better error
            raise
        try:
            self._refuse(path, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    # --- trust --------------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        status = os.stat(self.path.parent)  # noqa: PTH116 - as the other stats here
        mode = status.st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not _HAS_OWNERS or mode & stat.S_ISVTX:
            return
        if mode & stat.S_IWOTH:
            raise InsecurePath(
                self.url,
                "anybody may replace files in its folder: remove that permission with `chmod o-w` on the "
                "folder, or keep the file in another one",
            )
        if mode & stat.S_IWGRP and status.st_gid != os.getegid():  # many users have a group of their own
            self._warn_of_group("replace files in its folder", "chmod g-w` on the folder")

    def _refuse(self, path: Path, status: os.stat_result) -> None:
        what = f"its {'lock' if path == self.lock_path else 'state'} file {path.name!a}"
        if stat.S_ISLNK(status.st_mode):
            raise InsecurePath(self.url, f"{what} is a symbolic link: give the path of the file itself")
        if not stat.S_ISREG(status.st_mode):
            raise InsecurePath(self.url, f"{what} is not a regular file: give another path")
        if status.st_nlink > 1:
            raise InsecurePath(
                self.url,
                f"{what} has a second name (a hard link): remove that name, or give another path",
            )
        if not _HAS_OWNERS:
            return
        if status.st_uid != os.geteuid():
            raise InsecurePath(
                self.url,
                f"{what} belongs to user {status.st_uid}, but this process runs as {os.geteuid()}: run as "
                "that user, or give another path",
            )
        if status.st_mode & stat.S_IWOTH:
            raise InsecurePath(self.url, f"anybody may write {what}: remove that permission with `chmod 600`")
        if status.st_mode & stat.S_IWGRP:
            self._warn_of_group(f"write {what}", "chmod 600`")

    def _warn_of_group(self, may: str, remedy: str) -> None:
        """Say it instead of refusing: teams share machines on purpose."""
        if (about := f"{self.url}: its group may {may}") not in _warned:
            _warned.add(about)
            log.warning(
                "%s, and so start or stop jobs: remove that permission with `%s, unless it is intended",
                about, remedy,
            )  # fmt: skip

    @contextlib.contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._explain(done, error)

    def _explain(self, done: str, error: OSError) -> NoReturn:
        why = f"it can't be {done}: {error.strerror or error}"
        if error.errno in _READ_ONLY:
            kind: type[StoreError] = StoreReadOnly
            remedy = "let this user write the file and its folder, or give another path"
        elif error.errno in _FULL:
            kind, remedy = StoreFull, "make room on that disk, or give another path; the old state is intact"
        else:
            kind, remedy = StoreUnavailable, "check that path and its disk, or give another path"
        raise kind(self.url, f"{why}: {remedy}") from error


def _sync_parents(folder: Path) -> None:
    """Keep the names of a folder and of those that it is in: any process may just have made them."""
    while not os.path.ismount(folder):
        folder = folder.parent
        with contextlib.suppress(PermissionError):  # folders may be writable, but not readable
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # folders can't be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems can't sync a folder, and need not
            raise
    finally:
        os.close(descriptor)
