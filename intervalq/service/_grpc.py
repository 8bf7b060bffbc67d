"""What all gRPC services share: who the caller is, how a refusal is sent, and that messages must come."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2

from intervalq.errors import IntervalqError
from intervalq.service._access import Access, Anybody, Caller, only
from intervalq.service._large import SENDER, Answers
from intervalq.service._refusal import Refusal, refusal

_MESSAGE: Final = 500
_DETAILS: Final = 3_000
"""The maximum length of an error's message, in characters, and of its details, in bytes. Both travel in
headers, of which clients take 8 KiB; beyond that, clients would see another error."""

_PATIENCE: Final = 30.0
"""Seconds within which a client must send a message."""
_MAX_WATCHING: Final = 1_000
"""The maximum number of streams of health, which last as long as clients like."""
_WATCH: Final = "/grpc.health.v1.Health/Watch"

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Answer = Callable[[Any, Context], Any]

_HEADER: Final = "authorization"
_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}


def caller_of(access: Access | None, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    """Who sends a request.

    Raises:
        Refusal: it must have a token, and has none that is known.
    """
    given = [value for name, value in context.invocation_metadata() or () if name == _HEADER]
    caller = Anybody() if access is None else access.caller(only(given))
    SENDER.set(caller.account or context.peer())
    return caller


def counts(answers: Answers, context: grpc.aio.ServicerContext[Any, Any], size: int) -> None:
    """Note that a client is sent an answer of this size, in bytes."""
    taken = answers.waits(size)
    if taken is not None:
        context.add_done_callback(cast("Any", lambda _: taken()))  # to its stubs, no function is a callback


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    error: Refusal | IntervalqError,
    details: Sequence[Message] = (),
) -> None:
    """End a request with an error."""
    refused = error if isinstance(error, Refusal) else refusal(error)
    message = refused.message if len(refused.message) <= _MESSAGE else f"{refused.message[:_MESSAGE]} ..."
    if details:
        status = status_pb2.Status(code=refused.code.number, message=message)
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            if status.ByteSize() + packed.ByteSize() > _DETAILS:
                break
            status.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(_STATUS[refused.code.number], message)


# --- messages that don't come: their requests end, because each has a place of the service's -------------


class Registrar:
    """Takes the handlers of services for a server, as the server itself does."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See `grpc.aio.Server`."""
        self._server.add_generic_rpc_handlers(tuple(map(_Prompt, handlers)))

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """See `grpc.aio.Server`: the same methods are among the generic ones."""


class _Prompt(grpc.GenericRpcHandler):
    """The methods of a service, whose clients must send their messages."""

    def __init__(self, handlers: grpc.GenericRpcHandler) -> None:
        self._handlers = handlers
        self._known: dict[str, Handler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """See `grpc.GenericRpcHandler`."""
        method = handler_call_details.method
        found = self._known.get(method)
        if found is None:
            handler = self._handlers.service(handler_call_details)
            if handler is None:
                return None
            found = self._known[method] = _prompt(handler, bounded=method == _WATCH)
        return found


def _prompt(handler: Any, *, bounded: bool) -> Handler:  # noqa: ANN401 - its stubs have no attributes
    """The same method, which reads its messages itself: to clients, one message is a stream of one."""
    how = handler.request_deserializer, handler.response_serializer
    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(_messages_of(handler.stream_stream), *how)
    if not handler.response_streaming:
        return grpc.stream_unary_rpc_method_handler(_message_of(handler.unary_unary), *how)
    answer = handler.unary_stream
    if inspect.isasyncgenfunction(answer):
        return grpc.stream_stream_rpc_method_handler(_stream_of(answer), *how)
    return grpc.stream_stream_rpc_method_handler(
        _message_of(_at_most(answer, _MAX_WATCHING) if bounded else answer), *how
    )


def _message_of(answer: Answer) -> Answer:
    async def call(messages: object, context: Context) -> Any:  # noqa: ANN401 - as the method has it
        del messages
        return await answer(await _message(context), context)

    return call


def _stream_of(answer: Callable[[Any, Context], AsyncIterator[Any]]) -> Answer:
    async def call(messages: object, context: Context) -> AsyncIterator[Any]:
        del messages
        async for message in answer(await _message(context), context):
            yield message

    return call


def _messages_of(answer: Callable[[Any, Context], AsyncIterator[Any]]) -> Answer:
    """For a method with a stream of messages, which is over if none comes."""

    async def prompt(context: Context) -> AsyncIterator[Any]:
        while (message := await _next(context)) not in (None, grpc.aio.EOF):
            yield message

    async def call(messages: object, context: Context) -> AsyncIterator[Any]:
        del messages
        async for message in answer(prompt(context), context):
            yield message

    return call


def _at_most(answer: Answer, most: int) -> Answer:
    """Answers so many clients at a time."""
    count = 0

    async def call(message: object, context: Context) -> None:
        nonlocal count
        if count >= most:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients watch: ask again later")
        count += 1
        try:
            await answer(message, context)
        finally:
            count -= 1

    return call


async def _message(context: Context) -> Any:  # noqa: ANN401 - as the method has it
    """The message of a request."""
    try:
        message = await _next(context)
    except DecodeError as error:  # otherwise gRPC logs each as an error of the service
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"the message can't be read: {error}"[:_MESSAGE]
        )
    if message is None:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message came within {_PATIENCE:.0f} s")
    if message is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request has no message")
    return message


async def _next(context: Context) -> Any:  # noqa: ANN401 - as the method has it
    """The next message; None: none comes."""
    try:
        async with asyncio.timeout(_PATIENCE):
            return await context.read()
    except TimeoutError:
        return None
