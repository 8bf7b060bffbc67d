"""What all services over HTTP share: bounded bodies."""

from __future__ import annotations

from typing import Final

from starlette.requests import ClientDisconnect, Request

from intervalq.service._refusal import Code, Refusal

MAX_BYTES: Final = 4 * 1024 * 1024
"""The longest message, as gRPC has it: read no further, whatever a client sends."""


async def body_of(request: Request) -> bytes:
    """The body of a request.

    Raises:
        Refusal: it is longer than `MAX_BYTES`, or the client has gone.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                raise Refusal(
                    Code.RESOURCE_EXHAUSTED,
                    f"a message has at most {MAX_BYTES} bytes: send fewer parts at once",
                )
    except ClientDisconnect:
        raise Refusal(Code.DEADLINE_EXCEEDED, "the client has gone") from None
    return bytes(body)
