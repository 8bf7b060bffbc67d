"""Schedules over HTTP: paused, resumed and run now by those who look at them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from intervalq._watch.reader import Reader
from intervalq.errors import IntervalqError, ScheduleNotFound
from intervalq.service._access import Access, need
from intervalq.service._actions import Act, Actions
from intervalq.service._http import body_of, caller_of, refused
from intervalq.service._openapi import PROBLEMS, path_parameter
from intervalq.service._pacing.fields import FIELDS, fields_of
from intervalq.service._refusal import Refusal
from intervalq.service._remote.rights import schedule

_CHANGES: Final = {
    "pause": "Let a schedule not fire any more, until somebody resumes it.",
    "resume": "End a pause.",
    "fire": "Run a schedule now, once, beside its times.",
}
_PATH: Final = "/v1/schedules/{schedule}/"
_FIELDS: Final = ("queue",)


def routes(reader: Reader, access: Access | None, actions: Actions) -> list[Route]:
    """A route for each change."""
    return [
        Route(f"{_PATH}{change}", _endpoint(reader, access, actions, change), methods=["POST"])
        for change in _CHANGES
    ]


def _endpoint(
    reader: Reader, access: Access | None, actions: Actions, change: str
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        name = request.path_params["schedule"]
        try:
            caller = caller_of(access, request)
            queue = fields_of(await body_of(request), _FIELDS).get("queue")
            await need(caller, [("change", schedule(name))])
            if change == "fire" and queue is not None:
                await need(caller, [("insert", queue)])
            found = [info for info in await reader.schedules() if (info.name, info.queue) == (name, queue)]
            if not found:
                raise ScheduleNotFound(name)
            await reader.change_schedule(found[0], change)
            actions.note(caller, Act(change, "schedule", name, schedule(name)))
        except (Refusal, IntervalqError) as error:
            return refused(error)
        return Response(status_code=204)

    return answer


def paths() -> dict[str, Any]:
    """The changes in the OpenAPI document."""
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {each: FIELDS[each] for each in _FIELDS},
    }
    return {
        f"{_PATH}{change}": {
            "post": {
                "operationId": f"schedule_{change}",
                "summary": summary,
                "parameters": [path_parameter("schedule")],
                "requestBody": {"required": False, "content": {"application/json": {"schema": schema}}},
                "responses": {"204": {"description": "Done."}, **PROBLEMS},
            }
        }
        for change, summary in _CHANGES.items()
    }
