"""The lifecycle of a handle of tasks: its process and event loop, its store and its sessions."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from intervalq._queue.options import Duration, wait_of
from intervalq._spec import parse
from intervalq._timing.backends import current_loop, is_over
from intervalq._timing.clock import CLOCK
from intervalq.errors import ForkedError, UnsupportedOperation, WrongLoop
from intervalq.store import shown_url
from intervalq.tasks._claim.values import Form
from intervalq.tasks._lock.hold import hold
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks.rules import Command
from intervalq.tasks.store import TaskStore, Transactional, open_task_store

A = TypeVar("A")


class Lifecycle:
    """The lifecycle of `Tasks`: it opens nothing until it is used, and then in that event loop."""

    def __init__(self, url: str | None, given: TaskStore | None, expiry: float, form: Form) -> None:
        self._url = url
        self._given = given
        self._expiry = expiry
        self._form = form
        self._store: TaskStore | None = given
        self._owner: tuple[int, object] | None = None
        self._clock = CLOCK.get()
        self._sessions: dict[str, WorkSession] = {}
        self._ending: list[WorkSession] = []

    async def aclose(self) -> None:
        """Give back all claims, and close the connections. The handle can be used again."""
        if self._owner is not None and self._owner == (os.getpid(), current_loop()):
            self._ending += self._sessions.values()
            self._sessions = {}
            with anyio.CancelScope(shield=True):
                while self._ending:  # those that another call is closing, too
                    session = self._ending[0]
                    await session.close()
                    if session in self._ending:
                        self._ending.remove(session)
                if self._store is not None:
                    await self._store.aclose()
            if not self._sessions:  # it may belong to another event loop from now on
                self._store, self._owner = self._given, None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction of the store's database; its connection can be given to `insert` and `modify`."""
        store = self._here()
        if not isinstance(store, Transactional):
            raise UnsupportedOperation(store.url, "this store has no transactions for users")
        async with store.transaction("read committed") as transaction:
            yield transaction.connection

    @asynccontextmanager
    async def lock(
        self, name: str, *, timeout: Duration | None = None, expiry: Duration | None = None
    ) -> AsyncIterator[int]:
        """Hold an exclusive lock: `async with tasks.lock("car1") as fence:`.

        It is refreshed while the context is open, and free as soon as that ends; if this process dies, it is
        free when it expires. Those who wait for it get it in any order.

        The value is the lock's fencing number: each later holder has a higher one. A process that stands
        still for longer than `expiry` may go on for a moment, although somebody else has the lock by then.
        Send the number along with what you write, and refuse it where a higher one has been seen.

        Args:
            name: the name of the lock, with the rules for names of queues.
            timeout: how long to wait for it. None: without limit; 0: try once.
            expiry: after how long it is free if its holder died; None: the handle's. On NATS it is rounded up
                to whole seconds.

        Raises:
            TimeoutError: somebody else holds it.
            LockLost: at the end: it couldn't be refreshed in time, and the code under it was cancelled.
            StoreError: the store can't be reached, or can't be trusted.
        """
        name = parse.name(name, what="lock name")
        seconds = self._expiry if expiry is None else parse.duration(expiry, least=1, what="expiry") / 1e6
        async with hold(self._here(), name, seconds, wait_of(timeout)) as fence:
            yield fence

    async def _apply(self, command: Command[A], connection: Any = None) -> A:  # noqa: ANN401 - of the driver
        """Do a command, at once or in the transaction of a connection."""
        store = self._here()
        if connection is None:
            return await store.apply(command)
        if not isinstance(store, Transactional):
            raise UnsupportedOperation(
                store.url, "this store has no transactions for users: omit connection="
            )
        return await store.apply_on(connection, command)

    def _session(self, consumer: str = "") -> WorkSession:
        """The session of a pull consumer, or the one of everything else."""
        store = self._here()
        session = self._sessions.get(consumer)
        if session is None:
            session = WorkSession(store, self._expiry, consumer, self._form)
            self._sessions[consumer] = session
        return session

    def _wake(self) -> None:
        """Wake sessions of this handle, which may want a task that was just inserted."""
        for session in self._sessions.values():
            if session.batcher.wanted:
                session.batcher.ask_now()

    def _here(self) -> TaskStore:
        """The store, in this event loop.

        Raises:
            ForkedError, WrongLoop: the handle belongs to another process or event loop.
        """
        owner, clock = (os.getpid(), current_loop()), CLOCK.get()
        if self._owner is not None and (self._owner != owner or self._clock is not clock):
            if self._owner[0] != owner[0] and self._store is not None and self._sessions:
                raise ForkedError("tasks")
            if self._owner[0] == owner[0] and self._owner[1] is not owner[1] and not is_over(self._owner[1]):
                raise WrongLoop("tasks")
            self._store, self._sessions, self._ending = self._given, {}, []
        self._owner, self._clock = owner, clock
        if self._store is None:
            self._store = open_task_store(self._url)
        return self._store

    def __repr__(self) -> str:
        url = self._given.url if self._given is not None else shown_url(self._url) if self._url else ""
        return f"Tasks({url!r})" if url else "Tasks()"
