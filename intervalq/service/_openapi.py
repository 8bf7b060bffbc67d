"""The OpenAPI document of all verbs over HTTP/JSON, and what their descriptions share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
"""The schema of the name of a queue or ledger."""
PROBLEM_CONTENT: Final = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
_PROBLEM: Final = {"$ref": "#/components/responses/Problem"}

PROBLEMS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("401", "403", "404", "409", "413", "501", "503", "504"), _PROBLEM),
    "400": {
        "description": "The request is malformed; text if it is no HTTP request at all.",
        "content": {**PROBLEM_CONTENT, "text/plain": {"schema": {"type": "string"}}},
    },
}
"""The answers by which any request may be refused."""


def path_parameter(name: str) -> dict[str, Any]:
    """The parameter of a path that is a name."""
    return {"name": name, "in": "path", "required": True, "schema": NAME}


def summary(of: object) -> str:
    """The first paragraph of a docstring, as one line."""
    return re.sub(r"\s+", " ", (inspect.getdoc(of) or "").partition("\n\n")[0])


def document(paths: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The document.

    Args:
        paths: the operations, by path.
        schemas: the schemas that they refer to, by name.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "intervalq",
            "version": "1",
            "description": "Paces calls: at most one start per interval for all who use a queue. "
            "There are also durable tasks, ledgers and schedules.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "It was not done; with 504, nobody knows.",
                    "content": PROBLEM_CONTENT,
                }
            },
            "schemas": {
                **schemas,
                "Problem": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail"],
                    "properties": {
                        "type": {"type": "string"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "detail": {"type": "string"},
                    },
                },
            },
        },
        "security": [{"token": []}, {}],
    }
