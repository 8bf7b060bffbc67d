"""Checks of names, keys and states of a ledger, made before a store sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, get_args

from intervalq._spec import parse
from intervalq.errors import InvalidOption, short
from intervalq.ledger.rules import Shown

MAX_KEY: Final = 512
"""The longest key of a row, in characters."""

SHOWN: Final[tuple[Shown, ...]] = get_args(Shown)
"""All states in which a row may be shown."""


def checked_name(value: object) -> str:
    """The name of a ledger, unchanged; the rules are those for names of queues.

    Raises:
        InvalidName: it is not such a name.
    """
    return parse.name(value)


def checked_key(value: object) -> str:
    """The key of a row, unchanged: valid text of 1 to 512 characters without U+0000.

    Raises:
        InvalidOption: it is not such a key.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_KEY or "\0" in value or not _is_text(value):
        raise InvalidOption(
            f"{short(value)} can't be the key of a row: use text of 1 to {MAX_KEY} characters without "
            "U+0000 and lone surrogates; for longer text, use a hash"
        )
    return value


def checked_keys(values: Iterable[object]) -> tuple[str, ...]:
    """The keys of rows, each once.

    Raises:
        InvalidOption: one can't be a key, or `values` is a single text, whose letters would become keys.
    """
    if isinstance(values, str):
        raise InvalidOption(f"keys={short(values)} is a single text: put it into a list")
    return tuple(dict.fromkeys(map(checked_key, values)))


def checked_shown(values: Iterable[object]) -> tuple[Shown, ...]:
    """States in which rows are shown, each once.

    Raises:
        InvalidOption: one of them is not a state.
    """
    found = dict.fromkeys([values] if isinstance(values, str) else values)
    for value in found:
        if value not in SHOWN:
            raise InvalidOption(f"shown={short(value)} must be one of {', '.join(SHOWN)}")
    return tuple(word for word in SHOWN if word in found)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
