"""Metrics of a service, if the program uses OpenTelemetry when the service begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import grpc.aio
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from intervalq._observe import names
from intervalq._observe.telemetry import Telemetry, telemetry

Answer = Callable[[Any, grpc.aio.ServicerContext[Any, Any]], Any]


@contextmanager
def waits(kind: Literal["claim", "slot", "stream"]) -> Iterator[None]:
    """A request that waits."""
    found = telemetry()
    if found is None:
        yield
        return
    found.waiting.add(1, {names.KIND: kind})
    try:
        yield
    finally:
        found.waiting.add(-1, {names.KIND: kind})


def measured(answer: Answer, verb: str | Callable[[Any], str]) -> Answer:
    """Measure a gRPC method with one answer. `verb`: its name, or a function that finds it in a request."""
    found = telemetry()
    if found is None:
        return answer

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401
        with _call(found, verb if isinstance(verb, str) else verb(request), context):
            return await answer(request, context)

    return call


def measured_stream(answer: Answer, verb: str) -> Answer:
    """The same for a method whose answer is a stream."""
    found = telemetry()
    if found is None:
        return answer

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:  # noqa: ANN401
        with _call(found, verb, context):
            async for message in answer(request, context):
                yield message

    return call


def measure(route: Route) -> Route:
    """Measure the requests of a route; returns the route."""
    found, app = telemetry(), route.app
    if found is None:
        return route

    async def measured_app(scope: Scope, receive: Receive, send: Send) -> None:
        outcome, begun = "none", time.perf_counter()  # none: the client has gone

        async def sent(message: Message) -> None:
            nonlocal outcome
            if message["type"] == "http.response.start":
                outcome = str(message["status"])
            await send(message)

        try:
            await app(scope, receive, sent)
        finally:
            _record(found, f"{scope['method']} {route.path}", outcome, begun)

    route.app = measured_app
    return route


@contextmanager
def _call(found: Telemetry, verb: str, context: grpc.aio.ServicerContext[Any, Any]) -> Iterator[None]:
    outcome, begun = "OK", time.perf_counter()
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        outcome = "CANCELLED"
        raise
    except BaseException:
        outcome = _CODES.get(context.code(), "UNKNOWN")
        raise
    finally:
        _record(found, verb, outcome, begun)


_CODES = {key: code.name for code in grpc.StatusCode if code.value[0] for key in (code, code.value[0])}


def _record(found: Telemetry, verb: str, outcome: str, begun: float) -> None:
    found.requests.record(time.perf_counter() - begun, {names.VERB: verb, names.OUTCOME: outcome})
