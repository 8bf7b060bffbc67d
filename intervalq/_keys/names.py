"""Keys may be any text: how one is written in the name of its record, and read back."""

from __future__ import annotations

import re
from typing import Final

from intervalq.errors import InvalidName

MAX_KEY: Final = 10_000
"""The maximum number of characters in a key."""

_MAX_LENGTH: Final = 128
_PREFIX: Final = 60
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9.-]")
_ESCAPED: Final = re.compile(rb"_([0-9a-f]{2})")


def token(key: object) -> str:
    """A key in the characters that every store takes; different keys have different tokens.

    A plain key is its own token. Other tokens begin with `-`, as no plain key does, and write a special
    character as `_` and two digits for each of its bytes in UTF-8. A long one ends with `__` and a digest.

    Raises:
        InvalidName: it is not text of 1 to 10,000 characters.
    """
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
        raise InvalidName(key, MAX_KEY, what="key")
    if _PLAIN.fullmatch(key):
        return key
    try:
        raw = key.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise InvalidName(key, MAX_KEY, what="key") from None
    written = "-" + _UNSAFE.sub(lambda found: b"_%02x" % found[0][0], raw).decode()
    if len(written) <= _MAX_LENGTH:
        return written
    from hashlib import sha256  # noqa: PLC0415 - few keys are that long

    return f"{re.sub('_.?$', '', written[:_PREFIX])}__{sha256(raw).hexdigest()}"


def shown(record: str) -> str:
    """The name of a record with the key as its user gave it; of a long key, the beginning and the digest."""
    name, colon, key = record.partition(":")
    if not key.startswith("-"):
        return record
    beginning, long, digest = key[1:].partition("__")
    raw = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), beginning.encode())
    text = raw.decode(errors="ignore")  # a long one may end within a character
    return f"{name}{colon}{text}...{digest}" if long else f"{name}{colon}{text}"
