"""Codecs: what values go through on their way into a store and back, for example to be encrypted."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, Protocol

from intervalq._spec import strict_json
from intervalq.errors import InvalidOption, UnreadableValue, short

MARK: Final = "intervalq-codec:"
"""What stands at the beginning of the text that an encoded value is in a store; base64 follows."""

_BEGINNING: Final = f'"{MARK}'


class Codec(Protocol):
    """Turns the JSON of a value into the bytes that a store is given, and back: to encrypt it, for example.

    Both are called in the event loop, so that they should be quick, and from threads that read values.
    What they raise when writing is raised where the value was given; when reading, see `UnreadableValue`.
    """

    def encode(self, data: bytes, /) -> bytes:
        """The bytes to be kept."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """The bytes that `encode` was given. Raises whatever it likes if these aren't its own, or damaged."""
        ...


def checked_codec(codec: Codec | None) -> Codec | None:
    """A codec, unchanged.

    Raises:
        InvalidOption: it has not both methods.
    """
    if codec is not None:
        for name in ("encode", "decode"):
            if not callable(getattr(codec, name, None)):
                raise InvalidOption(
                    f"codec= has no {name}(): give an object with encode(bytes) and decode(bytes), "
                    "which both return bytes"
                )
    return codec


def is_encoded(text: str) -> bool:
    """Whether JSON text from a store is an encoded value."""
    return text.startswith(_BEGINNING)


def encoded(codec: Codec | None, text: str) -> str:
    """JSON text as a store is given it: with a codec, again JSON, a text that begins with `MARK`.

    Raises:
        InvalidOption: the codec gave something else than bytes.
    """
    if codec is None:
        return text
    data: object = codec.encode(text.encode())
    if not isinstance(data, bytes):
        raise InvalidOption(f"the codec's encode() gave {short(type(data).__name__)}: it must return bytes")
    return f'{_BEGINNING}{base64.urlsafe_b64encode(data).decode()}"'


def read(codec: Codec | None, text: str, what: str) -> Any:  # noqa: ANN401 - whatever it was
    """The value of JSON text from a store. One that was written without a codec is read as it is.

    Args:
        codec: what it was written with, if it was.
        text: see there.
        what: whose value it is, for the error.

    Raises:
        UnreadableValue: it needs a codec and there is none, or another; or it is damaged.
    """
    if is_encoded(text):
        text = _decoded(codec, text, what)
    try:
        return strict_json.loads(text)
    except (ValueError, RecursionError, TypeError):  # which would show it
        raise UnreadableValue(what, "it is not JSON") from None


def _decoded(codec: Codec | None, text: str, what: str) -> str:
    if codec is None:
        raise UnreadableValue(what, "it was written with a codec, and this handle has none")
    try:
        data = base64.b64decode(text[len(_BEGINNING) : -1], altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise UnreadableValue(what, "it was damaged in the store") from None
    try:
        given: object = codec.decode(data)
    except Exception as error:
        why = f"the codec raised {type(error).__name__}, as it does for another key or damaged data"
        raise UnreadableValue(what, why) from error
    try:
        return bytes.decode(given)  # type: ignore[arg-type]
    except (TypeError, UnicodeDecodeError):
        raise UnreadableValue(what, "the codec's decode() gave something else than UTF-8 bytes") from None
