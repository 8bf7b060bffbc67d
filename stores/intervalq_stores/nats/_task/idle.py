"""Idle sessions: for each of their unmet demands, a request waits at the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import anyio
from anyio.abc import TaskGroup

from intervalq.errors import IntervalqError, StoreError
from intervalq.tasks.rules import Change, Row, Work, Worked

if TYPE_CHECKING:
    from intervalq_stores.nats._task.claims import Claims

_WAIT: Final = 30.0
"""Seconds after which a request expires; then the session asks again."""


class Want(NamedTuple):
    """The terms of a demand."""

    queues: tuple[str, ...]
    lease: int | None
    most: int | None


class Idle:
    """The demands of a session that have got fewer tasks than they wanted."""

    def __init__(self, claims: Claims, group: TaskGroup) -> None:
        self._claims = claims
        self._group = group
        self._waiting: dict[Want, anyio.CancelScope] = {}
        self._brought: list[Row] = []
        self._rung = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def of(cls, claims: Claims) -> AsyncIterator[Self]:
        """A context with an instance that waits while it is open, and gives back untaken tasks at its end."""
        async with anyio.create_task_group() as group:
            idle = cls(claims, group)
            try:
                yield idle
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True), suppress(StoreError), claims.expected():
                    await idle._give_back()

    async def woken(self) -> Worked:
        """Wait for tasks, which are the session's from then on."""
        while not self._brought:
            await self._rung.wait()
            self._rung = anyio.Event()
        rows, self._brought = self._brought, []
        return Worked(claimed=tuple(rows))

    def look(self, work: Work, *, full: bool) -> None:
        """Note the result of a demand: if it got fewer tasks than it wanted, a request waits for more."""
        want = Want(work.queues, work.lease, work.most)
        if full or not work.idle:
            scope = self._waiting.pop(want, None)
            if scope is not None:
                scope.cancel()
        elif want not in self._waiting:
            scope = self._waiting[want] = anyio.CancelScope()
            self._group.start_soon(self._wait, work, want, scope)

    async def _wait(self, work: Work, want: Want, scope: anyio.CancelScope) -> None:
        rows: list[Row] = []
        # If a request can't wait at the server, ignore the error: the session polls, and gets it then.
        with scope, suppress(IntervalqError), self._claims.expected():
            rows = await self._claims.wait(work, 1, _WAIT)
        if self._waiting.get(want) is scope:
            del self._waiting[want]
        if rows:
            self._brought += rows
            self._rung.set()

    async def _give_back(self) -> None:
        rows, self._brought = self._brought, []
        mine = [row for row in rows if row.id in self._claims.holdings.deliveries]
        if mine:  # otherwise the connection may already be closed, and must not be reopened
            back = [Change(row.id, row.version, attempt=row.attempt - row.begun) for row in mine]
            await self._claims.holdings.settle(back)
            self._claims.holdings.answered(back)
