"""Keeps the durable schedules of a store going: each process with workers claims rows and takes steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import anyio

from intervalq.errors import InvalidOption, MissingExtra, StoreError, StoreUnavailable, Unauthorized, plain
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._schedule.record import QUEUE, Stored, put_off
from intervalq.tasks._schedule.step import step
from intervalq.tasks._session.commit import ack_with
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.job import Job
from intervalq.tasks._worker.policy import Policy
from intervalq.tasks._worker.pool import WorkerPool
from intervalq.tasks.rules import SECOND, Change, Count, Insert, Row, Select, Sessions, Work
from intervalq.tasks.store import Pulling

log: Final = logging.getLogger("intervalq")

A = TypeVar("A")

_LOOK: Final = 60.0
"""Seconds between two looks whether the store has schedules, while it has none."""

_CHUNK: Final = 50
"""How many schedules take their steps together."""

_INSERTS: Final = 250
"""How many tasks such a step inserts at most, roughly: a NATS stores up to 1,000 messages at once."""

_BYTES: Final = 1 << 20
"""How many bytes the tasks that one schedule makes up for in a step take, roughly."""

_UNABLE: Final = 10 * SECOND
"""For how long a schedule rests that this process can't read or has no right to; other processes may be able
to."""

_NO_VERSION: Final = -1
"""A version that no row has: a change at this version requires the rights for a change, but changes
nothing."""


class Keeper:
    """The durable schedules in one process."""

    def __init__(self, session: WorkSession) -> None:
        self._session = session
        self._looks = anyio.Event()
        self._told: set[tuple[str, str]] = set()

    def look(self) -> None:
        """Look now, because there may be a schedule."""
        self._looks.set()

    async def run(self, failed: Callable[[BaseException], None]) -> None:
        """Keep them going until cancelled; `failed` is called if that is not possible any more."""
        error: BaseException | None
        try:
            while not await self._are_any():
                with anyio.move_on_after(_LOOK):
                    await self._looks.wait()
                self._looks = anyio.Event()
            job = Job(self._chunk, (QUEUE,), None, 1, Policy(None, 1.0), None, batch=_CHUNK)
            pool = WorkerPool(job, self._session, 1)
            await pool.run()
            error = pool.error
        except StoreError as raised:
            error = raised
        if isinstance(error, Unauthorized):
            log.warning("this process keeps no durable schedules going: %s", error)
        elif error is not None:
            failed(error)

    async def _are_any(self) -> bool:
        """Whether there are schedules.

        Raises:
            Unauthorized: this process may not claim or change them.
        """
        store = self._session.store
        try:
            if not await store.apply(Count(names=(QUEUE,))):
                return False
            if not isinstance(store, Pulling):  # a refusal together with the workers' claims would end them
                some = await store.apply(Select(queue=QUEUE, limit=1, values=False))
                nothing = tuple(Change(row.id, _NO_VERSION) for row in some)
                await store.apply(Work(await self._session.ready(), nothing, queues=(QUEUE,)))
        except StoreUnavailable:  # the workers of this process report it
            return False
        return True

    async def _chunk(self, claims: list[Claim]) -> None:
        """Take the steps of several schedules in one call; or each separately, if some are refused."""
        parts = await self._parts(claims)
        try:
            await ack_with(self._session, claims, parts)
        except Unauthorized as error:
            if len(claims) > 1:
                for claim in claims:
                    await self._chunk([claim])
                return
            row = claims[0]._row
            self._tell(row, error)
            await ack_with(self._session, claims, [_rest(row)])

    async def _parts(self, claims: list[Claim]) -> list[Insert | Change]:
        """The changes of one step of several schedules."""
        now, parts = await self._clock(), list[Insert | Change]()
        for claim in claims:
            row = claim._row
            try:
                stored = Stored.of(row)
            except (ValueError, InvalidOption, MissingExtra) as error:
                self._tell(row, error)
                parts.append(_rest(row))
                continue
            most = min(_INSERTS // len(claims), _BYTES // len(stored.task.json))
            # The row was claimed on the store's clock, not before it was due.
            done = step(stored, stored.decided(row), max(now, row.modified, row.at), max(1, most))
            if done.left_out:
                log.warning(
                    "schedule %r: %d occurrences up to %s are left out, they are too late",
                    stored.name,
                    done.left_out,
                    stored.plan.time(done.after.through or 0),
                )
            parts += done.inserts
            parts.append(Change(row.id, row.version, json=done.after.to_json(), at=done.at, attempt=0))
        return parts

    async def _clock(self) -> int:
        """A recent reading of the store's clock, for stores whose rows don't tell when they were claimed."""
        if not isinstance(self._session.store, Pulling):
            return 0
        mine = self._session.batcher.session
        return max(
            (one.beaten for one in await self._session.store.apply(Sessions()) if one.id == mine), default=0
        )

    def _tell(self, row: Row, error: Exception) -> None:
        """Report once that a schedule can't be read here, or that this process has no right to schedules."""
        what = ("", str(error)) if isinstance(error, Unauthorized) else (row.id, str(error))
        if what not in self._told:
            self._told.add(what)
            log.error("%s is not kept going by this process: %s", plain(row.id), error)


def _rest(row: Row) -> Change:
    return Change(row.id, row.version, json=put_off(row), delay=_UNABLE, attempt=0)
