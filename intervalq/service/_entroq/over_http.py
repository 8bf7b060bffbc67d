"""EntroQ over HTTP/JSON: the same messages, in the JSON that protocol buffers define."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from intervalq.errors import IntervalqError
from intervalq.service._access import Access
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import STREAM_PATH, STREAM_TASKS, UNARY, Method
from intervalq.service._entroq.model import details_of, whole
from intervalq.service._entroq.values import MAX_VALUES
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._http import body_of, caller_of, while_connected
from intervalq.service._large import LARGE, away, counted
from intervalq.service._refusal import Code, Refusal, refusal

_PROTOCOLS: Final = {"entroq-protocol": "1, 2"}
"""The versions of the protocol that are served, as clients ask for them."""
_TOLD: Final = 500
"""The maximum number of characters that are said of what is wrong with a request."""


def routes(verbs: Verbs, access: Access | None) -> list[Route]:
    """The routes of all methods."""
    unary = [
        Route(method.http[1], _endpoint(verbs, access, method), methods=[method.http[0]], name=method.name)
        for method in UNARY
    ]
    stream = Route(STREAM_PATH, _stream(verbs, access), methods=["GET"], name="StreamTasks")
    return [*unary, stream]


def _endpoint(
    verbs: Verbs, access: Access | None, method: Method
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            caller = caller_of(access, request)
            message = await _message(request, method.request)
            done = await while_connected(request, method.verb(verbs, message, caller))
            return counted(verbs.answers, await away(done.ByteSize() > LARGE, _shown, done))
        except (Refusal, IntervalqError) as error:
            return _refused(error)

    return answer


def _stream(verbs: Verbs, access: Access | None) -> Callable[[Request], Awaitable[Response]]:
    """Tasks as lines of JSON, one a task."""

    async def answer(request: Request) -> Response:
        try:
            caller = caller_of(access, request)
            tasks = STREAM_TASKS(verbs, await _message(request, pb.TasksRequest), caller)
            first = await anext(tasks, None)  # so that a refusal is an answer of its own
        except (Refusal, IntervalqError) as error:
            return _refused(error)

        async def lines() -> AsyncIterator[str]:
            if first is not None:
                yield json.dumps({"result": _dict(first)}) + "\n"
            async for one in tasks:
                yield json.dumps({"result": _dict(one)}) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=_PROTOCOLS)

    return answer


async def _message(request: Request, kind: type[Message]) -> Message:
    """What a client asks: the JSON of a body, or the fields of a query.

    Raises:
        Refusal: it is no such message.
    """
    message = kind()
    try:
        if request.method == "GET":
            _fill(message, request.query_params.multi_items())
        else:
            body = await body_of(request) or b"{}"
            await away(len(body) > LARGE, _read, body, message)
    except (json_format.Error, ValueError, OverflowError, RecursionError) as error:
        # The text may repeat the request, of any length, with half characters that no answer can have.
        why = str(error)[:_TOLD].encode(errors="backslashreplace").decode()
        raise Refusal(
            Code.INVALID_ARGUMENT, f"the request is not a valid {kind.DESCRIPTOR.name}: {why}"
        ) from error
    return message


def _read(body: bytes, message: Message) -> None:
    read = json.loads(body)
    if not isinstance(read, dict):
        raise json_format.ParseError("it is not a JSON object")
    found: list[Any] = [read]  # each value takes some microseconds to read
    for value in found:
        if isinstance(value, dict):
            found += value.values()
            for name in value:
                if not name.isascii():
                    name.encode()  # half a character is no error of the client for protobuf, but its own
        elif isinstance(value, list):
            found += value
        elif isinstance(value, str) and not value.isascii():
            value.encode()
        if len(found) > MAX_VALUES:
            raise json_format.ParseError(f"it has more than {MAX_VALUES:,} values: send fewer at once")
    json_format.ParseDict(read, message)


def _fill(message: Message, items: list[tuple[str, str]]) -> None:
    """Set the fields that a query names; `query.limit` is a field of a field."""
    fields: dict[str, Any] = {}
    for name, value in items:
        *outer, last = name.split(".")
        inner, descriptor = fields, message.DESCRIPTOR
        for one in outer:
            field = _field(descriptor, one)
            if field.message_type is None:
                raise ValueError(f"{name} is no field")
            inner, descriptor = inner.setdefault(one, {}), field.message_type
        field = _field(descriptor, last)
        if field.message_type is not None:
            raise ValueError(f"{name} has fields of its own")
        given = _truth(name, value) if field.type == FieldDescriptor.TYPE_BOOL else value
        if field.is_repeated:
            inner.setdefault(last, []).append(given)
        else:
            inner[last] = given
    json_format.ParseDict(fields, message)


def _truth(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError(f"{name} is true or false")
    return value == "true"


def _field(descriptor: Any, name: str) -> FieldDescriptor:  # noqa: ANN401 - Descriptor has two implementations
    for field in descriptor.fields:
        if name in (field.name, field.json_name):
            assert isinstance(field, FieldDescriptor)
            return field
    raise ValueError(f"there is no field {name!r}")


def _shown(message: Message) -> Response:
    return JSONResponse(_dict(message), headers=_PROTOCOLS)


def _dict(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = whole(
        json_format.MessageToDict(message, always_print_fields_with_no_presence=True)
    )
    return shown


def _refused(error: Refusal | IntervalqError) -> Response:
    refused = error if isinstance(error, Refusal) else refusal(error)
    details = []
    for detail in details_of(refused):
        packed = AnyMessage()
        packed.Pack(detail)
        # Fields that are empty are left out, but an action whose number is 0 has its name, too.
        details.append({**json_format.MessageToDict(packed), **_dict_of_kind(detail)})
    body = {"code": refused.code.number, "message": refused.message, "details": details}
    return JSONResponse(body, status_code=refused.code.http, headers=_PROTOCOLS)


def _dict_of_kind(detail: Message) -> dict[str, str]:
    return {"type": pb.ActionType.Name(detail.type)} if isinstance(detail, pb.ModifyDep) else {}
