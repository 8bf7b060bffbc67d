"""Who may do what: a file of subjects with bearer tokens and rules; what no rule allows is refused."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from intervalq.errors import InvalidOption, short
from intervalq.service._refusal import Code, Refusal

ACTIONS: Final = ("claim", "insert", "change", "delete", "read", "pace")
"""What a request does in a queue. A move deletes in one queue and inserts in another; a dependency reads. To
pace is to take slots."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class Rule(NamedTuple):
    """Allows actions in queues: a name, or all names that begin with a prefix."""

    actions: frozenset[str]
    names: frozenset[str]
    prefixes: tuple[str, ...]

    def allows(self, action: str, queue: str) -> bool:
        """Whether it allows an action in a queue."""
        return action in self.actions and (queue in self.names or queue.startswith(self.prefixes))


class Caller(NamedTuple):
    """Whoever sends a request."""

    name: str
    """Its name; empty: the service asks nobody for a token, and everybody may do everything."""
    rules: tuple[Rule, ...] = ()

    def may(self, action: str, queue: str) -> bool:
        """Whether it may do this. Names that could be mistaken for others are nobody's."""
        if not self.name:
            return True
        return _is_canonical(queue) and any(rule.allows(action, queue) for rule in self.rules)

    def need(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Check a whole request: actions, each with its queue.

        Raises:
            Refusal: it may not do one of them; nothing may be done then.
        """
        denied = sorted({(action, queue) for action, queue in wanted if not self.may(action, queue)})
        if denied:
            what = "; ".join(f"{action} in queue {short(queue)}" for action, queue in denied[:10])
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"{self.name} may not {what}: a rule of the service's access file must allow it",
                denied=denied,
            )


ANYBODY: Final = Caller("")


class Access:
    """The subjects of an access file."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._callers = callers

    def caller(self, authorization: str | None) -> Caller:
        """Who sends a request with this header.

        Raises:
            Refusal: it has no token, or one that nobody has.
        """
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() == "bearer" and token:
            digest = hashlib.sha256(token.strip().encode()).digest()
            for known, caller in self._callers.items():
                if hmac.compare_digest(known, digest):
                    return caller
        raise Refusal(Code.UNAUTHENTICATED, "give a valid token in the header 'authorization: Bearer TOKEN'")


def read_access(path: str | os.PathLike[str]) -> Access:
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
    callers: dict[bytes, Caller] = {}
    for name, table in subjects.items():
        digest, caller = _subject(file, name, table)
        if digest in callers:
            raise InvalidOption(f"{file}: {name} and {callers[digest].name} have the same token")
        callers[digest] = caller
    return Access(callers)


def _subject(file: Path, name: str, table: Any) -> tuple[bytes, Caller]:  # noqa: ANN401 - as TOML has it
    where = f"{file}: subject {short(name)}"
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise InvalidOption(f"{where} is no table with a name of letters, digits and . _ -")
    digest, allow = table.get("token_sha256"), table.get("allow")
    if {*table} != {"token_sha256", "allow"} or not isinstance(digest, str) or not isinstance(allow, list):
        raise InvalidOption(f"{where} needs token_sha256 and a list allow, and nothing else")
    if not _HASH.fullmatch(digest):
        raise InvalidOption(f"{where}: token_sha256 is 64 hex digits: printf %s TOKEN | sha256sum")
    return bytes.fromhex(digest), Caller(name, tuple(_rule(where, rule) for rule in allow))


def _rule(where: str, rule: Any) -> Rule:  # noqa: ANN401 - as TOML has it
    if not isinstance(rule, dict) or {*rule} != {"queues", "actions"}:
        raise InvalidOption(f"{where}: a rule has queues and actions, and nothing else")
    queues, actions = rule["queues"], rule["actions"]
    if not _are_texts(queues) or not _are_texts(actions) or not {*actions} <= {*ACTIONS}:
        raise InvalidOption(
            f"{where}: queues are names or prefixes with * at the end, actions some of {', '.join(ACTIONS)}"
        )
    for queue in queues:
        if "*" in queue[:-1] or not queue or not _is_canonical(queue.removesuffix("*")):
            raise InvalidOption(
                f"{where}: {short(queue)} is no name of a queue, and no prefix with * at the end"
            )
    return Rule(
        frozenset(actions),
        frozenset(queue for queue in queues if not queue.endswith("*")),
        tuple(queue[:-1] for queue in queues if queue.endswith("*")),
    )


def _are_texts(value: Any) -> bool:  # noqa: ANN401 - as TOML has it
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def _is_canonical(queue: str) -> bool:
    """Whether a name has none of the parts by which paths are written in several ways."""
    parts = queue.removeprefix("/").split("/")
    return not ({"", ".", ".."} & {*parts[:-1]}) and parts[-1] not in (".", "..")
