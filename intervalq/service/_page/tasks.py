"""Tasks over HTTP in bulk: put back, moved, deleted and cancelled, as by the commands of these names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from intervalq._watch.edit import Edit, Make, cancelled, deleted, moved, retried
from intervalq.errors import IntervalqError
from intervalq.service._access import Access, Caller
from intervalq.service._actions import Act, Actions
from intervalq.service._http import body_of, caller_of, refused, while_connected
from intervalq.service._openapi import PROBLEMS
from intervalq.service._pacing.fields import FIELDS, fields_of
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote.rights import SESSIONS
from intervalq.service._remote.stores import Stores
from intervalq.service._remote.tasks import RemoteTasks
from intervalq.tasks._claim.values import queue_name

_PATH: Final = "/v1/tasks/edit"
_FIELDS: Final = ("change", "queue", "ids", "to")
_CHANGES: Final = {"retry": retried, "cancel": cancelled, "delete": deleted}


def routes(stores: Stores, access: Access | None) -> list[Route]:
    """The route of all changes."""
    return [Route(_PATH, _endpoint(stores, access), methods=["POST"])]


def _endpoint(stores: Stores, access: Access | None) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            caller = caller_of(access, request)
            given = fields_of(await body_of(request), _FIELDS)
            make = _make(given)
            remote = RemoteTasks(stores.of_tasks(), caller)
            done = await while_connected(request, _edited(remote, caller, stores.actions, given, make))
        except (Refusal, IntervalqError) as error:
            return refused(error)
        return JSONResponse(done)

    return answer


def _make(given: dict[str, Any]) -> Make:
    """What to do with each task.

    Raises:
        Refusal: the request doesn't say it.
        InvalidName: there can be no such queue.
    """
    if "change" not in given or "queue" not in given or ("to" in given) is not (given["change"] == "move"):
        raise Refusal(Code.INVALID_ARGUMENT, "give a change and the queue of the tasks; to move, also `to`")
    queue_name(given["queue"])
    return _CHANGES.get(given["change"]) or moved(queue_name(given["to"]))


async def _edited(
    remote: RemoteTasks, caller: Caller, actions: Actions, given: dict[str, Any], make: Make
) -> dict[str, Any]:
    """Change the tasks within the rights of the caller, and note that."""
    sees_sessions = not await caller.denied([SESSIONS], "")
    edit = Edit(lambda command: remote.apply(command, None), make, sees_sessions=sees_sessions)
    try:
        if "ids" in given:
            await edit.these(given["ids"], given["queue"])
        else:
            await edit.all_of(given["queue"])
    finally:
        if edit.done or edit.unsure:
            to = f" to {given['to']}" if "to" in given else ""
            name = f"{given['queue']}{to}"
            actions.note(caller, Act(given["change"], "tasks of", name, given["queue"], edit.result))
    return {"done": edit.done, "refused": [{"id": id_, "why": why} for id_, why in edit.refused.items()]}


def paths() -> dict[str, Any]:
    """The changes in the OpenAPI document."""
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": ["change", "queue"],
        "properties": {each: FIELDS[each] for each in _FIELDS},
    }
    each = {"type": "object", "properties": {"id": {"type": "string"}, "why": {"type": "string"}}}
    done = {
        "type": "object",
        "properties": {"done": {"type": "integer"}, "refused": {"type": "array", "items": each}},
    }
    return {
        _PATH: {
            "post": {
                "operationId": "tasks_edit",
                "summary": "Put tasks of a queue back, cancel, move or delete them: these, or all.",
                "parameters": [],
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": {
                    "200": {
                        "description": "How many were changed, and why the others were not.",
                        "content": {"application/json": {"schema": done}},
                    },
                    **PROBLEMS,
                },
            }
        }
    }
