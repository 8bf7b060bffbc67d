"""The verbs of pacing in the OpenAPI document, made from the routes and the schemas of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from intervalq.service._openapi import PROBLEM_CONTENT, PROBLEMS, path_parameter, summary
from intervalq.service._pacing.fields import FIELDS

_REQUIRED: Final = {"settle": ["receipt", "units"]}
_RATE_HEADERS: Final = {
    "RateLimit": {"schema": {"type": "string"}, "description": "What is left of the pace and of each limit."},
    "RateLimit-Policy": {"schema": {"type": "string"}, "description": "The pace and the limits."},
}
_SLOT: Final = {
    "type": "object",
    "required": ["ticket", "due"],
    "properties": {
        "ticket": {"type": "integer", "minimum": 1},
        "due": {"type": "number", "description": "The slot, in seconds since 1970 on the store's clock."},
        "receipt": {"type": "string", "description": "For `settle`, if the cost was given by unit."},
    },
}
_QUOTE: Final = {
    "type": "object",
    "required": ["seconds"],
    "properties": {"seconds": {"type": ["number", "null"], "minimum": 0}},
}
_STATE: Final = {
    "type": "object",
    "description": "The fields of `QueueState` of intervalq.",
    "required": ["name", "interval", "burst", "is_held", "now", "limits"],
}
_ANSWERS: Final = {"slot": _SLOT, "quote": _QUOTE, "configure": _STATE, "inspect": _STATE}


class Described(Protocol):
    """What the document needs of a route of `over_http`."""

    @property
    def method(self) -> str:
        """GET, POST or PUT."""
        ...

    @property
    def path(self) -> str:
        """The path, with the name of the queue in braces."""
        ...

    @property
    def do(self) -> Callable[..., Any]:
        """The function, whose docstring describes the verb."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that a request may have."""
        ...


def paths_of(verbs: Iterable[Described]) -> dict[str, Any]:
    """The operations, by path."""
    paths: dict[str, Any] = {}
    for verb in verbs:
        paths.setdefault(verb.path, {})[verb.method.lower()] = _operation(verb)
    return paths


def _operation(verb: Described) -> dict[str, Any]:
    name = verb.do.__name__
    answer = _ANSWERS.get(name)
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        done |= {"headers": _RATE_HEADERS, "content": {"application/json": {"schema": answer}}}
    problems: dict[str, Any] = dict(PROBLEMS)
    if name == "slot":
        problems["429"] = {
            "description": "The slot comes too late; none was taken.",
            "headers": {**_RATE_HEADERS, "Retry-After": {"schema": {"type": "integer", "minimum": 0}}},
            "content": PROBLEM_CONTENT,
        }
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary(verb.do),
        "parameters": [path_parameter("queue")],
        "responses": {"204" if answer is None else "200": done, **problems},
    }
    if verb.method == "GET":
        operation["parameters"] += [
            {"name": each, "in": "query", "schema": FIELDS[each]} for each in verb.fields
        ]
        return operation
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {each: FIELDS[each] for each in verb.fields},
        **({"required": _REQUIRED[name]} if name in _REQUIRED else {}),
    }
    operation["requestBody"] = {
        "required": name in _REQUIRED,
        "content": {"application/json": {"schema": schema}},
    }
    return operation
