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
from intervalq.service._entroq.claims import Found
from intervalq.service._measures import waits
from intervalq.service._refusal import Code, Refusal
from intervalq.tasks._session.demand import CHECK, FIRST_POLL, LAST_POLL
from intervalq.tasks._session.waking import AGAIN
from intervalq.tasks._spec.ids import new_id
from intervalq.tasks.rules import SECOND, Beat, Begin, Count, End, Row, Session, Work
from intervalq.tasks.store import TaskStore, Waking

log: Final = logging.getLogger("intervalq")

_BEAT: Final = 5.0
"""Seconds between two heartbeats of the service's session, which claims nothing and is only woken."""
_FEW: Final = 4
"""Up to this many lines are tried one by one; with more, the store is asked once which queues have tasks."""

_MAX_WAITING: Final = 10_000

Line = tuple[str, ...]
"""The queues that its waiters wait for, sorted."""


class Waiter:
    """A client that waits for a task of some queues."""

    def __init__(self, line: Line, claim: Callable[[], Awaitable[Found]]) -> None:
        self.line = line
        self.claim = claim
        """Claims a task for the client."""
        self.row: Row | None = None
        self.error: Exception | None = None
        self.over = anyio.Event()


class Waiting:
    """All waiting clients of a service, first come, first served for the same queues."""

    def __init__(self, store: TaskStore, give_back: Callable[[Row], Awaitable[None]]) -> None:
        """`give_back` frees a task that was claimed for a client which has gone away."""
        self._store = store
        self._give_back = give_back
        self._lines: dict[Line, deque[Waiter]] = {}
        self._of_queue: dict[str, set[Line]] = {}
        self._count = 0  # of all who wait
        self._due: dict[Line, None] = {}  # the lines to look at, in order
        self._sweeps = True  # whether any line may have a task
        self._later: dict[Line, float] = {}  # when one will have a task by itself, on the event loop's clock
        self._session = new_id()
        self._news = anyio.Event()
        self._hears = False
        self._closed = False

    async def wait(self, queues: Iterable[str], claim: Callable[[], Awaitable[Found]]) -> Row:
        """Wait until there is a task.

        Args:
            queues: where it may be.
            claim: claims a task for the client.

        Raises:
            Refusal: the service stops, or too many clients wait.
            Exception: `claim` has failed.
        """
        waiter = Waiter(tuple(sorted({*queues})), claim)
        if self._closed:
            raise _stops()
        if self._count >= _MAX_WAITING:
            raise Refusal(Code.UNAVAILABLE, "too many clients wait at this service: ask another one")
        self._join(waiter)
        try:
            with waits("claim"):
                await waiter.over.wait()
        except BaseException:  # the client has gone
            if waiter.row is not None:
                await self._back(waiter.row)
            raise
        finally:
            self._leave(waiter)
        if waiter.error is not None:
            raise waiter.error
        if waiter.row is None:
            raise _stops()
        return waiter.row

    def notify(self, queues: Iterable[str]) -> None:
        """Note that there may be something in these queues."""
        for queue in queues:
            for line in self._of_queue.get(queue, ()):
                self._due[line] = None
                self._news.set()

    def close(self) -> None:
        """End every wait: the service is about to stop, and clients find another one."""
        self._closed = True
        for line in list(self._lines.values()):
            for waiter in list(line):
                waiter.over.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Serve those who wait, until cancelled; ready once the store has answered."""
        await self._begin()
        task_status.started()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._beat)
                group.start_soon(self._hear)
                await self._serve()
        finally:
            with anyio.move_on_after(1, shield=True), suppress(IntervalqError):
                await self._store.apply(End(self._session))

    def _join(self, waiter: Waiter) -> None:
        self._count += 1
        self._lines.setdefault(waiter.line, deque()).append(waiter)
        for queue in waiter.line:
            self._of_queue.setdefault(queue, set()).add(waiter.line)
        self._due[waiter.line] = None
        self._news.set()

    def _leave(self, waiter: Waiter) -> None:
        line = self._lines.get(waiter.line)
        if line is None or waiter not in line:
            return
        line.remove(waiter)
        self._count -= 1
        if line:
            return
        del self._lines[waiter.line]
        self._later.pop(waiter.line, None)
        for queue in waiter.line:
            lines = self._of_queue[queue]
            lines.discard(waiter.line)
            if not lines:
                del self._of_queue[queue]

    async def _serve(self) -> None:
        pause, asks = FIRST_POLL, 0.0  # asks: when all lines are to be looked at
        while True:
            while not self._lines:
                await self._news.wait()
                self._news = anyio.Event()
            served, looked = False, True
            try:
                # The session becomes idle before the look, so a task that comes in between wakes it.
                await self._idle()
                due, self._due = {**self._due, **self._come()}, {}
                sweeps, self._sweeps = self._sweeps or anyio.current_time() >= asks, False
                for line in dict.fromkeys([*due, *(await self._ready() if sweeps else ())]):
                    served |= await self._serve_line(line)
            except IntervalqError:
                sweeps = self._sweeps = True  # whichever were due
                looked = False
            now = anyio.current_time()
            pause = FIRST_POLL if served else min(pause * 2, LAST_POLL)
            if sweeps:
                asks = now + (CHECK if looked and self._hears else pause)
            with anyio.move_on_at(min([asks, *self._later.values()])):
                await self._news.wait()
            if self._news.is_set():
                self._news = anyio.Event()

    def _come(self) -> dict[Line, None]:
        """The lines whose next task has become ready by itself."""
        now = anyio.current_time()
        come = dict.fromkeys(line for line, ready in self._later.items() if ready <= now)
        for line in come:
            del self._later[line]
        return come

    async def _ready(self) -> list[Line]:
        """The lines that may have a task now, or will have one of which this doesn't know when."""
        if len(self._lines) <= _FEW:
            return list(self._lines)
        counts = await self._store.apply(Count(tuple(self._of_queue)))
        ready = {one.name for one in counts if one.ready}
        future = {one.name for one in counts if one.size > one.claimed + one.ready}
        return [
            line
            for line in self._lines
            if not ready.isdisjoint(line) or (line not in self._later and not future.isdisjoint(line))
        ]

    async def _idle(self) -> None:
        if not self._hears:
            return
        work = Work(self._session, queues=tuple(self._of_queue), idle=True)
        if not (await self._store.apply(work)).alive:
            await self._begin()
            await self._store.apply(work)

    async def _begin(self) -> None:
        await self._store.apply(Begin(Session(self._session, expiry=6 * int(_BEAT * SECOND))))

    async def _serve_line(self, line: Line) -> bool:
        """Claim for those who wait for these queues while there is something; returns whether there was."""
        served = False
        while waiters := self._lines.get(line):
            waiter = waiters[0]
            try:
                row, _, wait = await waiter.claim()
            except Exception as error:  # noqa: BLE001 - it is that of one client, and is raised there
                waiter.error = error
            else:
                if row is None:
                    if wait is not None and line in self._lines:
                        self._later[line] = anyio.current_time() + wait / 1e6
                    break
                served = True
                if waiter not in self._lines.get(line, ()):
                    await self._back(row)
                    continue
                waiter.row = row
            self._leave(waiter)
            waiter.over.set()
        return served

    async def _back(self, row: Row) -> None:
        # Also when the service ends; otherwise the task is free when its claim expires.
        with anyio.CancelScope(shield=True), suppress(IntervalqError):
            await self._give_back(row)

    async def _hear(self) -> None:
        store = self._store
        while isinstance(store, Waking):
            try:
                async with store.wakeups(self._session) as woken:
                    self._hears = True
                    while True:
                        self._sweeps = True
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
