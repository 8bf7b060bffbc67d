"""A store's part of schema `intervalq`: its files of SQL, and its version."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

_FOLDER: Final = files("intervalq_stores.postgres")
_INCLUDE: Final = re.compile(r"^\\ir (\S+)$", re.MULTILINE)  # psql's command for a file beside this one


class Schema(NamedTuple):
    """A store's part of schema `intervalq`."""

    name: str
    """Its name: queues, tasks or ledgers."""
    number: int
    """Its version."""
    table: str
    """The table that has its version in the database."""
    asked: bytes
    """The statement that reads that version."""
    what: str = "schema intervalq has"
    """The beginning of sentences about the version."""

    @property
    def file(self) -> Traversable:
        """The file of SQL that creates or upgrades it, for `psql -f`."""
        return _FOLDER.joinpath(f"{self.name}.sql")

    def other(self, found: int | None) -> str:
        """A sentence that says that the server has another version, and what to do."""
        newer = (found or 0) > self.number
        remedy = "upgrade intervalq here" if newer else f"run the statements of {self.file} (psql -f)"
        return f"{self.what} version {found}, but this intervalq needs version {self.number}: {remedy}"


def statements(name: str) -> str:
    """The statements that create or upgrade a part: its file, with the files that it includes."""
    return _INCLUDE.sub(lambda line: _read(line[1]), _read(f"{name}.sql"))


def _read(path: str) -> str:
    return _FOLDER.joinpath(path).read_text("utf-8")
