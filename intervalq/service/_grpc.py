"""What all services over gRPC share: who calls, and how a refusal is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2

from intervalq.errors import IntervalqError
from intervalq.service._access import Access, Anybody, Caller
from intervalq.service._refusal import Refusal, refusal

_STATUS: Final = {code.value[0]: code for code in grpc.StatusCode}


def caller_of(access: Access | None, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    """Who sends a request.

    Raises:
        Refusal: it must have a token, and has none that is known.
    """
    if access is None:
        return Anybody()
    headers = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
    return access.caller(headers.get("authorization"))


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    error: Refusal | IntervalqError,
    details: Sequence[Message] = (),
) -> None:
    """End a request with an error."""
    refused = error if isinstance(error, Refusal) else refusal(error)
    if details:
        status = status_pb2.Status(code=refused.code.number, message=refused.message)
        for detail in details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(_STATUS[refused.code.number], refused.message)
