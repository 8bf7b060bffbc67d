"""`memory://`: records in this process, shared by all handles and threads of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from intervalq.keyed import Common, KeyedAnswer
from intervalq.rules import Answer, Command, State, lapses, settle
from intervalq.store import (
    DocumentStore,
    PairStep,
    Step,
    StoredSchedules,
    Swapped,
    T,
    shown_url,
    swapped,
    wall_clock,
)
from intervalq_stores._files.worker_thread import call_soon
from intervalq_stores.memory._process import ByName


@dataclass(slots=True)
class _Records:
    """The records, and the waiters for ends of holds; several event loops may use them from threads."""

    states: dict[str, State] = field(default_factory=dict)
    schedules: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, dict[Callable[[], None], None]] = field(default_factory=dict)
    """By name, in the order in which they came, so that a run in virtual time is the same each time."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    room: int = 0
    """The number of records from which to search for those of idle keyed queues."""

    def make_room(self, now: int) -> None:
        """Forget the records of idle keyed queues, and set `room` to twice the number of the others."""
        for name in [name for name, state in self.states.items() if lapses(settle(state, now)) <= now]:
            del self.states[name]
        self.room = max(64, 2 * len(self.states))

    def keep(
        self, queue: str, before: State | None, after: State | None, now: int, *, make_room: bool
    ) -> None:
        """Keep the record after a step."""
        if after is before:
            return
        if before is None and make_room and len(self.states) >= self.room:
            self.make_room(now)
        if after is None:
            del self.states[queue]
        else:
            self.states[queue] = after

    def forked(self) -> None:
        """See `Kept.forked`."""
        self.lock = threading.Lock()


_PROCESS: Final = ByName(_Records)

_SCHEDULES: Final = "schedules:"
"""What those who wait for changes of schedules wait for: no queue has this name."""


class MemoryStore(DocumentStore):
    """Records in the process, by the name in the URL; a store with a `clock` (microseconds) has its own."""

    def __init__(self, url: str = "memory://", *, clock: Callable[[], int] | None = None) -> None:
        self.url = shown_url(url)
        self._clock = clock or wall_clock
        self._records = _PROCESS.behind(self.url) if clock is None else _Records()

    async def update(self, queue: str, step: Step[T], now: int | None) -> T:
        """See `DocumentStore.update`."""
        with self._records.lock:
            at = self._clock() if now is None else now
            before = self._records.states.get(queue)
            after, answer = step(before, at)
            self._records.keep(queue, before, after, at, make_room=now is None)
        return answer

    async def update_pair(self, queue: str, common: str, step: PairStep[T], now: int | None) -> T:
        """See `DocumentStore.update_pair`."""
        records = self._records
        with records.lock:
            at = self._clock() if now is None else now
            before, shared = records.states.get(queue), records.states.get(common)
            after, shared_after, answer = step(before, shared, at)
            records.keep(common, shared, shared_after, at, make_room=False)
            records.keep(queue, before, after, at, make_room=now is None)
        return answer

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        answer = await super().apply(queue, command, now)
        if answer.woken:
            self._wake(queue)
        return answer

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`."""
        answer = await super().apply_keyed(queue, command, known, now)
        if answer.answer.woken:
            self._wake(queue)
        return answer

    def _wake(self, queue: str) -> None:
        with self._records.lock:
            wakers = list(self._records.waiting.get(queue, ()))
        for wake in wakers:
            wake()

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        with self._records.lock:
            texts = self._records.schedules
            found = {name: texts[name] for name in (texts if names is None else names) if name in texts}
            return StoredSchedules(self._clock() if now is None else now, found)

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        with self._records.lock:
            texts = self._records.schedules
            at = self._clock() if now is None else now
            answer = swapped(texts.get(name), known, text, earliest, at)
            if answer.text is not None:
                texts[name] = answer.text
            else:
                texts.pop(name, None)
        if answer.done and text != known:
            self._wake(_SCHEDULES)
        return answer

    def schedule_changes(self) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """See `SchedulesWaking.schedule_changes`."""
        return self.wakeups(_SCHEDULES)

    async def names(self) -> list[str]:
        """See `Store.names`."""
        with self._records.lock:
            self._records.make_room(self._clock())
            return sorted(self._records.states)

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`."""
        event = anyio.Event()
        soon = call_soon()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that event loop is closed, so nobody waits
                soon(lambda: event.set())  # noqa: PLW0108 - binds the event late

        async def woken() -> None:
            nonlocal event
            await event.wait()
            event = anyio.Event()

        with self._records.lock:
            self._records.waiting.setdefault(queue, {})[wake] = None
        try:
            yield woken
        finally:
            with self._records.lock:
                waiting = self._records.waiting[queue]
                waiting.pop(wake, None)
                if not waiting:
                    del self._records.waiting[queue]
