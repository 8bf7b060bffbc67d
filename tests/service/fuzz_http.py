"""Fuzzes pacing over HTTP by its own OpenAPI document (schemathesis): no answer may be a server error.

Requests that the document allows, and others. Half of them concern one of three queues that exist.

By hand: python tests/service/fuzz_http.py CASES
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
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
                case.path_parameters["queue"] = chance.choice("abc")
            within = case.body.get("within") if isinstance(case.body, dict) else None
            if isinstance(within, int | float) and 0 <= within <= 3_600:
                case.body["within"] = min(within, 0.01)
            rejects = [negative_data_rejection] if mode == GenerationMode.NEGATIVE else []
            answer = case.call_and_validate(checks=[*SAYS, *rejects], session=session, timeout=60)
            codes[answer.status_code] += 1

        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            for mode in GenerationMode:

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
        print(dict(sorted(fuzz(f"http://{service.http}", int(sys.argv[1])).items())))
