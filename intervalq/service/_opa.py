"""Access by an Open Policy Agent, which is asked over HTTP as EntroQ's services ask it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Final

import anyio
import httpx

from intervalq.errors import InvalidOption, short
from intervalq.service._access import Wanted, is_canonical
from intervalq.service._refusal import Code, Refusal
from intervalq.store import stopwatch

_KEPT: Final = 5_000_000
"""How long an answer is used again, in microseconds: a right that is taken away ends by then."""
_MAX_KEPT: Final = 10_000
_MAX_WANTED: Final = 100
"""Requests that want more are asked about each time, so that the memory of answers is bounded."""
_PATIENCE: Final = 5.0

_NO_ANSWER: Final = (
    *(httpx.HTTPError, TimeoutError, RecursionError),
    *(ValueError, KeyError, TypeError, AttributeError),
)

_Asked = tuple[str, str, str, frozenset[Wanted]]


class Opa:
    """An agent at a URL such as http://127.0.0.1:8181/v1/data/entroq/authz."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidOption(
                f"{short(url)} is no URL of an Open Policy Agent: give http://HOST:PORT/v1/data/..."
            )
        self._url = url
        self._client = httpx.AsyncClient(timeout=_PATIENCE, trust_env=False)
        self._allowed: OrderedDict[_Asked, int] = OrderedDict()  # since when

    def caller(self, authorization: str | None) -> Asking:
        """See `Access`: the agent itself judges the header."""
        return Asking(self, authorization or "")

    async def denied(self, asked: _Asked) -> frozenset[Wanted]:
        """What the agent denies. That it denies nothing is remembered for five seconds."""
        now = stopwatch()
        while self._allowed and (
            now > next(iter(self._allowed.values())) + _KEPT or len(self._allowed) > _MAX_KEPT
        ):
            self._allowed.popitem(last=False)
        if asked in self._allowed:
            return frozenset()
        denied = await self._ask(asked)
        if not denied and len(asked[3]) <= _MAX_WANTED:
            self._allowed[asked] = stopwatch()
            self._allowed.move_to_end(asked)
        return denied

    async def aclose(self) -> None:
        """Close the connections to the agent."""
        await self._client.aclose()

    async def _ask(self, asked: _Asked) -> frozenset[Wanted]:
        kind, credentials, claimant, wanted = asked
        actions: dict[str, list[str]] = {}
        for action, queue in sorted(wanted):
            actions.setdefault(queue, []).append(action.upper())
        question = {
            "authz": {"type": kind, "credentials": credentials},
            "claimant_id": claimant,
            "queues": [{"exact": queue, "actions": some} for queue, some in actions.items()],
        }
        try:
            with anyio.fail_after(_PATIENCE):  # that of the client is for each part of an answer
                answer = await self._client.post(self._url, json={"input": question})
            answer.raise_for_status()
            result = answer.json()["result"]
            is_allowed, failed = result["allow"], result.get("failed") or []
            denied = frozenset(
                (str(action).lower(), str(one["exact"])) for one in failed for action in one["actions"]
            )
        except _NO_ANSWER as error:
            raise Refusal(
                Code.UNAVAILABLE, f"the Open Policy Agent gave no answer, so nothing is allowed: {error}"
            ) from error
        if is_allowed is True and not denied:
            return frozenset()
        return denied & wanted or wanted


class Asking:
    """A caller whom the agent judges."""

    def __init__(self, agent: Opa, authorization: str) -> None:
        self._agent = agent
        kind, _, credentials = authorization.partition(" ")
        self._kind, self._credentials = kind, credentials.strip()

    @property
    def name(self) -> str:
        """See `Caller`: only the agent knows it."""
        return "somebody"

    @property
    def account(self) -> str:
        """See `Caller`."""
        return f"{self._kind.lower()} {self._credentials}"

    async def denied(self, wanted: Collection[Wanted], claimant: str) -> set[Wanted]:
        """See `Caller`."""
        twins = {(action, queue) for action, queue in wanted if not is_canonical(queue)}
        rest = frozenset(wanted) - twins
        asked = self._kind, self._credentials, claimant, rest
        return twins | (await self._agent.denied(asked) if rest else frozenset[Any]())

    def claimant(self, claimant: str) -> str:
        """See `Caller`: as it is, because the policy binds it to the user."""
        return claimant
