"""Fuzzes a service over HTTP by its own OpenAPI document (schemathesis): nothing may be a server error.

Requests that the document allows, and others, to all routes. Half of them concern the same few queues, tasks
and sessions.

By hand: python tests/service/fuzz_http.py CASES
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

sys.path.insert(0, str(Path(__file__).parent.parent))
from service.processes import Served

SAYS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


_QUEUES: Final[dict[str, dict[str, Any]]] = {
    "a": {"rate": "100000/s"},
    "b": {"interval": "1ms", "limits": ["1000/m", "100_000 tokens/h"]},
    "c": {"interval": "1h"},
}


_TEXTS: Final = {"id", "session", "queue", "key", "dedupe", "name", "owner", "text", "known"}
_LISTS: Final = {"ids", "queues", "keys", "names", "prefixes"}


def familiar(value: Any, chance: random.Random) -> Any:
    """The same body with names that others have, too, where names may stand."""
    if isinstance(value, list):
        return [familiar(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    known: dict[str, Any] = {}
    for name, each in value.items():
        if name in _TEXTS and isinstance(each, str):
            known[name] = chance.choice("abc")
        elif name in _LISTS and isinstance(each, list | tuple):
            known[name] = chance.sample("abc", chance.randrange(4))
        elif name == "version" and isinstance(each, int):
            known[name] = chance.randrange(4)
        else:
            known[name] = familiar(each, chance)
    return known


def fuzz(base: str, cases: int) -> Counter[int]:
    """Send about so many requests of each kind and operation; returns the codes of the answers.

    Raises:
        Exception: an answer is not one that the document has.
    """
    schema = schemathesis.openapi.from_url(f"{base}/v1/openapi.json")
    codes: Counter[int] = Counter()
    chance = random.Random(cases)
    with requests.Session() as session:
        for name, settings_of in _QUEUES.items():
            assert session.put(f"{base}/v1/queues/{name}", json=settings_of, timeout=60).status_code == 200

        def send(case: Any, mode: GenerationMode) -> None:
            if chance.random() < 0.5:
                for name in case.path_parameters or ():
                    case.path_parameters[name] = chance.choice("abc")
                if mode == GenerationMode.POSITIVE:
                    case.body = familiar(case.body, chance)
            within = case.body.get("within") if isinstance(case.body, dict) else None
            if isinstance(within, int | float) and 0 <= within <= 3_600:
                case.body["within"] = min(within, 0.01)
            # Of a longer first line, the server reads no more: its answer may be lost with the connection.
            assume(len(urlencode(case.query or {})) < 60_000)
            is_wrong = mode == GenerationMode.NEGATIVE and bool(
                case.path_parameters or case.body is not NOT_SET
            )
            rejects = [negative_data_rejection] if is_wrong else []
            answer = case.call_and_validate(checks=[*SAYS, *rejects], session=session, timeout=60)
            codes[answer.status_code] += 1

        for number, found in enumerate(schema.get_all_operations(), 1):
            assert isinstance(found, Ok)
            operation = found.ok()
            print(f"{number}: {operation.label}", file=sys.stderr)
            has_input = operation.definition.raw["parameters"] or "requestBody" in operation.definition.raw
            for mode in GenerationMode if has_input else [GenerationMode.POSITIVE]:

                @settings(
                    max_examples=cases,
                    database=None,
                    deadline=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(mode))
                def run(case: Any, mode: GenerationMode) -> None:
                    send(case, mode)

                run(mode=mode)
    return codes


if __name__ == "__main__":
    with Served("memory://") as service:
        codes = fuzz(f"http://{service.http}", int(sys.argv[1]))
        print(f"{codes.total():,} answers: {dict(sorted(codes.items()))}")
