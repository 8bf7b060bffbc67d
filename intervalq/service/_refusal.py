"""How a service refuses a request: a code of gRPC, a message, and details."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from google.protobuf.message import Message

from intervalq.errors import (
    InboxFull,
    IntervalqError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    UnsupportedOperation,
)


class Code(Enum):
    """The codes of gRPC that a service uses, with their numbers and the codes of HTTP that go with them."""

    INVALID_ARGUMENT = 3, 400
    DEADLINE_EXCEEDED = 4, 504
    NOT_FOUND = 5, 404
    PERMISSION_DENIED = 7, 403
    RESOURCE_EXHAUSTED = 8, 429
    UNIMPLEMENTED = 12, 501
    INTERNAL = 13, 500
    UNAVAILABLE = 14, 503
    UNAUTHENTICATED = 16, 401

    def __init__(self, number: int, http: int) -> None:
        self.number, self.http = number, http


class Refusal(Exception):
    """A request can't be done, or nobody knows whether it was."""

    def __init__(
        self,
        code: Code,
        message: str,
        details: Sequence[Message] = (),
        denied: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, tuple(details)
        self.denied = tuple(denied)
        """Actions with their queues that the caller is not allowed."""


# A client may send a request again when the store is away, but not by itself when an answer is missing: that
# request may have been done.
_CODES: Final = (
    (StoreTimeout, Code.DEADLINE_EXCEEDED),
    (StoreUnavailable, Code.UNAVAILABLE),
    (UnsupportedOperation, Code.UNIMPLEMENTED),
    (Unauthorized, Code.UNAVAILABLE),  # of the service at its store, and not of the client at the service
    (InboxFull, Code.RESOURCE_EXHAUSTED),
    (ValueError, Code.INVALID_ARGUMENT),
)


def refusal(error: IntervalqError) -> Refusal:
    """How to report an error of a store or of a check. The address of the service's own store is left out."""
    why = str(error).removeprefix(f"{error.store}: ") if isinstance(error, StoreError) else str(error)
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Refusal(code, why)
    return Refusal(Code.INTERNAL, why)
