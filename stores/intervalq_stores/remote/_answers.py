"""What a store of a service can't send, and answers that it doesn't understand: as errors of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from intervalq._wire.values import MalformedValue, dumps, loads
from intervalq._wire.verbs import MAX_BYTES
from intervalq.errors import StoreError

_ROOM = 10_000


def encoded(url: str, hint: Any, value: object) -> bytes:  # noqa: ANN401 - any type
    """A command for the service.

    Raises:
        StoreError: it is too long, or has a text that isn't Unicode.
    """
    try:
        data = dumps(hint, value)
    except UnicodeEncodeError as error:
        raise StoreError(url, f"{error}; nothing was done: omit that value") from error
    if len(data) > MAX_BYTES - _ROOM:
        raise StoreError(
            url,
            f"a command has {len(data)} bytes, and a service takes up to {MAX_BYTES - _ROOM}; nothing was "
            "done: send fewer or shorter values at once",
        )
    return data


@contextmanager
def understood(url: str) -> Iterator[Callable[[Any, bytes], Any]]:
    """A context whose function reads answers.

    Raises:
        StoreError: what is read in it is malformed.
    """
    try:
        yield loads
    except MalformedValue as error:
        raise StoreError(
            url, f"the service's answer can't be read, but the step was done: {error}"
        ) from error
