"""Pacing over HTTP/JSON: routes, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from intervalq.errors import IntervalqError
from intervalq.service._access import Access, Caller
from intervalq.service._http import body_of, caller_of, problem, refused, while_connected
from intervalq.service._pacing.fields import fields_of
from intervalq.service._pacing.verbs import Done, Fields, Pacing, TooLate
from intervalq.service._refusal import Code, Refusal


class Verb(NamedTuple):
    """A route."""

    method: str
    path: str
    do: Callable[[Pacing, str, Fields, Caller], Awaitable[Done]]
    fields: tuple[str, ...]
    """The fields that a request may have."""


_JOB: Final = ("key", "each", "cost")
_AT: Final = "/v1/queues/{queue}"

VERBS: Final = (
    Verb("POST", f"{_AT}/slot", Pacing.slot, (*_JOB, "within", "priority")),
    Verb("POST", f"{_AT}/quote", Pacing.quote, _JOB),
    Verb("POST", f"{_AT}/settle", Pacing.settle, ("receipt", "units")),
    Verb("POST", f"{_AT}/hold", Pacing.hold, ("key", "seconds")),
    Verb("POST", f"{_AT}/resume", Pacing.resume, ("key",)),
    Verb(
        "PUT", _AT, Pacing.configure, ("key", "interval", "rate", "burst", "max_running", "limits", "weight")
    ),
    Verb("GET", _AT, Pacing.inspect, ("key",)),
)


def routes(pacing: Pacing, access: Access | None) -> list[Route]:
    """The routes of all verbs."""
    return [Route(verb.path, _endpoint(pacing, access, verb), methods=[verb.method]) for verb in VERBS]


def _endpoint(pacing: Pacing, access: Access | None, verb: Verb) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            caller = caller_of(access, request)
            given = await _given(request, verb)
            done = await while_connected(
                request, verb.do(pacing, request.path_params["queue"], given, caller)
            )
        except TooLate as late:
            retry = {} if late.retry_after is None else {"retry-after": str(math.ceil(late.retry_after))}
            return problem(429, "the slot comes too late", str(late), {**late.headers, **retry})
        except (Refusal, IntervalqError) as error:
            return refused(error)
        if done.fields is None:
            return Response(status_code=204, headers=done.headers)
        return JSONResponse(done.fields, headers=done.headers)

    return answer


async def _given(request: Request, verb: Verb) -> dict[str, Any]:
    """The fields of a request: those of the body, or of the query.

    Raises:
        Refusal: the verb has no such fields.
    """
    if verb.method != "GET":
        return fields_of(await body_of(request), verb.fields)
    given: dict[str, Any] = {}
    for name, value in request.query_params.multi_items():
        if name not in verb.fields or name in given or not value:
            raise Refusal(Code.INVALID_ARGUMENT, f"the query may have {', '.join(verb.fields)}, each once")
        given[name] = value
    return given
