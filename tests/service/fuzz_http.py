"""Fuzzes a service over HTTP by its own OpenAPI document (schemathesis): nothing may be a server error.

Requests that the document allows, and others, to all routes. Half of them concern the same few queues, tasks
and sessions. Each body is also changed in some places and sent to a service in this process, without sockets,
which is twenty times as fast.

By hand: python tests/service/fuzz_http.py CASES MUTANTS [STORE]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

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
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

sys.path.insert(0, str(Path(__file__).parent.parent))
from intervalq.service._http import no_route
from intervalq.service._parts import Parts
from intervalq.service._remote.stores import Stores
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


_ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 10**30, -(10**30), 0.5, 1e308, -0.0),
    *(
        "",
        "a",
        "b",
        "..",
        "a/../b",
        "*",
        "\0",
        "\x1f",
        "\ud800",
        "é",
        "x" * 129,
        "x" * 20_000,
        "1",
        "{",
        "[" * 999,
    ),
    *(
        [],
        [[]],
        ["a"],
        ["a"] * 1_001,
        {},
        {"a": {}},
        {"op": "Delete"},
        {"op": "Change", "id": "a", "version": 0},
    ),
)


def mutant(value: Any, others: list[Any], chance: random.Random) -> Any:
    """The same body with another part somewhere: an odd one, or that of another body."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice([*value])
        kind = chance.random()
        if kind < 0.1:
            return {each: part for each, part in value.items() if each != name}
        other = chance.choice(others)
        if kind < 0.3 and isinstance(other, dict):
            return {**value, **{each: part for each, part in other.items() if chance.random() < 0.3}}
        return {**value, name: mutant(value[name], others, chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], mutant(value[at], others, chance), *value[at + chance.randrange(2) :]]
    return chance.choice(_ODD)


class Here:
    """A service in this process, which goes on while it is asked."""

    def __init__(self, store: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._parts = Parts(Stores.opened(store), None, ())
        self._app = Starlette(routes=[*self._parts.routes()], exception_handlers={HTTPException: no_route})

    def close(self) -> None:
        """End it."""
        self._parts.close()
        self._loop.run_until_complete(self._parts.aclose())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The code and the body of an answer."""
        return self._loop.run_until_complete(self._ask(method, path, body))

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        said: list[Any] = []
        asked = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            return asked.pop() if asked else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            said.append(message)

        head = {"type": "http", "http_version": "1.1", "method": method, "path": path, "headers": []}
        await asyncio.wait_for(self._app({**head, "query_string": b""}, receive, send), 60)
        return said[0]["status"], b"".join(each.get("body", b"") for each in said)


class Mutants:
    """Changed requests, judged by the code of their answers."""

    def __init__(self, each: int, chance: random.Random, store: str) -> None:
        self._each, self._chance = each, chance
        self._here = Here(store)
        self.close = self._here.close
        self._bodies: dict[str, list[Any]] = {}
        self.codes: Counter[int] = Counter()
        for name, settings_of in _QUEUES.items():
            self._send("PUT", f"/v1/queues/{name}", {"200"}, settings_of)

    def of(self, case: Any) -> None:
        """Send what comes of a request."""
        if not isinstance(case.body, dict):
            return
        others = self._bodies.setdefault(case.path, [{}])
        others.append(case.body)
        known = {*case.operation.definition.raw["responses"]}
        for _ in range(self._each):
            body = familiar(self._chance.choice(others), self._chance)
            for _ in range(self._chance.choice((0, 1, 1, 2, 3, 5))):
                body = mutant(body, others, self._chance)
            path = case.path
            for name in case.path_parameters or ():
                path = path.replace(f"{{{name}}}", self._chance.choice("aaabbbcccd"))
            self._send(case.method, path, known, body)

    def _send(self, method: str, path: str, known: set[str], body: Any) -> None:
        if isinstance(body, dict) and isinstance(body.get("within"), int | float):
            body = {**body, "within": min(body["within"], 0.01)}
        code, answer = self._here.ask(method, quote(path), json.dumps(body).encode())
        assert str(code) in known, f"{method} {path} {body!r}: {code} {answer!r}"
        assert code < 500, f"{method} {path} {body!r}: {code} {answer!r}"
        self.codes[code] += 1


def fuzz(base: str, cases: int, mutants: int, store: str) -> tuple[Counter[int], Counter[int]]:
    """Send about so many requests of each kind and operation, and so many mutants of each to a store.

    Returns:
        The codes of the answers, and those of the answers to mutants.

    Raises:
        Exception: an answer is not one that the document has.
    """
    schema = schemathesis.openapi.from_url(f"{base}/v1/openapi.json")
    codes: Counter[int] = Counter()
    chance = random.Random()
    more = Mutants(mutants, chance, store)
    with requests.Session() as session, closing(more):
        for name, settings_of in _QUEUES.items():
            assert session.put(f"{base}/v1/queues/{name}", json=settings_of, timeout=60).status_code == 200

        def send(case: Any, mode: GenerationMode) -> None:
            is_familiar = chance.random() < 0.5
            if is_familiar:
                for name in case.path_parameters or ():
                    case.path_parameters[name] = chance.choice("abc")
                if mode == GenerationMode.POSITIVE:
                    case.body = familiar(case.body, chance)
            within = case.body.get("within") if isinstance(case.body, dict) else None
            if isinstance(within, int | float) and 0 <= within <= 3_600:
                case.body["within"] = min(within, 0.01)
            # Of a longer first line, the server reads no more: its answer may be lost with the connection.
            assume(len(urlencode(case.query or {})) < 60_000)
            # What was wrong of a familiar request may have been a name in its path.
            is_wrong = mode == GenerationMode.NEGATIVE and not (is_familiar and case.path_parameters)
            is_wrong = is_wrong and bool(case.path_parameters or case.body is not NOT_SET)
            rejects = [negative_data_rejection] if is_wrong else []
            answer = case.call_and_validate(checks=[*SAYS, *rejects], session=session, timeout=60)
            codes[answer.status_code] += 1
            if mode == GenerationMode.POSITIVE:
                more.of(case)

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
    return codes, more.codes


if __name__ == "__main__":
    store = "memory://fuzz" if len(sys.argv) < 4 else sys.argv[3]
    with Served(store) as service:
        for what, codes in zip(
            ("answers", "answers to mutants"),
            fuzz(f"http://{service.http}", int(sys.argv[1]), int(sys.argv[2]), store),
            strict=True,
        ):
            print(f"{codes.total():,} {what}: {dict(sorted(codes.items()))}")
