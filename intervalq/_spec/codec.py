"""Codecs: they transform values on their way into a store and back, for example to encrypt them."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final, Protocol

from intervalq._spec import strict_json
from intervalq.errors import InvalidOption, UnreadableValue, short

MARK: Final = "intervalq-codec:"
"""The prefix of the text that stands for an encoded value in a store; base64 follows."""

_BEGINNING: Final = f'"{MARK}'


class Codec(Protocol):
    """Turns the JSON of a value into the bytes that are stored, and back, for example to encrypt it.

    Both methods are called in the event loop, so they should be quick, and in threads that read values. What
    `encode` raises is raised to the caller that gave the value; for `decode` see `UnreadableValue`.
    """

    def encode(self, data: bytes, /) -> bytes:
        """The bytes to store."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """The bytes that `encode` was given. Raises any exception if `data` isn't its own, or is damaged."""
        ...


def checked_codec(codec: Codec | None) -> Codec | None:
    """A codec, unchanged.

    Raises:
        InvalidOption: it lacks one of the methods.
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
    """The JSON text to store. With a codec, this is a JSON string that begins with `MARK`.

    Raises:
        InvalidOption: the codec returned something other than bytes.
    """
    if codec is None:
        return text
    data: object = codec.encode(text.encode())
    if not isinstance(data, bytes):
        raise InvalidOption(
            f"the codec's encode() returned {short(type(data).__name__)}: it must return bytes"
        )
    return f'{_BEGINNING}{base64.urlsafe_b64encode(data).decode()}"'


def read(codec: Codec | None, text: str, what: str, *names: str) -> Any:  # noqa: ANN401 - any JSON value
    """The value of JSON text from a store. A value that was written without a codec is read as it is.

    Args:
        codec: the handle's codec, if it has one.
        text: the JSON text.
        what: the owner of the value, for the error.
        names: what to put into that text by `%`; only then, because that takes as long as reading a value.

    Raises:
        UnreadableValue: the value needs a codec and there is none, or a different one; or it is damaged.
    """
    if text.startswith(_BEGINNING):  # not `is_encoded`: a call costs a tenth of reading a short value
        text = _decoded(codec, text, what % names if names else what)
    try:
        return strict_json.loads(text)
    except (ValueError, RecursionError, TypeError):  # their messages would show the value
        raise UnreadableValue(what % names if names else what, "it is not JSON") from None


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
        raise UnreadableValue(
            what, "the codec's decode() returned something other than UTF-8 bytes"
        ) from None
