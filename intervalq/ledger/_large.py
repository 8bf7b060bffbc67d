"""Answers that are too large for a row of a ledger: each is a file, in a folder that all executors share."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit
from uuid import uuid4

from intervalq.errors import InvalidOption, MissingExtra, short

_AS_ARROW_SAYS: Final = {"s3a": "s3", "s3n": "s3"}


class LargeAnswers:
    """The files of one run. Its methods block, and raise OSError.

    A file is complete, and on the disk, before anybody learns its name, and no name is used twice: so no file
    needs a lock. On local and mounted file systems, only the owner can read it.
    """

    def __init__(self, folder: str, run: str) -> None:
        """`folder`: a path, or a URL of a file system that Arrow knows; it needn't exist.

        Raises:
            InvalidOption, MissingExtra: as for `file_system`.
        """
        self._files, root = file_system(folder)
        self.place = f"{root}/run={quote(run, safe='')}"

    def write(self, key: str, text: str) -> str:
        """Write the answer of a row; returns the name of its file."""
        name = f"{_prefix(key)}-{uuid4().hex}.json"
        data = text.encode()
        if self._files is None:
            _write(Path(self.place, name), data)
        else:  # it needn't appear at once, because nobody knows its name yet
            self._files.create_dir(self.place, recursive=True)
            with self._files.open_output_stream(f"{self.place}/{name}") as stream:
                stream.write(data)
        return name

    def read(self, name: str) -> str:
        """What a file has."""
        if not isinstance(name, str) or "/" in name:
            raise FileNotFoundError(errno.ENOENT, "this can't be the name of an answer's file", short(name))
        if self._files is None:
            return Path(self.place, name).read_text(encoding="utf-8")
        with self._files.open_input_stream(f"{self.place}/{name}") as stream:
            return bytes(stream.read()).decode()

    def names(self) -> list[str]:
        """The names of all files."""
        if self._files is None:
            folder = Path(self.place)
            return [file.name for file in folder.iterdir()] if folder.is_dir() else []
        from pyarrow import fs  # noqa: PLC0415 - an extra

        found = self._files.get_file_info(fs.FileSelector(self.place, allow_not_found=True))
        return [info.base_name for info in found]

    def remove(self, names: list[str], keys: tuple[str, ...]) -> None:
        """Remove those of some files that belong to these rows."""
        prefixes = {_prefix(key) for key in keys}
        for name in names:
            if name.partition("-")[0] in prefixes:
                self._remove(name)

    def drop(self, names: list[str]) -> None:
        """Remove some files, and the folder if that has no others."""
        for name in names:
            self._remove(name)
        with suppress(OSError):  # there was none, or somebody wrote into it meanwhile
            if self._files is None:
                Path(self.place).rmdir()
            elif not self.names():  # Arrow removes a folder with all that is in it
                self._files.delete_dir(self.place)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            if self._files is None:
                Path(self.place, name).unlink()
            else:
                self._files.delete_file(f"{self.place}/{name}")


def beside(url: str) -> str | None:
    """The folder of large answers beside a ledger in a file; None: it is on a server, or in memory."""
    parts = urlsplit(url)
    if parts.scheme not in {"sqlite", "file"}:
        return None
    path = os.fsdecode(unquote_to_bytes(parts.path))
    return f"{path[1:] if os.name == 'nt' else path}.answers"


def file_system(place: str) -> tuple[Any, str]:
    """Arrow's file system of a URL, or None for a local one; and the path in it, without a slash at the end.

    Raises:
        InvalidOption: Arrow knows no such file system.
        MissingExtra: Arrow isn't installed.
    """
    scheme, separator, rest = place.partition("://")
    if not separator or scheme == "file":
        return None, (rest if separator else place).rstrip("/") or "/"
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
    return files, path.rstrip("/")


def _prefix(key: str) -> str:
    """How the names of a row's files begin: keys may have characters that file names can't."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


def _write(path: Path, data: bytes) -> None:
    """Write a file for its owner alone, at once, so that it survives a crash of the machine."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)  # its mode is 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(new).replace(path)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise
    _sync(path.parent)


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
