"""What all gRPC services share: who the caller is, and how a refusal is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2

from intervalq.errors import IntervalqError
from intervalq.service._access import Access, Anybody, Caller, only
from intervalq.service._large import SENDER, Answers
from intervalq.service._refusal import Refusal, refusal

_MESSAGE: Final = 500
_DETAILS: Final = 3_000
"""The maximum length of an error's message, in characters, and of its details, in bytes. Both travel in
headers, of which clients take 8 KiB; beyond that, clients would see another error."""

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
