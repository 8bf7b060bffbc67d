"""EntroQ's methods in the OpenAPI document, made from the descriptors of their messages.

The JSON of protocol buffers allows several ways to write most values; schemas of requests have them all.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.methods import STREAM_PATH, UNARY
from intervalq.service._entroq.verbs import Verbs
from intervalq.service._openapi import PROBLEM_CONTENT, summary

Descriptor = Any
"""Of a message: protobuf has two implementations of it."""

_JSON: Final = "application/json"
_INT32: Final = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
_INT64: Final = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
_STRING: Final = {"type": "string"}
_NULL: Final = {"type": "null"}

_REFUSED: Final = {
    "description": "It was not done; with 504, nobody knows.",
    "content": {
        _JSON: {
            "schema": {
                "type": "object",
                "required": ["code", "message", "details"],
                "properties": {
                    "code": {"type": "integer", "description": "The code of gRPC."},
                    "message": _STRING,
                    "details": {"type": "array", "items": {"type": "object"}},
                },
            }
        },
    },
}
_REFUSALS: Final = {
    **dict.fromkeys(("401", "404", "429", "501", "503", "504"), _REFUSED),
    "400": {**_REFUSED, "content": {**_REFUSED["content"], "text/plain": {"schema": _STRING}}},  # type: ignore[dict-item]
    "403": {**_REFUSED, "content": {**_REFUSED["content"], **PROBLEM_CONTENT}},  # type: ignore[dict-item]
}


def paths_of(schemas: dict[str, Any]) -> dict[str, Any]:
    """The operations, by path; the schemas of their messages are added to `schemas`."""
    paths: dict[str, Any] = {}
    for method in UNARY:
        verb, path = method.http
        done = {_JSON: {"schema": _answer(method.response.DESCRIPTOR, schemas)}}
        operation = _operation(method.name, method.verb, done)
        if verb == "GET":
            operation["parameters"] = _parameters(method.request.DESCRIPTOR)
        else:
            body = {_JSON: {"schema": _request(method.request.DESCRIPTOR, schemas)}}
            operation["requestBody"] = {"required": False, "content": body}
        paths[path] = {verb.lower(): operation}
    lines = {"application/x-ndjson": {"schema": _STRING}}
    stream = _operation("StreamTasks", Verbs.stream_tasks, lines)
    paths[STREAM_PATH] = {"get": {**stream, "parameters": _parameters(pb.TasksRequest.DESCRIPTOR)}}
    return paths


def _operation(name: str, verb: object, done: dict[str, Any]) -> dict[str, Any]:
    responses = {"200": {"description": "Done.", "content": done}, **_REFUSALS}
    return {
        "operationId": f"entroq-{name}",
        "summary": summary(verb),
        "parameters": [],
        "responses": responses,
    }


def _parameters(message: Descriptor, prefix: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for field in message.fields:
        name = prefix + field.json_name
        if field.message_type is not None:
            found += _parameters(field.message_type, f"{name}.")
            continue
        kinds = {FieldDescriptor.TYPE_BOOL: {"type": "boolean"}, FieldDescriptor.TYPE_INT32: _INT32}
        schema = kinds.get(field.type, _STRING)
        if field.is_repeated:
            schema = {"type": "array", "items": schema}
        found.append({"name": name, "in": "query", "schema": schema})
    return found


def _request(message: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a message that a client sends: it accepts all that is read."""

    def schema(field: FieldDescriptor) -> dict[str, Any]:
        if (kind := field.message_type) is not None:
            return {} if kind.full_name == "google.protobuf.Value" else _request(kind, schemas)
        if field.type == FieldDescriptor.TYPE_BOOL:
            return {"type": "boolean"}
        if field.enum_type is not None:
            return {"anyOf": [{"enum": [one.name for one in field.enum_type.values]}, _INT32]}
        if field.type == FieldDescriptor.TYPE_STRING:
            return _STRING
        whole = _INT32 if field.type == FieldDescriptor.TYPE_INT32 else _INT64
        return {"anyOf": [whole, {"type": "string", "description": "The same in digits."}]}

    def fields() -> dict[str, Any]:
        found = {}
        for field in message.fields:
            one = schema(field)
            many = {"type": "array", "items": one} if field.is_repeated else one
            found[field.json_name] = {"anyOf": [many, _NULL]} if many else many
        return found

    return _part(message, schemas, fields)


def _answer(message: Descriptor, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a message that the service sends."""

    def schema(field: FieldDescriptor) -> dict[str, Any]:
        if (kind := field.message_type) is not None:
            return {} if kind.full_name == "google.protobuf.Value" else _answer(kind, schemas)
        if field.type == FieldDescriptor.TYPE_INT64:
            return {"type": "string", "pattern": "^-?[0-9]+$"}
        return _INT32 if field.type == FieldDescriptor.TYPE_INT32 else _STRING

    def fields() -> dict[str, Any]:
        return {
            field.json_name: {"type": "array", "items": schema(field)} if field.is_repeated else schema(field)
            for field in message.fields
        }

    return _part(message, schemas, fields)


def _part(message: Descriptor, schemas: dict[str, Any], fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """A reference to the schema of a message, which is made once. No message is both asked and answered."""
    name = f"entroq.{message.name}"
    if name not in schemas:
        schemas[name] = found = {"type": "object", "additionalProperties": False}
        found["properties"] = fields()
    return {"$ref": f"#/components/schemas/{name}"}
