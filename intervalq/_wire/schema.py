"""JSON Schema of commands and answers: it accepts all that `values` reads, and describes what it writes."""

from __future__ import annotations

from dataclasses import MISSING
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from intervalq._wire.values import MAX_ITEMS, defaults_of
from intervalq.rules import FOREVER

_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    NoneType: {"type": "null"},
    int: {"type": "integer", "minimum": -FOREVER, "maximum": FOREVER},
    bool: {"type": "boolean"},
    str: {"type": "string"},
}


class Schemas:
    """The schemas of types. Schemas of classes are in `parts`, by name; others refer to them."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def of(self, hint: Any) -> dict[str, Any]:  # noqa: ANN401 - any type, one case each
        """The schema of a type."""
        if hint in _PLAIN:
            return _PLAIN[hint]
        origin, parts = get_origin(hint), get_args(hint)
        if origin is Literal:
            return {"enum": list(parts)}
        if origin is tuple and parts[1:] == (...,):
            return {"type": "array", "maxItems": MAX_ITEMS, "items": self.of(parts[0])}
        if origin is tuple:
            size = {"minItems": len(parts), "maxItems": len(parts)}
            return {"type": "array", **size, "items": {"anyOf": [self.of(part) for part in parts]}}
        if origin in (Union, UnionType):
            classes = [part for part in parts if part not in _PLAIN]
            several = len(classes) > 1
            return {"anyOf": [self._named(part) if several else self.of(part) for part in parts]}
        return {"$ref": f"#/components/schemas/{self._object(hint)}"}

    def _named(self, hint: Any) -> dict[str, Any]:  # noqa: ANN401 - any type
        """The schema of a value whose field `op` names its class."""
        if hint in _PLAIN:
            return _PLAIN[hint]
        found = dict(self.parts[self._object(hint)])
        found["properties"] = {"op": {"const": hint.__name__}, **found["properties"]}
        return {**found, "required": ["op", *found.get("required", ())]}

    def _object(self, kind: Any) -> str:  # noqa: ANN401 - a class
        name = f"{kind.__module__.removeprefix('intervalq.').partition('.')[0]}.{kind.__name__}"
        if name not in self.parts:
            self.parts[name] = found = {"type": "object", "additionalProperties": False}
            hints, usual = get_type_hints(kind), defaults_of(kind)
            found["properties"] = {each: self.of(hints[each]) for each in usual}
            if needed := [each for each, value in usual.items() if value is MISSING]:
                found["required"] = needed
        return name
