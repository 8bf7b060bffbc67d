"""What a disk would forget if its power failed now: how to undo each change that was not synced yet.

**Contents.** A change of a file is kept once that file is synced. Until then its size and the blocks that
were overwritten are remembered as they were when it was synced last.

**Names.** What was created, removed or renamed is kept from the next sync of *anything*, as ext4 and XFS do
it: their journal is one sequence, and a sync of any file writes all of it that came before. So a file that
was created and synced is there; one that was synced and then renamed, without another sync, has its old
name; and one that was renamed without having been synced itself has its new name once its folder is synced,
but is empty (its blocks aren't part of the journal).

**Strict names** are kept only from the next sync of the folder that they are in, which is all that POSIX
promises. A store that bears this bears any file system.

Rights, owners and times aren't undone. All that wasn't synced is lost, and nothing is lost in parts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_BLOCK = 4096


@dataclass(slots=True)
class _Content:
    """The state of a file when it was last synced, as far as it has changed since."""

    file: int
    """A descriptor of our own."""
    size: int
    blocks: dict[int, bytes] = field(default_factory=dict)

    def remember(self, first: int, end: int) -> None:
        """Save bytes `first` to `end`, which are about to change."""
        for block in range(first // _BLOCK, -(-min(end, self.size) // _BLOCK)):
            if block not in self.blocks:
                start = block * _BLOCK
                self.blocks[block] = os.pread(self.file, min(_BLOCK, self.size - start), start)

    def undo(self) -> None:
        os.ftruncate(self.file, self.size)
        for block, content in self.blocks.items():
            os.pwrite(self.file, content, block * _BLOCK)


@dataclass(frozen=True, slots=True)
class _Name:
    """A change of names."""

    folders: frozenset[int]
    """The inode numbers of the folders that it concerns."""
    undo: Callable[[], object]


class Undo:
    """A journal of changes below a folder; all of them must be made through it."""

    def __init__(self, removed: Path, *, strict: bool) -> None:
        """Make an empty journal; `removed` is a folder on the same disk, for files that may come back."""
        self._removed = removed
        self._count = 0
        self._strict = strict
        self._failed = False
        self._contents: dict[int, _Content] = {}
        self._names: list[_Name] = []

    # --- contents -----------------------------------------------------------------------------------

    def write(self, file: int, data: bytes, offset: int) -> int:
        """Write to an open file."""
        self._content(file).remember(offset, offset + len(data))
        return os.pwrite(file, data, offset)

    def resize(self, file: int, size: int) -> None:
        """Set the size of an open file."""
        content = self._content(file)
        content.remember(size, content.size)
        os.ftruncate(file, size)

    def _content(self, file: int) -> _Content:
        status = os.fstat(file)
        if status.st_ino not in self._contents:
            own = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
            self._contents[status.st_ino] = _Content(own, status.st_size)
        return self._contents[status.st_ino]

    # --- names --------------------------------------------------------------------------------------

    def created(self, path: Path) -> None:
        """Record that a file, a folder or a link was created."""
        self._note(lambda: self._set_aside(path), path)

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty folder."""
        self._refuse_full(path)
        aside = self._set_aside(path)
        self._note(lambda: aside.rename(path), path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, and replace the target if it exists."""
        replaced = None
        if new.exists():
            self._refuse_full(new)
            replaced = self._set_aside(new)
        try:
            old.rename(new)
        except OSError:
            if replaced is not None:
                replaced.rename(new)
            raise

        def undo() -> None:
            new.rename(old)
            if replaced is not None:
                replaced.rename(new)

        self._note(undo, old, new)

    def _note(self, undo: Callable[[], object], *paths: Path) -> None:
        self._names.append(_Name(frozenset(path.parent.stat().st_ino for path in paths), undo))

    def _set_aside(self, path: Path) -> Path:
        self._count += 1
        return path.rename(self._removed / str(self._count))

    @staticmethod
    def _refuse_full(path: Path) -> None:
        if path.is_dir() and any(path.iterdir()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    # --- what is kept, and what isn't ---------------------------------------------------------------

    def sync(self, file: int) -> None:
        """Keep an open file as it is now."""
        if self._failed:
            return
        content = self._contents.pop(os.fstat(file).st_ino, None)
        if content is not None:
            os.close(content.file)
        if not self._strict:
            self._names.clear()

    def sync_folder(self, folder: int) -> None:
        """Keep the names in an open folder as they are now."""
        if self._failed:
            return
        number = os.fstat(folder).st_ino
        self._names = [name for name in self._names if self._strict and number not in name.folders]

    def fail(self) -> None:
        """Keep nothing from now on: the power has failed, although processes still use the disk."""
        self._failed = True

    def forget(self) -> None:
        """Undo everything that isn't kept."""
        for content in self._contents.values():
            content.undo()
            os.close(content.file)
        self._contents.clear()
        for name in reversed(self._names):
            try:
                name.undo()
            except FileNotFoundError:
                if not self._strict:
                    raise
                # Of two changes in two folders, only the later one was kept, and this one with it.
        self._names.clear()
