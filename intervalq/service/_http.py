"""What all services over HTTP share: bounded bodies, and no requests from web pages."""

from __future__ import annotations

import ipaddress
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from intervalq.service._refusal import Code, Refusal

MAX_BYTES: Final = 4 * 1024 * 1024
"""The longest message, as gRPC has it: read no further, whatever a client sends."""


class NoPages:
    """Refuses what a web page sends in its visitor's browser, who is on this machine and needs no token.

    A browser names the page's origin. A page whose own name leads to this machine (DNS rebinding) names
    another host than those of this machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            host = headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
            if "origin" in headers or not is_here(host.removeprefix("[").removesuffix("]")):
                message = "web pages may not use a service without access control: start it with --access"
                body = {"code": Code.PERMISSION_DENIED.number, "message": message, "details": []}
                await JSONResponse(body, status_code=403)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_here(host: str) -> bool:
    """Whether a host is a loopback address or its name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
