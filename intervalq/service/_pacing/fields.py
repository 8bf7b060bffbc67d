"""The JSON bodies of requests: objects with known fields, of known types, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from intervalq.errors import short
from intervalq.service._refusal import Code, Refusal

_MAX_WAIT: Final = 3_600.0
_MAX_COST: Final = 10**12

FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "key": {
        "type": "string",
        "minLength": 1,
        "maxLength": 10_000,
        "description": "The key of a keyed queue.",
    },
    "each": {
        "description": "What each key has under one rate, as `each=` of `IntervalQueue`.",
        "anyOf": [
            {"type": "string", "maxLength": 100},
            {"type": "array", "minItems": 1, "maxItems": 17, "items": {"type": "string", "maxLength": 100}},
        ],
    },
    "cost": {
        "description": "What the job takes: slots, or units of the queue's limits.",
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 1_000},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 16,
                "additionalProperties": {"type": "integer", "minimum": 0, "maximum": _MAX_COST},
            },
        ],
    },
    "within": {
        "type": "number",
        "minimum": 0,
        "maximum": _MAX_WAIT,
        "description": "How many seconds the job may wait for its slot; 0 if it is left out.",
    },
    "priority": {"type": "integer", "minimum": -1_000_000, "maximum": 1_000_000},
    "seconds": {
        "type": "number",
        "minimum": 0,
        "maximum": 366 * 86_400,
        "description": "How long; left out: until somebody resumes the queue.",
    },
    "queue": {
        "type": "string",
        "maxLength": 200,
        "description": "Of tasks, or of those that a durable schedule inserts.",
    },
    "change": {"type": "string", "maxLength": 10, "pattern": "^(retry|cancel|move|delete)$"},
    "ids": {
        "type": "array",
        "minItems": 1,
        "maxItems": 1_000,
        "items": {"type": "string", "minLength": 1, "maxLength": 128},
        "description": "Which tasks; left out: all of the queue.",
    },
    "to": {"type": "string", "maxLength": 200, "description": "Where tasks are moved."},
    "receipt": {"type": "string", "maxLength": 100},
    "units": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 16,
        "additionalProperties": {"type": "integer", "minimum": 0, "maximum": _MAX_COST},
    },
    "interval": {
        "type": "string",
        "maxLength": 30,
        "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?(us|ms|s|m|h|d)$",
        "description": "For example `200ms`.",
    },
    "rate": {
        "type": "string",
        "maxLength": 30,
        "pattern": r"^[0-9]{1,9}(\.[0-9]{1,6})?/[0-9]{0,6}(us|ms|s|m|h|d)$",
        "description": "For example `20/s`, instead of an interval.",
    },
    "burst": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
    "max_running": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
    "weight": {
        "type": "integer",
        "minimum": 0,
        "maximum": 1_000,
        "description": "Of a key under a shared rate, for all processes; 0: each process has its own.",
    },
    "limits": {"type": "array", "maxItems": 16, "items": {"type": "string", "maxLength": 100}},
}
"""Every field of a request, with its schema."""

_HALF: Final = re.compile("[\ud800-\udfff]")
"""Half a character, which neither stores nor answers can have."""


def fields_of(body: bytes, allowed: Collection[str]) -> dict[str, Any]:
    """The fields of a body; an empty body has none.

    Raises:
        Refusal: it is not a JSON object with these fields.
    """
    try:
        read = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refusal(Code.INVALID_ARGUMENT, f"the body is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise Refusal(Code.INVALID_ARGUMENT, "the body is not a JSON object")
    for name, value in read.items():
        if name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise Refusal(Code.INVALID_ARGUMENT, f"there is no field {short(name)} here; fields: {known}")
        if not _fits(value, FIELDS[name]):
            raise Refusal(
                Code.INVALID_ARGUMENT, f"{name}={short(value)} doesn't fit its schema: see /v1/openapi.json"
            )
    return read


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:  # noqa: ANN401 - any JSON
    """Whether a value fits a schema, of those words of JSON Schema that `FIELDS` uses."""
    if "anyOf" in schema:
        return any(_fits(value, each) for each in schema["anyOf"])
    kind = schema["type"]
    if kind == "string":
        return (
            isinstance(value, str)
            and not _HALF.search(value)
            and schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
            and re.fullmatch(schema.get("pattern", ".*"), value, re.DOTALL) is not None
        )
    if kind == "array":
        return (
            isinstance(value, list)
            and schema.get("minItems", 0) <= len(value) <= schema["maxItems"]
            and all(_fits(each, schema["items"]) for each in value)
        )
    if kind == "object":
        return (
            isinstance(value, dict)
            and schema["minProperties"] <= len(value) <= schema["maxProperties"]
            and all(_fits(each, schema["additionalProperties"]) for each in value.values())
            and not _HALF.search("".join(value))
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    is_within = bool(schema["minimum"] <= value <= schema["maximum"])  # no NaN is
    return is_within and (kind != "integer" or value == int(value))
