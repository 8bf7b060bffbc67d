"""Fuzzes a service over HTTP by its own OpenAPI document (schemathesis): nothing may be a server error.

Requests that the document allows, and others, to all routes. Half of them concern the same few queues, tasks
and sessions. Each body is also changed in some places and sent again. The service is in this process and has
no sockets, which is many times as fast; the tests send some requests through sockets, too.

By hand: python tests/service/fuzz_http.py CASES MUTANTS [STORE]

CASES is the number of requests in all, and MUTANTS that of changed ones for each valid one.
"""

from __future__ import annotations

import asyncio
import io
import json
import random
import sys
from collections import Counter
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import anyio
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.errors import UnsatisfiedAssumption
from requests.adapters import HTTPAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.core.failures import FailureGroup
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

SAYS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
_ROUND: Final = 50
"""At most so many requests to one operation before the next one has its turn."""


_QUEUES: Final[dict[str, dict[str, Any]]] = {
    "a": {"rate": "100000/s"},
    "b": {"interval": "1ms", "limits": ["1000/m", "100_000 tokens/h"]},
    "c": {"interval": "1h"},
}


_TEXTS: Final = {"id", "session", "queue", "key", "dedupe", "name", "owner", "text", "known"}
_TEXTS_OF_ENTROQ: Final = {"claimantId", "claimant", "namespace", "query.namespace", "secondaryKey"}
_LISTS: Final = {"ids", "queues", "keys", "names", "prefixes", "taskId", "query.ids", "matchExact"}


def familiar(value: Any, chance: random.Random) -> Any:
    """The same body with names that others have, too, where names may stand."""
    if isinstance(value, list):
        return [familiar(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    known: dict[str, Any] = {}
    for name, each in value.items():
        if name in (_TEXTS | _TEXTS_OF_ENTROQ) and isinstance(each, str):
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

    def ask(
        self, method: str, target: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """The code, the headers and the body of an answer."""
        return self._loop.run_until_complete(self._ask(method, target, body, headers or {}))

    async def _ask(
        self, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        said: list[Any] = []
        asked = [{"type": "http.request", "body": body}]
        has_gone = False

        async def receive() -> dict[str, Any]:
            nonlocal has_gone
            if not asked and target.endswith("/claim/wait"):  # who waits for a task goes away
                await anyio.sleep(0.005)
                has_gone = True
                return {"type": "http.disconnect"}
            return asked.pop() if asked else await asyncio.get_running_loop().create_future()

        async def send(message: Any) -> None:
            said.append(message)

        path, _, query = target.partition("?")
        head = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
        await asyncio.wait_for(self._app(head, receive, send), 60)
        if has_gone:  # what is answered then reaches nobody
            return 200, [("content-type", "application/json")], b"{}"
        found = [(name.decode(), value.decode("latin-1")) for name, value in said[0]["headers"]]
        return said[0]["status"], found, b"".join(each.get("body", b"") for each in said)


class Direct(HTTPAdapter):
    """Carries requests to a service in this process."""

    def __init__(self, here: Here) -> None:
        super().__init__()
        self._here = here

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        """See `HTTPAdapter`."""
        url = urlsplit(request.url or "")
        assert isinstance(url.path, str)
        target = f"{url.path}?{url.query}" if url.query else url.path
        body = request.body or b""
        headers = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in request.headers.items()
        }
        code, found, content = self._here.ask(
            request.method or "", target, body.encode() if isinstance(body, str) else body, headers
        )
        raw = urllib3.HTTPResponse(
            io.BytesIO(content), urllib3.HTTPHeaderDict(found), code, preload_content=False
        )
        return self.build_response(request, raw)


class Mutants:
    """Changed requests, judged by the code of their answers."""

    def __init__(self, each: int, chance: random.Random, here: Here) -> None:
        self._each, self._chance, self._here = each, chance, here
        self._bodies: dict[str, list[Any]] = {}
        self.codes: Counter[int] = Counter()

    def of(self, case: Any) -> None:
        """Send what comes of a request."""
        if not isinstance(case.body, dict):
            return
        others = self._bodies.setdefault(case.path, [{}])
        others.append(case.body)
        del others[1 : len(others) - 100]
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
        code, _, answer = self._here.ask(method, quote(path), json.dumps(body).encode())
        assert str(code) in known, f"{method} {path} {body!r}: {code} {answer!r}"
        assert code < 500, f"{method} {path} {body!r}: {code} {answer!r}"
        self.codes[code] += 1


class Fuzz:
    """Sends requests until they are enough. What is wrong is kept, and the next request sent."""

    def __init__(self, cases: int, mutants: int, store: str, base: str | None = None) -> None:
        """`cases`: how many requests, in all, that schemathesis makes. `base`: the URL of a service to ask.

        Mutants are sent to a service in this process in any case, and without `base` the others, too.
        """
        self._cases, self._base = cases, base or "http://localhost"
        self._chance = random.Random()
        self._stack = ExitStack()
        here = self._stack.enter_context(closing(Here(store)))
        self._session = self._stack.enter_context(requests.Session())
        self._session.trust_env = False  # which looks for proxies and passwords, for each request
        if base is None:
            self._session.mount("http://", Direct(here))
        self._mutants = Mutants(mutants, self._chance, here)
        self.codes: Counter[int] = Counter()
        self.of_mutants = self._mutants.codes
        self.wrong: list[str] = []
        for name, settings_of in _QUEUES.items():
            here.ask("PUT", f"/v1/queues/{name}", json.dumps(settings_of).encode())
            put = self._session.put(f"{self._base}/v1/queues/{name}", json=settings_of, timeout=60)
            assert put.status_code == 200

    def run(self) -> None:
        """Send all of them."""
        with self._stack:
            described = self._session.get(f"{self._base}/v1/openapi.json", timeout=60).json()
            operations = []
            for found in schemathesis.openapi.from_dict(described).get_all_operations():
                assert isinstance(found, Ok)
                raw = found.ok().definition.raw
                has_input = raw["parameters"] or "requestBody" in raw
                modes = GenerationMode if has_input else [GenerationMode.POSITIVE]
                operations += [(found.ok(), mode) for mode in modes]
            while (left := self._cases - self.codes.total()) > 0:
                for operation, mode in operations:
                    self._try(operation, mode, min(_ROUND, -(-left // len(operations))))
                self._report()

    def _report(self) -> None:
        """Print how far it is."""
        now = f"{datetime.now().astimezone():%H:%M:%S}"
        for what, codes in (("answers", self.codes), ("answers to mutants", self.of_mutants)):
            print(f"{now} {codes.total():,} {what}: {dict(sorted(codes.items()))}", file=sys.stderr)
        print(f"{now} {len(self.wrong)} are wrong", file=sys.stderr, flush=True)

    def _try(self, operation: Any, mode: GenerationMode, count: int) -> None:
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode))
        def run(case: Any) -> None:
            try:
                self._send(case, mode)
            except UnsatisfiedAssumption:
                raise
            except (Exception, FailureGroup) as error:  # noqa: BLE001 - it is kept, and the others are sent
                self.wrong.append(f"{operation.label}: {error!r} {getattr(error, 'exceptions', '')}")
                print(self.wrong[-1], file=sys.stderr, flush=True)

        run()

    def _send(self, case: Any, mode: GenerationMode) -> None:
        chance = self._chance
        is_familiar = chance.random() < 0.5
        if is_familiar:
            for name in case.path_parameters or ():
                case.path_parameters[name] = chance.choice("abc")
            if mode == GenerationMode.POSITIVE:
                case.body = familiar(case.body, chance)
                case.query = familiar(case.query, chance)
        within = case.body.get("within") if isinstance(case.body, dict) else None
        if isinstance(within, int | float) and 0 <= within <= 3_600:
            case.body["within"] = min(within, 0.01)
        # Of a longer first line, the server reads no more: its answer may be lost with the connection.
        assume(len(urlencode(case.query or {})) < 60_000)
        # What was wrong of a familiar request may have been a name in its path.
        is_wrong = mode == GenerationMode.NEGATIVE and not (is_familiar and case.path_parameters)
        is_wrong = is_wrong and bool(case.path_parameters or case.body is not NOT_SET)
        checks = [*SAYS, *([negative_data_rejection] if is_wrong else [])]
        answer = case.call_and_validate(self._base, session=self._session, checks=checks, timeout=60)
        self.codes[answer.status_code] += 1
        if mode == GenerationMode.POSITIVE:
            self._mutants.of(case)


if __name__ == "__main__":
    fuzz = Fuzz(int(sys.argv[1]), int(sys.argv[2]), "memory://fuzz" if len(sys.argv) < 4 else sys.argv[3])
    fuzz.run()
    sys.exit(1 if fuzz.wrong else 0)
