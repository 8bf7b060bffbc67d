"""A session that has found too little: for each of its demands a request waits at the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import anyio
from anyio.abc import TaskGroup

from intervalq.errors import IntervalqError, StoreError
from intervalq.tasks.rules import Change, Row, Work

if TYPE_CHECKING:
    from intervalq_stores._nats_claims import Claims

_WAIT: Final = 30.0
"""Seconds after which a request expires; then the session asks again."""

_TAKEN: Final = 1.0
"""Seconds that a task waits for whom it was brought; then others can have it."""


class Want(NamedTuple):
    """A demand: what it takes is for nobody else of the session."""

    queues: tuple[str, ...]
    lease: int | None
    most: int | None


class Idle:
    """The demands of a session that have found less than they wanted."""

    def __init__(self, claims: Claims, group: TaskGroup) -> None:
        self._claims = claims
        self._group = group
        self._waiting: dict[Want, anyio.CancelScope] = {}
        self._brought: dict[Want, list[Row]] = {}
        self._rung = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def of(cls, claims: Claims) -> AsyncIterator[Self]:
        """One that waits as long as the context is open, and gives back what nobody has taken."""
        async with anyio.create_task_group() as group:
            idle = cls(claims, group)
            try:
                yield idle
            finally:
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True), suppress(StoreError):
                    for want in list(idle._brought):
                        await idle._give_back(want)

    async def woken(self) -> None:
        """Wait until something was brought."""
        await self._rung.wait()
        self._rung = anyio.Event()

    def take(self, work: Work) -> list[Row]:
        """What was brought for this demand."""
        return self._brought.pop(Want(work.queues, work.lease, work.most), [])

    def look(self, work: Work, *, full: bool) -> None:
        """A demand has asked, and found as much as it wanted, or less: then it waits for more."""
        want = Want(work.queues, work.lease, work.most)
        if full or not work.idle:
            scope = self._waiting.pop(want, None)
            if scope is not None:
                scope.cancel()
        elif want not in self._waiting:
            scope = self._waiting[want] = anyio.CancelScope()
            self._group.start_soon(self._wait, want, scope)

    async def _wait(self, want: Want, scope: anyio.CancelScope) -> None:
        rows: list[Row] = []
        # Who can't wait at the server is told nothing: its session asks now and then, and is told why.
        with scope, suppress(IntervalqError):
            rows = await self._claims.wait(want.queues, want.lease, want.most, _WAIT)
        if self._waiting.get(want) is scope:
            del self._waiting[want]
        if rows:
            self._brought.setdefault(want, []).extend(rows)
            self._rung.set()
            await anyio.sleep(_TAKEN)
            if self._brought.get(want, [])[: len(rows)] == rows:
                await self._give_back(want)

    async def _give_back(self, want: Want) -> None:
        rows = self._brought.pop(want, [])
        with suppress(StoreError):
            await self._claims.settle(
                [
                    Change(row.id, row.version, attempt=row.attempt - row.begun)
                    for row in rows
                    if row.id in self._claims.held
                ]
            )
