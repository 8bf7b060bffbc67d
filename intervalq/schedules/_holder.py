"""Unique names of those who fire occurrences. They contain the machine, and how its clock was set."""

from __future__ import annotations

import re
import secrets
import socket
from typing import Final, NamedTuple, Self

_NAME: Final = re.compile(
    r"[0-9a-f]{16}\.-?\d+@(?P<host>.*?)(?P<ahead>[+-]\d+\.\d)(?: (?P<code>\d+|-))?", re.DOTALL
)
_COMMAND: Final = " -"
"""The suffix of the name of a holder that runs a command which has not ended."""
_MAX_HOST: Final = 100


class Holder(NamedTuple):
    """What the name of a holder contains."""

    host: str
    ahead: float
    """By how many seconds its clock was ahead of the store's; negative: behind."""
    code: int | None
    """The exit code of the command that it ran (`intervalq once`), which has ended; None: none is known."""
    is_command: bool
    """Whether it runs or ran a command."""

    @classmethod
    def of(cls, name: str) -> Self | None:
        """What a name contains; None: it is not such a name."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        code = found["code"]
        ended = None if code is None or code == "-" else int(code)
        return cls(found["host"], float(found["ahead"]), ended, code is not None)


def host_of(name: str) -> str:
    """The machine of a holder."""
    found = Holder.of(name)
    return found.host if found is not None else "another process"


def of_command(name: str, code: int | None = None) -> str:
    """The name of one who runs a command, or who ran it, with its exit code."""
    return f"{name}{_COMMAND}" if code is None else f"{name.removesuffix(_COMMAND)} {code}"


def runs_command(name: str) -> bool:
    """Whether this is the name of one who runs or ran a command: hosts start it, and not a process here."""
    found = Holder.of(name)
    return found is not None and found.is_command


class Process:
    """A process that takes occurrences."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._host = socket.gethostname()[:_MAX_HOST]

    def name(self, scheduled: int, ahead: int) -> str:
        """The name by which it takes an occurrence, while its clock is ahead by so many microseconds."""
        return f"{self._prefix(scheduled)}{self._host}{ahead / 1e6:+.1f}"

    def has(self, name: str, scheduled: int | None) -> bool:
        """Whether it has taken this occurrence by this name: so it recognizes its own after a lost answer."""
        return name.startswith(self._prefix(scheduled))

    def _prefix(self, scheduled: int | None) -> str:
        return f"{self._token}.{scheduled}@"
