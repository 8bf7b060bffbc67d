"""What all services over HTTP share: bounded bodies, and no requests from web pages."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from intervalq.errors import (
    ConfigMismatch,
    CorruptState,
    DependencyError,
    InboxFull,
    IntervalqError,
    QueueClosed,
    QueueNotFound,
    ScheduleNotFound,
)
from intervalq.service._access import Access, Anybody, Caller, only
from intervalq.service._large import SENDER
from intervalq.service._refusal import Code, Refusal, refusal

log: Final = logging.getLogger("intervalq")

T = TypeVar("T")

MAX_BYTES: Final = 4 * 1024 * 1024
"""The maximum length of a message, as for gRPC. No more is read, whatever a client sends."""


class NoPages:
    """Refuses requests of web pages: the browser of a visitor on this machine sends them, and needs no token.

    A browser names the page's origin. A page whose own name resolves to this machine (DNS rebinding) names a
    host that isn't one of this machine's.

    Args:
        app: the services.
        fronted: whether something in front of the service decides who may call. Its host name may be another
            one, and its own pages may call, but pages of other origins are refused.
    """

    def __init__(self, app: ASGIApp, *, fronted: bool) -> None:
        self._app, self._fronted = app, fronted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and self._is_from_a_page(Headers(scope=scope)):
            message = "web pages may not use a service without access control: start it with --access"
            body = {"code": Code.PERMISSION_DENIED.number, "message": message, "details": []}
            await JSONResponse(body, status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_from_a_page(self, headers: Headers) -> bool:
        origin, host = headers.get("origin"), headers.get("host", "")
        if self._fronted:
            return origin is not None and origin.partition("://")[2] != host
        name = host if host.endswith("]") else host.rpartition(":")[0] or host  # [::1] alone has colons
        return origin is not None or not is_here(name.removeprefix("[").removesuffix("]"))


def is_here(host: str) -> bool:
    """Whether a host is a loopback address or its name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def problem(
    status: int, title: str, detail: str, headers: Mapping[str, str] | None = None, **more: object
) -> Response:
    """An error as problem details (RFC 9457)."""
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(content, status, headers=headers, media_type="application/problem+json")


_TITLES: Final = {
    Code.INVALID_ARGUMENT: "the request is malformed",
    Code.DEADLINE_EXCEEDED: "no answer came in time",
    Code.NOT_FOUND: "there is no such thing",
    Code.PERMISSION_DENIED: "the caller may not do this",
    Code.RESOURCE_EXHAUSTED: "the request or its answer is too large",
    Code.UNIMPLEMENTED: "the store can't do this",
    Code.UNAVAILABLE: "the service is not available now",
    Code.UNAUTHENTICATED: "the caller is unknown",
    Code.INTERNAL: "the service has failed",
}


def refused(error: Refusal | IntervalqError) -> Response:
    """The answer to a request that was not done."""
    if isinstance(error, QueueNotFound | ScheduleNotFound):
        return problem(404, _TITLES[Code.NOT_FOUND], str(error))
    if isinstance(error, ConfigMismatch | CorruptState | QueueClosed | DependencyError | InboxFull):
        failed = vars(error) if isinstance(error, DependencyError) else {}
        return problem(409, "it is in another state", str(error), **failed)
    why = error if isinstance(error, Refusal) else refusal(error)
    status = 413 if why.code == Code.RESOURCE_EXHAUSTED else why.code.http
    if status == 500:
        log.error("a request failed: %s", error)
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    return problem(status, _TITLES[why.code], why.message, headers)


async def no_route(request: Request, error: Exception) -> Response:
    """The answer where there is no route, or no such method on it."""
    assert isinstance(error, HTTPException)
    detail = f"there is no {request.method} here"
    return problem(error.status_code, error.detail, detail, error.headers)


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


def caller_of(access: Access | None, request: Request) -> Caller:
    """Who sends a request.

    Raises:
        Refusal: it must have a token, and has none that is known.
    """
    tokens = request.headers.getlist("authorization")
    caller = Anybody() if access is None else access.caller(only(tokens))
    SENDER.set(caller.account or f"{request.client}")
    return caller


async def while_connected(request: Request, verb: Awaitable[T]) -> T:
    """Await a verb; if the client goes away meanwhile, its request is cancelled.

    Raises:
        Refusal: the client has gone.
        Exception: the verb has failed.
    """
    answer: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            answer.append(await verb)
        except Exception as error:  # noqa: BLE001 - it is raised outside of the group
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not answer:
        raise Refusal(Code.DEADLINE_EXCEEDED, "the client has gone")
    return answer[0]
