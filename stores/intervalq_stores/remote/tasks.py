"""`intervalq://`: durable tasks of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar, cast

from intervalq._wire.verbs import TASKS, answer_of
from intervalq.tasks.rules import Command, Count, Outcomes, Select, Worked
from intervalq_stores.remote._answers import encoded, understood
from intervalq_stores.remote._client import LOOKING, PATIENCE, Client

A = TypeVar("A")


class RemoteTaskStore:
    """The tasks of the store that a service has. Those of NATS are refused there."""

    keeps_outcomes: Final = True
    shares_keys: Final = True
    follows_up: Final = True

    def __init__(self, url: str) -> None:
        self._client = Client(url, "tasks behind a service")
        self.url = self._client.url

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`."""
        patience = LOOKING if isinstance(command, Select | Outcomes | Count) else PATIENCE
        asked = encoded(self.url, TASKS, command)
        data, _ = await self._client.apply("TASKS", "", asked, now, patience=patience)
        with understood(self.url) as read:
            return cast("A", read(answer_of(command), data))

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`. Over a store without wake-ups there are none."""
        async with await self._client.listening("TASKS", session) as heard:

            async def woken() -> Worked | None:
                data = await heard()
                with understood(self.url) as read:
                    return cast("Worked", read(Worked, data)) if data else None

            yield woken

    async def aclose(self) -> None:
        """See `TaskStore.aclose`."""
        await self._client.aclose()

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of `ok`, `warning` or `error`, and a sentence."""
        return [self._client.where.rated()]
