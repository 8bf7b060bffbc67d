"""File systems behind one interface: Arrow's, and this machine's for files that only their owner reads."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from intervalq.errors import InvalidOption, MissingExtra, short

_AS_ARROW_SAYS: Final = {"s3a": "s3", "s3n": "s3"}


class Files(Protocol):
    """What large answers and pipelines need of a file system. Its methods block, and raise OSError."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        ...

    def has(self, path: str) -> bool:
        """Whether there is a file or a folder at a path."""
        ...

    def read(self, path: str) -> bytes:
        """The content of a file; FileNotFoundError: there is no such file."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, and the folders that it needs."""
        ...

    def replace(self, old: str, new: str) -> None:
        """Rename a file. A file that has the new name is replaced."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file if it is there, or a folder if it is empty."""
        ...

    def remove_all(self, folder: str) -> None:
        """Remove a folder and everything in it, if it is there."""
        ...


class OwnFiles:
    """Files of this machine that only their owner can read, and that survive a crash of it."""

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        return [file.name for file in Path(folder).iterdir()] if Path(folder).is_dir() else []

    def has(self, path: str) -> bool:
        """See `Files`."""
        return Path(path).exists()

    def read(self, path: str) -> bytes:
        """See `Files`."""
        return Path(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """See `Files`."""
        place = Path(path)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(prefix=f"{place.name}.", dir=place.parent)  # its mode is 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(new).replace(place)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise
        _sync(place.parent)

    def replace(self, old: str, new: str) -> None:
        """See `Files`."""
        Path(old).replace(new)

    def remove(self, path: str) -> None:
        """See `Files`."""
        place = Path(path)
        with suppress(FileNotFoundError):
            if place.is_dir():
                place.rmdir()
            else:
                place.unlink()

    def remove_all(self, folder: str) -> None:
        """See `Files`."""
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


class ArrowFiles:
    """One of Arrow's file systems."""

    def __init__(self, files: Any) -> None:  # noqa: ANN401 - Arrow has no types
        from pyarrow import fs  # noqa: PLC0415 - an extra

        self._files = files
        self._fs: Any = fs

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        found = self._files.get_file_info(self._fs.FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in found]

    def has(self, path: str) -> bool:
        """See `Files`."""
        return bool(self._files.get_file_info(path).type != self._fs.FileType.NotFound)

    def read(self, path: str) -> bytes:
        """See `Files`."""
        with self._files.open_input_stream(path) as stream:
            return bytes(stream.read())

    def write(self, path: str, data: bytes) -> None:
        """See `Files`."""
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        with self._files.open_output_stream(path) as stream:
            stream.write(data)

    def replace(self, old: str, new: str) -> None:
        """See `Files`."""
        if not isinstance(self._files, self._fs.LocalFileSystem):  # others can't rename to a used name
            self.remove(new)
        self._files.move(old, new)

    def remove(self, path: str) -> None:
        """See `Files`."""
        kind = self._files.get_file_info(path).type
        if kind == self._fs.FileType.File:
            self._files.delete_file(path)
        elif kind == self._fs.FileType.Directory and not self.names(path):
            self._files.delete_dir(path)  # which would also remove what is in it

    def remove_all(self, folder: str) -> None:
        """See `Files`."""
        with suppress(FileNotFoundError):
            self._files.delete_dir(folder)


def file_system(place: str) -> tuple[Files, str]:
    """The file system of a path or a URL, and the path in it, without a slash at the end.

    Raises:
        InvalidOption: Arrow knows no such file system.
        MissingExtra: Arrow isn't installed.
    """
    scheme, separator, rest = place.partition("://")
    if not separator or scheme == "file":
        return OwnFiles(), (rest if separator else place).rstrip("/") or "/"
    try:
        from pyarrow import fs  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise MissingExtra(f"a folder at {scheme}://", "spark") from missing
    try:
        files, path = fs.FileSystem.from_uri(f"{_AS_ARROW_SAYS.get(scheme, scheme)}://{rest}")
    except (OSError, ValueError) as error:  # Arrow's own errors are of these kinds
        raise InvalidOption(
            f"the folder {short(place)} can't be opened: {error}: give a path, or a URL such as s3://, gs:// "
            "or hdfs://"
        ) from None
    return ArrowFiles(files), path.rstrip("/")


def _sync(folder: Path) -> None:
    """Make a new name survive a crash, too, where folders can be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # such a file system need not
            raise
    finally:
        os.close(descriptor)
