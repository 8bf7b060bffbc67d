"""Access control: callers, and a file of subjects with bearer tokens. What no rule allows is refused."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from intervalq.errors import InvalidOption, short
from intervalq.service._refusal import Code, Refusal

ACTIONS: Final = ("claim", "insert", "change", "delete", "read", "pace", "administer")
"""What a request does in a queue. A move deletes in one queue and inserts in another; a dependency reads. To
pace is to take slots; to administer is to change what holds for everybody: a pace, a pause, claims of others.
"""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


Wanted = tuple[str, str]
"""An action and its queue."""


class Rule(NamedTuple):
    """Allows actions in queues: a name, or all names that begin with a prefix."""

    actions: frozenset[str]
    names: frozenset[str]
    prefixes: tuple[str, ...]

    def allows(self, action: str, queue: str) -> bool:
        """Whether it allows an action in a queue."""
        return action in self.actions and (queue in self.names or queue.startswith(self.prefixes))


class Caller(Protocol):
    """The sender of a request."""

    @property
    def name(self) -> str:
        """Who it is, for people."""
        ...

    @property
    def account(self) -> str:
        """By what its share is counted; empty: by its connection."""
        ...

    async def denied(self, wanted: Collection[Wanted], claimant: str) -> set[Wanted]:
        """Those of the wanted actions that it may not do.

        Raises:
            Refusal: the rights of the caller can't be found out.
        """
        ...

    def claimant(self, claimant: str) -> str:
        """The id under which the store has the claims of one of its claimants."""
        ...


class Access(Protocol):
    """The access rules of a service."""

    def caller(self, authorization: str | None) -> Caller:
        """Who sends a request with this header.

        Raises:
            Refusal: there is no token, or an unknown one.
        """
        ...


async def need(caller: Caller, wanted: Iterable[Wanted], claimant: str = "") -> None:
    """Check a whole request.

    Raises:
        Refusal: the caller may not do a part of it; nothing may be done then.
    """
    if isinstance(caller, Anybody):
        return
    denied = sorted(await caller.denied({*wanted}, claimant))
    if denied:
        what = "; ".join(f"{action} in queue {short(queue)}" for action, queue in denied[:10])
        raise Refusal(Code.PERMISSION_DENIED, f"the caller may not {what}", denied=denied)


def only(headers: Sequence[str | bytes]) -> str | None:
    """The only authorization header of a request; None: it has none.

    Raises:
        Refusal: there are several, of which others may have checked another one.
    """
    if len(headers) > 1:
        raise Refusal(Code.UNAUTHENTICATED, "give one authorization header")
    return headers[0] if headers and isinstance(headers[0], str) else None


class Anybody:
    """A caller of a service without access control."""

    @property
    def name(self) -> str:
        """See `Caller`."""
        return "anybody"

    @property
    def account(self) -> str:
        """See `Caller`."""
        return ""

    async def denied(self, wanted: Collection[Wanted], claimant: str) -> set[Wanted]:
        """See `Caller`: nothing."""
        del wanted, claimant
        return set()

    def claimant(self, claimant: str) -> str:
        """See `Caller`: as it is."""
        return claimant


class Subject(NamedTuple):
    """A caller that an access file names."""

    name: str
    rules: tuple[Rule, ...]

    @property
    def account(self) -> str:
        """See `Caller`."""
        return self.name

    async def denied(self, wanted: Collection[Wanted], claimant: str) -> set[Wanted]:
        """See `Caller`: what no rule allows."""
        del claimant
        return {(action, queue) for action, queue in wanted if not self._may(action, queue)}

    def claimant(self, claimant: str) -> str:
        """See `Caller`: within those of this subject, so that nobody can use the claims of somebody else."""
        return f"{self.name}#{claimant.removeprefix(f'{self.name}#')}" if claimant else ""

    def _may(self, action: str, queue: str) -> bool:
        if action == "claim" and queue.startswith(f"session#{self.name}#"):  # see `claimant`
            return True
        return is_canonical(queue) and any(rule.allows(action, queue) for rule in self.rules)


class FileAccess:
    """The subjects of an access file."""

    def __init__(self, subjects: Mapping[bytes, Subject]) -> None:
        self._subjects = subjects

    def caller(self, authorization: str | None) -> Subject:
        """See `Access`: the subject whose token the header has."""
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() == "bearer" and token:
            digest = hashlib.sha256(token.strip().encode()).digest()
            for known, subject in self._subjects.items():
                if hmac.compare_digest(known, digest):
                    return subject
        raise Refusal(Code.UNAUTHENTICATED, "give a valid token in the header 'authorization: Bearer TOKEN'")


def is_canonical(queue: str) -> bool:
    """Whether a name has none of the parts by which paths are written in several ways."""
    parts = queue.removeprefix("/").split("/")
    return not ({"", ".", ".."} & {*parts[:-1]}) and parts[-1] not in (".", "..")


def read_access(path: str | os.PathLike[str]) -> FileAccess:
    """The subjects of an access file.

    The file is TOML: for each subject a table `[NAME]` with `token_sha256`, the hex digest of its token, and
    `allow`, a list of tables with `queues` (names, or prefixes that end with `*`) and `actions`.

    Raises:
        InvalidOption: it can't be read, others may write it, or it is malformed.
    """
    file = Path(path)
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            subjects = tomllib.load(opened)
    except OSError as error:
        raise InvalidOption(f"the access file {file} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the access file {file} is not TOML: {error}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidOption(f"others may write the access file {file}: chmod go-w {file}")
    if not subjects:
        raise InvalidOption(f"the access file {file} names nobody: give it a table for each subject")
    callers: dict[bytes, Subject] = {}
    for name, table in subjects.items():
        digest, caller = _subject(file, name, table)
        if digest in callers:
            raise InvalidOption(f"{file}: {name} and {callers[digest].name} have the same token")
        callers[digest] = caller
    return FileAccess(callers)


def _subject(file: Path, name: str, table: Any) -> tuple[bytes, Subject]:  # noqa: ANN401 - as TOML has it
    where = f"{file}: subject {short(name)}"
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise InvalidOption(f"{where} is not a table with a name of letters, digits and . _ -")
    digest, allow = table.get("token_sha256"), table.get("allow")
    if {*table} != {"token_sha256", "allow"} or not isinstance(digest, str) or not isinstance(allow, list):
        raise InvalidOption(f"{where} needs token_sha256 and a list allow, and nothing else")
    if not _HASH.fullmatch(digest):
        raise InvalidOption(f"{where}: token_sha256 is 64 hex digits: printf %s TOKEN | sha256sum")
    return bytes.fromhex(digest), Subject(name, tuple(_rule(where, rule) for rule in allow))


def _rule(where: str, rule: Any) -> Rule:  # noqa: ANN401 - as TOML has it
    if not isinstance(rule, dict) or {*rule} != {"queues", "actions"}:
        raise InvalidOption(f"{where}: a rule has queues and actions, and nothing else")
    queues, actions = rule["queues"], rule["actions"]
    if not _are_texts(queues) or not _are_texts(actions):
        raise InvalidOption(f"{where}: queues and actions are lists of texts")
    if unknown := [action for action in actions if action not in ACTIONS]:
        raise InvalidOption(f"{where}: {short(unknown[0])} is not an action; there are {', '.join(ACTIONS)}")
    for queue in queues:
        if "*" in queue[:-1] or not queue or not is_canonical(queue.removesuffix("*")):
            raise InvalidOption(
                f"{where}: {short(queue)} is neither the name of a queue nor a prefix that ends with *"
            )
    return Rule(
        frozenset(actions),
        frozenset(queue for queue in queues if not queue.endswith("*")),
        tuple(queue[:-1] for queue in queues if queue.endswith("*")),
    )


def _are_texts(value: Any) -> bool:  # noqa: ANN401 - as TOML has it
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
