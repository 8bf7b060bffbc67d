"""Answers that are too large for a row of a ledger: each is a file, in a folder that all executors share."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from urllib.parse import quote, unquote_to_bytes, urlsplit
from uuid import uuid4

from intervalq.errors import short
from intervalq.ledger._files import Files, file_system


class LargeAnswers:
    """The files of one run. Its methods block, and raise OSError.

    A file is complete, and on the disk, before anybody learns its name, and no name is used twice: so no file
    needs a lock. On local and mounted file systems, only the owner can read it.
    """

    def __init__(self, folder: str, run: str, files: Files | None = None) -> None:
        """Answers in a folder, which needn't exist.

        Args:
            folder: a path, or a URL of a file system that Arrow knows; with `files`, a path in these.
            run: the name of the run.
            files: the file system; None: that of the folder.

        Raises:
            InvalidOption, MissingExtra: as for `file_system`.
        """
        self._files, root = file_system(folder) if files is None else (files, folder)
        self.place = f"{root}/run={quote(run, safe='')}"

    def write(self, key: str, text: str) -> str:
        """Write the answer of a row; returns the name of its file."""
        name = f"{_prefix(key)}-{uuid4().hex}.json"
        self._files.write(f"{self.place}/{name}", text.encode())
        return name

    def read(self, name: str) -> str:
        """The content of a file."""
        if not isinstance(name, str) or "/" in name:
            raise FileNotFoundError(errno.ENOENT, "this can't be the name of an answer's file", short(name))
        return self._files.read(f"{self.place}/{name}").decode()

    def names(self) -> list[str]:
        """The names of all files."""
        return self._files.names(self.place)

    def remove(self, names: list[str], keys: tuple[str, ...]) -> None:
        """Remove those of these files that belong to the rows."""
        prefixes = {_prefix(key) for key in keys}
        for name in names:
            if name.partition("-")[0] in prefixes:
                self._files.remove(f"{self.place}/{name}")

    def drop(self, names: list[str]) -> None:
        """Remove these files, and the folder if it has no others."""
        for name in names:
            self._files.remove(f"{self.place}/{name}")
        with suppress(OSError):  # another process has written into it meanwhile
            self._files.remove(self.place)


def beside(url: str) -> str | None:
    """The folder of large answers beside a ledger in a file; None: it is on a server, or in memory."""
    parts = urlsplit(url)
    if parts.scheme not in {"sqlite", "file"}:
        return None
    path = os.fsdecode(unquote_to_bytes(parts.path))
    return f"{path[1:] if os.name == 'nt' else path}.answers"


def _prefix(key: str) -> str:
    """How the names of a row's files begin: keys may have characters that file names can't."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]
