"""The OpenAPI document of pacing, made from the routes and the schemas of their fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from intervalq.service._pacing.fields import FIELDS

_NAME: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_REQUIRED: Final = {"settle": ["receipt", "units"]}
_REFUSALS: Final = ("401", "403", "404", "409", "413", "501", "503", "504")
_PROBLEM: Final = {"$ref": "#/components/responses/Problem"}
_PROBLEM_CONTENT: Final = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
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
    """A route, as `over_http` has it."""

    @property
    def method(self) -> str:
        """GET, POST or PUT."""
        ...

    @property
    def path(self) -> str:
        """With the name of the queue in braces."""
        ...

    @property
    def do(self) -> Callable[..., Any]:
        """What it does; its docstring says so."""
        ...

    @property
    def fields(self) -> tuple[str, ...]:
        """Those that a request may have."""
        ...


def document(verbs: Iterable[Described]) -> dict[str, Any]:
    """The document."""
    paths: dict[str, Any] = {}
    for verb in verbs:
        paths.setdefault(verb.path, {})[verb.method.lower()] = _operation(verb)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "intervalq",
            "version": "1",
            "description": "Paces calls: at most one start per interval for all who use a queue.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "It was not done; with 504, nobody knows.",
                    "content": _PROBLEM_CONTENT,
                }
            },
            "schemas": {
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                    },
                }
            },
        },
        "security": [{"token": []}, {}],
    }


def _operation(verb: Described) -> dict[str, Any]:
    name = verb.do.__name__
    answer = _ANSWERS.get(name)
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        done |= {"headers": _RATE_HEADERS, "content": {"application/json": {"schema": answer}}}
    problems: dict[str, Any] = dict.fromkeys(_REFUSALS, _PROBLEM)
    problems["400"] = {
        "description": "The request is malformed; text if it is no HTTP request at all.",
        "content": {**_PROBLEM_CONTENT, "text/plain": {"schema": {"type": "string"}}},
    }
    if name == "slot":
        problems["429"] = {
            "description": "The slot comes too late; none was taken.",
            "headers": dict(_RATE_HEADERS),
            "content": _PROBLEM_CONTENT,
        }
        problems["429"]["headers"]["Retry-After"] = {"schema": {"type": "integer", "minimum": 0}}
    queue = {"name": "queue", "in": "path", "required": True, "schema": {"type": "string", "pattern": _NAME}}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": re.sub(r"\s+", " ", (inspect.getdoc(verb.do) or "").partition("\n")[0]),
        "parameters": [queue],
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
