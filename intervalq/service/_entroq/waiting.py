"""Claims that wait for a task, of any number of clients, by one idle session of the store."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import anyio
from anyio.abc import TaskStatus

from intervalq.errors import IntervalqError, UnsupportedOperation
from intervalq.service._refusal import Code, Refusal
from intervalq.tasks._session.demand import CHECK, FIRST_POLL, LAST_POLL
from intervalq.tasks._session.waking import AGAIN
from intervalq.tasks._spec.ids import new_id
from intervalq.tasks.rules import SECOND, Beat, Begin, End, Row, Session, Work
from intervalq.tasks.store import TaskStore, Waking

log: Final = logging.getLogger("intervalq")

_BEAT: Final = 5.0
"""Seconds between two heartbeats of the service's session, which claims nothing and is only woken."""


class Waiter:
    """A client that waits for a task of some queues."""

    def __init__(
        self,
        queues: tuple[str, ...],
        claim: Callable[[], Awaitable[Row | None]],
        give_back: Callable[[Row], Awaitable[None]],
    ) -> None:
        self.queues = queues
        self.claim, self.give_back = claim, give_back
        self.row: Row | None = None
        self.error: IntervalqError | None = None
        self.over = anyio.Event()


class Waiting:
    """All waiting clients of a service, first come, first served for the same queues."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._lines: dict[tuple[str, ...], deque[Waiter]] = {}
        self._session = new_id()
        self._news = anyio.Event()
        self._hears = False
        self._closed = False

    async def wait(
        self,
        queues: tuple[str, ...],
        claim: Callable[[], Awaitable[Row | None]],
        give_back: Callable[[Row], Awaitable[None]],
    ) -> Row:
        """Wait until there is a task.

        Args:
            queues: where it may be.
            claim: claims a task for the client; None: there is none now.
            give_back: frees a task that was claimed while the client went away.

        Raises:
            Refusal: the service stops.
            IntervalqError: `claim` has failed.
        """
        waiter = Waiter(queues, claim, give_back)
        if self._closed:
            raise _stops()
        self._lines.setdefault(queues, deque()).append(waiter)
        self.notify(queues)
        try:
            await waiter.over.wait()
        finally:
            self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error
        if waiter.row is None:
            raise _stops()
        return waiter.row

    def notify(self, queues: Iterable[str]) -> None:
        """Note that there may be something in these queues."""
        if not set(queues).isdisjoint(queue for line in self._lines for queue in line):
            self._news.set()

    def close(self) -> None:
        """End every wait: the service is about to stop, and clients find another one."""
        self._closed = True
        for line in list(self._lines.values()):
            for waiter in list(line):
                waiter.over.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Serve those who wait, until cancelled; ready once the store has answered."""
        await self._store.apply(Begin(Session(self._session, expiry=6 * int(_BEAT * SECOND))))
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._beat)
                group.start_soon(self._hear)
                await self._serve()
        finally:
            with anyio.move_on_after(1, shield=True), suppress(IntervalqError):
                await self._store.apply(End(self._session))

    def _leave(self, waiter: Waiter) -> None:
        line = self._lines.get(waiter.queues)
        if line is not None and waiter in line:
            line.remove(waiter)
            if not line:
                del self._lines[waiter.queues]

    async def _serve(self) -> None:
        pause = FIRST_POLL
        while True:
            while not self._lines:
                await self._news.wait()
                self._news = anyio.Event()
            # First idle, then a look: what comes in between wakes the session.
            with suppress(IntervalqError):
                await self._idle()
            served = False
            for queues in list(self._lines):
                served |= await self._serve_line(queues)
            pause = FIRST_POLL if served else min(pause * 2, LAST_POLL)
            with anyio.move_on_after(CHECK if self._hears else pause):
                await self._news.wait()
            if self._news.is_set():
                pause = FIRST_POLL
                self._news = anyio.Event()

    async def _idle(self) -> None:
        if not self._hears:
            return
        queues = tuple(dict.fromkeys(queue for line in self._lines for queue in line))
        worked = await self._store.apply(Work(self._session, queues=queues, idle=True))
        if not worked.alive:
            await self._store.apply(Begin(Session(self._session, expiry=6 * int(_BEAT * SECOND))))
            await self._store.apply(Work(self._session, queues=queues, idle=True))

    async def _serve_line(self, queues: tuple[str, ...]) -> bool:
        """Claim for those who wait for these queues while there is something; returns whether there was."""
        served = False
        while line := self._lines.get(queues):
            waiter = line[0]
            try:
                row = await waiter.claim()
            except IntervalqError as error:
                waiter.error = error
            else:
                if row is None:
                    break
                served = True
                if waiter not in self._lines.get(queues, ()):
                    with suppress(IntervalqError):  # then it is free when the time of the claim is up
                        await waiter.give_back(row)
                    continue
                waiter.row = row
            self._leave(waiter)
            waiter.over.set()
        return served

    async def _hear(self) -> None:
        store = self._store
        while isinstance(store, Waking):
            try:
                async with store.wakeups(self._session) as woken:
                    self._hears = True
                    while True:
                        self._news.set()
                        await woken()
            except UnsupportedOperation:
                return
            except IntervalqError as error:
                log.debug("no wake-ups for the service: %s", error)
            finally:
                self._hears = False
            await anyio.sleep(AGAIN)

    async def _beat(self) -> None:
        while True:
            with suppress(IntervalqError):
                await self._store.apply(Beat(self._session))
            await anyio.sleep(_BEAT)


def _stops() -> Refusal:
    return Refusal(Code.UNAVAILABLE, "the service stops: ask again, perhaps another one")
