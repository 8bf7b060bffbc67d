"""`memory://`: tasks in this process, shared by all handles and threads of it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio

from intervalq.store import shown_url, wall_clock
from intervalq.tasks.rules import (
    SECOND,
    Beat,
    Beaten,
    Cancel,
    Cancelled,
    Command,
    Delete,
    End,
    Release,
    Work,
    Worked,
    apply,
)
from intervalq_stores._files.worker_thread import call_soon
from intervalq_stores._waiters import Waiters
from intervalq_stores.memory._process import ByName
from intervalq_stores.memory._task_table import MemoryTable

A = TypeVar("A")


SOON: Final = 5 * SECOND
"""Idle sessions are notified of tasks that become ready within this time: they poll at this interval."""
_STEP: Final = SECOND
"""A clock that goes back by less than this counts as not set back; that delays nobody by more."""


class _Tasks:
    """The tasks behind one URL, and the idle sessions; several event loops may use them from threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.table = MemoryTable()
        self.idle: dict[str, tuple[str, ...]] = {}
        """The sessions that found nothing, with their queues."""
        self.listening: dict[str, list[Callable[[], bool]]] = {}
        self.cancelled: dict[str, list[Delete]] = {}
        """Cancelled claims to report to listening sessions: see `Worked.cancelled`."""
        self.waiters = Waiters()
        self._seen = 0  # the latest reading of the clock

    def read(self, now: int) -> int:
        """Read the clock, and adapt if it was set back since the last reading. Only under the lock."""
        if now < self._seen - _STEP:
            self.table.set_back(now, self._seen - now)
        if not self._seen - _STEP <= now <= self._seen:
            self._seen = now
        return now

    def apply(self, command: Command[A], now: int) -> A:
        """Do a command, and wake the sessions that it concerns. Only under the lock."""
        self.table.fresh.clear()
        self.table.left.clear()
        answer = apply(self.table, command, now)
        self._note(command, answer)
        self._tell(command, answer)
        for queue, ready in self.table.fresh.items():
            if ready <= now + SOON:
                self._wake_one(queue)
        self.waiters.notify(self.table.left)
        return answer

    def _note(self, command: Command[Any], answer: object) -> None:
        """Record which sessions are idle."""
        if isinstance(command, Work) and isinstance(answer, Worked):
            if answer.claimed or not answer.alive:
                self.idle.pop(command.session, None)
            elif command.idle:
                self.idle[command.session] = command.queues
        elif isinstance(command, End):
            self.idle.pop(command.session, None)
        elif isinstance(command, Beat) and isinstance(answer, Beaten):
            for session in answer.lapsed:
                self.idle.pop(session, None)

    def _tell(self, command: Command[Any], answer: object) -> None:
        """Wake the waiters for a lock that is free, and the sessions whose tasks were cancelled."""
        if isinstance(command, Release) and answer:
            for wake in self.listening.get(command.waiters, []):
                wake()
        elif isinstance(command, Cancel) and isinstance(answer, Cancelled):
            for row in self.table.find(answer.stopping).values():
                if row.session in self.listening:
                    self.cancelled.setdefault(row.session, []).append(Delete(row.id, row.version))
                    for wake in self.listening[row.session]:
                        wake()

    def _wake_one(self, queue: str) -> None:
        """Wake one idle session, so that not all of them come for one task."""
        waiting = [
            session for session, queues in self.idle.items() if session in self.listening and queue in queues
        ]
        random.shuffle(waiting)
        for session in waiting:
            del self.idle[session]
            if sum(wake() for wake in self.listening[session]):
                return

    def forked(self) -> None:
        """See `Kept.forked`; listeners are forgotten."""
        self.lock = threading.Lock()
        self.waiters = Waiters()
        self.idle.clear()
        self.listening.clear()
        self.cancelled.clear()


_PROCESS: Final = ByName(_Tasks)


class MemoryTaskStore:
    """Tasks in the process, by the name in the URL; a store with a `clock` (microseconds) has its own."""

    keeps_outcomes: Final = True
    shares_keys: Final = True
    follows_up: Final = True
    tells_of_others: Final = True

    def __init__(self, url: str = "memory://", *, clock: Callable[[], int] | None = None) -> None:
        self.url = shown_url(url)
        self._clock = clock or wall_clock
        self._tasks = _PROCESS.behind(self.url) if clock is None else _Tasks()

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`."""
        with self._tasks.lock:
            return self._tasks.apply(command, self._tasks.read(self._clock()) if now is None else now)

    async def aclose(self) -> None:
        """See `TaskStore.aclose`: there is nothing to close, and the tasks stay."""

    @asynccontextmanager
    async def awaited(self, ids: Sequence[str]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Telling.awaited`."""
        with self._tasks.waiters.waiting(ids) as waiter:
            yield waiter.wait

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked | None]]]:
        """See `Waking.wakeups`."""
        event = anyio.Event()
        soon = call_soon()
        tasks = self._tasks

        def wake() -> bool:
            with contextlib.suppress(RuntimeError):  # that event loop is closed, so nobody waits
                soon(lambda: event.set())  # noqa: PLW0108 - binds the event late
                return True
            return False

        async def woken() -> Worked | None:
            nonlocal event
            await event.wait()
            event = anyio.Event()
            with tasks.lock:
                cancelled = tasks.cancelled.pop(session, None)
            return None if cancelled is None else Worked(cancelled=tuple(cancelled))

        with tasks.lock:
            tasks.listening.setdefault(session, []).append(wake)
        try:
            yield woken
        finally:
            with tasks.lock:
                listening = tasks.listening.get(session, [])
                if wake in listening:
                    listening.remove(wake)
                if not listening:
                    tasks.listening.pop(session, None)
                    tasks.cancelled.pop(session, None)
