"""The limits of a rate limit service: which descriptors wait in which queue, read from a TOML file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from intervalq import IntervalQueue
from intervalq._spec import parse
from intervalq.errors import IntervalqError, InvalidOption, short

_FIELDS: Final = {"domain", "match", "queue", "key", "wait", "rate", "each", "limits", "burst"}
_ANY: Final = "*"


class Limit(NamedTuple):
    """The queue for descriptors of one kind."""

    domain: str
    match: Mapping[str, str]
    """The entries that a descriptor has, all of them and no others; the value `*` stands for any."""
    queue: IntervalQueue
    key: str | None
    """The entry whose value is the queue's key; None: the queue has no keys."""
    wait: float
    """How long a request may wait for its slot, in seconds."""

    def fits(self, domain: str, entries: Mapping[str, str]) -> bool:
        """Whether it is for a descriptor with these entries."""
        return (
            domain == self.domain
            and self.match.keys() == entries.keys()
            and all(value in (_ANY, entries[name]) for name, value in self.match.items())
        )

    def queue_of(self, entries: Mapping[str, str]) -> IntervalQueue:
        """The queue of a descriptor.

        Raises:
            InvalidName: the value is not a key.
        """
        return self.queue if self.key is None else self.queue[entries[self.key]]


def read_limits(path: str | os.PathLike[str], store: str | None) -> list[Limit]:
    """The limits of a file: TOML with a table `[[limit]]` for each.

    Args:
        path: the file. A limit has `domain`, `match` (the entries of its descriptors), `queue` (a name), and
            may have `key` (the name of an entry), `wait` (a duration, 0 if it is missing), and the options
            `rate`, `each`, `limits` and `burst` of `IntervalQueue`.
        store: the URL of the queues' store.

    Raises:
        InvalidOption: it can't be read, or is malformed.
    """
    file = Path(path)
    try:
        read = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidOption(f"the limits in {file} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOption(f"{file} is not TOML: {error}") from error
    tables = read.pop("limit", None)
    if read or not isinstance(tables, list) or not tables:
        raise InvalidOption(f"{file} has tables [[limit]] and nothing else")
    return [_limit(f"{file}: limit {number}", table, store) for number, table in enumerate(tables, 1)]


def _limit(where: str, table: Any, store: str | None) -> Limit:  # noqa: ANN401 - as TOML has it
    if not isinstance(table, dict) or not {"domain", "match", "queue"} <= {*table} <= _FIELDS:
        raise InvalidOption(
            f"{where} needs domain, match and queue, and may have {', '.join(sorted(_FIELDS))}"
        )
    match, key = table["match"], table.get("key")
    if not isinstance(match, dict) or not match or not all(isinstance(one, str) for one in match.values()):
        raise InvalidOption(f"{where}: match names the entries of a descriptor, each with its value or '*'")
    if key is not None and (not isinstance(key, str) or match.get(key) != _ANY):
        raise InvalidOption(f"{where}: key={short(key)} is not an entry of match whose value is '*'")
    options = {name: table[name] for name in ("rate", "each", "limits", "burst") if name in table}
    try:
        queue = IntervalQueue(table["queue"], store=store, **options)
        wait = parse.duration(table.get("wait", 0), what="wait") / 1e6
    except (IntervalqError, TypeError) as error:
        raise InvalidOption(f"{where}: {error}") from error
    if key is None and "each" in options:
        raise InvalidOption(f"{where}: each= applies to keys: set key= to the name of an entry")
    return Limit(str(table["domain"]), match, queue, key, wait)
