"""EntroQ over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2

from intervalq.errors import IntervalqError
from intervalq.service._access import ANYBODY, Access, Caller
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import NAME, STREAM_TASKS, UNARY
from intervalq.service._entroq.model import details_of
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._refusal import Refusal, refusal

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


def handler(verbs: Verbs, access: Access | None) -> grpc.GenericRpcHandler:
    """The handler of all methods, for a server of gRPC."""
    methods = {
        method.name: grpc.unary_unary_rpc_method_handler(
            _answered(verbs, access, method.verb),
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
        for method in UNARY
    }
    methods["StreamTasks"] = grpc.unary_stream_rpc_method_handler(
        _streamed(verbs, access),
        request_deserializer=pb.TasksRequest.FromString,
        response_serializer=pb.TasksResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(NAME, methods)


def _answered(
    verbs: Verbs, access: Access | None, verb: Callable[[Verbs, Any, Caller], Awaitable[Message]]
) -> Callable[..., Any]:
    async def answer(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
        try:
            return await verb(verbs, request, _caller(access, context))
        except (Refusal, IntervalqError) as error:
            await _abort(context, error)
            raise

    return answer


def _streamed(verbs: Verbs, access: Access | None) -> Callable[..., AsyncIterator[Message]]:
    async def answer(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
        try:
            async for message in STREAM_TASKS(verbs, request, _caller(access, context)):
                yield message
        except (Refusal, IntervalqError) as error:
            await _abort(context, error)
            raise

    return answer


def _caller(access: Access | None, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    if access is None:
        return ANYBODY
    headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
    return access.caller(headers.get("authorization"))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Refusal | IntervalqError) -> None:
    refused = error if isinstance(error, Refusal) else refusal(error)
    if details := details_of(refused):
        status = status_pb2.Status(code=refused.code.number, message=refused.message)
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(_STATUS[refused.code.number], refused.message)
