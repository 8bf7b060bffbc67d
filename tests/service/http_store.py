"""The commands of intervalq.v1 over HTTP/JSON, as the stores of a service have them."""

from __future__ import annotations

from typing import Any

import httpx

from intervalq._wire.values import dumps, loads
from intervalq._wire.verbs import VERBS
from intervalq.errors import DependencyError, StoreError, Unauthorized


class HttpStore:
    """Tasks, ledgers and schedules at `http://[token@]host:port`."""

    def __init__(self, url: str) -> None:
        login, _, host = url.removeprefix("http://").rpartition("@")
        headers = {"authorization": f"Bearer {login}"} if login else {}
        self.http = httpx.AsyncClient(base_url=f"http://{host}", headers=headers, timeout=60, verify=False)

    async def apply(self, *given: Any) -> Any:
        """The answer to `(command)`, or to `(name, command)`."""
        *name, command = given
        (verb,) = [one for one in VERBS if one.command is type(command)]
        path = verb.path.format(name=name[0] if name else "")
        answer = await self.http.post(path, content=dumps(verb.command, command))
        if answer.status_code == 200:
            return loads(verb.answer, answer.content)
        if answer.status_code == 204:
            return None
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        if answer.status_code == 409 and "depends" in problem:
            names = ("inserts", "changes", "deletes", "depends", "claims")
            raise DependencyError(**{name: tuple(problem[name]) for name in names})
        kind = Unauthorized if answer.status_code in (401, 403) else StoreError
        raise kind(str(self.http.base_url), f"{answer.status_code}: {problem['detail']}")

    async def names(self, kind: str) -> list[str]:
        """Those of `queues` or `ledgers`."""
        answer = await self.http.get(f"/v1/{kind}")
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json()
        return found

    async def aclose(self) -> None:
        await self.http.aclose()
