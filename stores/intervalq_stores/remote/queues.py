"""`intervalq://`: queues and schedules of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from intervalq._wire import queues as wire
from intervalq._wire.values import dumps
from intervalq._wire.verbs import (
    NAMES,
    QUEUES,
    SCHEDULES,
    SCHEDULES_READ,
    Names,
    ReadSchedules,
    ScheduleCommand,
    SwapSchedule,
)
from intervalq.keyed import Common, KeyedAnswer
from intervalq.rules import Answer, Command
from intervalq.store import StoredSchedules, Swapped
from intervalq_stores.remote._answers import encoded, understood
from intervalq_stores.remote._client import Client


class RemoteStore:
    """The queues of the store that a service has, and its schedules."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, "a store behind a service")
        self.url = self._client.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        asked = encoded(self.url, QUEUES, command)
        data, trip = await self._client.apply("QUEUES", queue, asked, now)
        with understood(self.url):
            return wire.read_answer(data, trip)

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`."""
        asked, beside = encoded(self.url, QUEUES, command), encoded(self.url, Common, known)
        data, trip = await self._client.apply("QUEUES", queue, asked, now, known=beside)
        with understood(self.url):
            return wire.read_keyed_answer(data, trip)

    async def names(self) -> list[str]:
        """See `Store.names`."""
        data, _ = await self._client.apply("QUEUES", "", dumps(QUEUES, Names()), None)
        with understood(self.url) as read:
            return list(read(NAMES, data))

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`."""
        async with await self._client.listening("QUEUES", queue) as heard:

            async def woken() -> None:
                await heard()

            yield woken

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        data = await self._schedules(ReadSchedules(None if names is None else tuple(names)), now)
        with understood(self.url) as read:
            at, texts = read(SCHEDULES_READ, data)
            return StoredSchedules(at, dict(texts))

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        data = await self._schedules(SwapSchedule(name, known, text, earliest), now)
        with understood(self.url) as read:
            swapped: Swapped = read(Swapped, data)
            return swapped

    def schedule_changes(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """See `SchedulesWaking.schedule_changes`."""
        return self._schedule_changes()

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._client.aclose()

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of `ok`, `warning` or `error`, and a sentence."""
        return [self._client.where.rated()]

    async def _schedules(self, command: ScheduleCommand, now: int | None) -> bytes:
        data, _ = await self._client.apply("SCHEDULES", "", encoded(self.url, SCHEDULES, command), now)
        return data

    @asynccontextmanager
    async def _schedule_changes(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async with await self._client.listening("SCHEDULES", "") as heard:

            async def woken() -> None:
                await heard()

            yield woken
