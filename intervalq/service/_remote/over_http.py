"""intervalq.v1 over HTTP/JSON: the commands of tasks, ledgers and schedules, one route each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import NoneType
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from intervalq._wire.intervalq_v1_pb2 import Kind
from intervalq._wire.schema import Schemas
from intervalq._wire.values import MalformedValue, loads
from intervalq._wire.verbs import VERBS, Names, Verb
from intervalq.errors import IntervalqError
from intervalq.service._access import Access
from intervalq.service._http import body_of, caller_of, refused, while_connected
from intervalq.service._large import counted
from intervalq.service._openapi import PROBLEMS, path_parameter, summary
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote import steps
from intervalq.service._remote.stores import Stores

_JSON: Final = "application/json"


def routes(stores: Stores, access: Access | None) -> list[Route]:
    """The routes of all commands."""
    return [Route(verb.path, _endpoint(stores, access, verb), methods=[_method(verb)]) for verb in VERBS]


def paths_of(schemas: Schemas) -> dict[str, Any]:
    """The operations for the OpenAPI document, by path; what they refer to is added to `schemas`."""
    return {verb.path: {_method(verb).lower(): _operation(verb, schemas)} for verb in VERBS}


def _method(verb: Verb) -> str:
    return "GET" if verb.command is Names else "POST"


def _endpoint(stores: Stores, access: Access | None, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            caller = caller_of(access, request)
            command = await _command(request, verb)
            name = request.path_params.get("name", "")
            done = await while_connected(
                request, steps.do(stores, Kind.Value(verb.kind), name, command, caller)
            )
        except (Refusal, IntervalqError) as error:
            return refused(error)
        if verb.answer is NoneType:
            return Response(status_code=204)
        return counted(stores.answers, Response(done, media_type=_JSON))

    return answer


async def _command(request: Request, verb: Verb) -> Any:  # noqa: ANN401 - of the verb
    """The command of a client's request.

    Raises:
        Refusal: it is malformed.
    """
    if request.query_params:
        raise Refusal(Code.INVALID_ARGUMENT, "there are no parameters here: give fields in the body")
    try:
        return loads(verb.command, await body_of(request) or b"{}")
    except MalformedValue as error:
        raise Refusal(Code.INVALID_ARGUMENT, str(error)) from error


def _operation(verb: Verb, schemas: Schemas) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    if verb.answer is not NoneType:
        done["content"] = {_JSON: {"schema": schemas.of(verb.answer)}}
    operation: dict[str, Any] = {
        "operationId": verb.path.removeprefix("/v1/").replace("{name}/", "").replace("/", "-"),
        "summary": summary(verb.command),
        "parameters": [path_parameter("name")] if "{name}" in verb.path else [],
        "responses": {"204" if verb.answer is NoneType else "200": done, **PROBLEMS},
    }
    if _method(verb) == "POST":
        fields = schemas.of(verb.command)
        is_needed = "required" in schemas.parts[fields["$ref"].rpartition("/")[2]]
        operation["requestBody"] = {"required": is_needed, "content": {_JSON: {"schema": fields}}}
    return operation
