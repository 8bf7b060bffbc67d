"""Claims of tasks for clients: what a client doesn't get is given back, what can't be shown is put away."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final, NamedTuple

from intervalq.errors import IntervalqError
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.claimants import Claimants
from intervalq.service._entroq.model import task_of
from intervalq.service._entroq.values import Budget, TooManyValues
from intervalq.service._refusal import Refusal
from intervalq.tasks._spec.outcome import dead_queue
from intervalq.tasks.rules import Change, Row, Work
from intervalq.tasks.store import TaskStore

log: Final = logging.getLogger("intervalq")


class Found(NamedTuple):
    """What a look for a task found."""

    row: Row | None
    """The task, claimed; None: there is none now."""
    task: pb.Task | None = None
    """The same as the protocol shows it; None: nobody has asked yet."""
    wait: int | None = None
    """Microseconds until there will be one by itself; None: nobody knows."""


class Claims:
    """Claims in a store."""

    def __init__(self, store: TaskStore, claimants: Claimants) -> None:
        self._store = store
        self._claimants = claimants
        self._left: set[asyncio.Task[None]] = set()

    async def claim(self, claimant: str, queues: tuple[str, ...], lease: int) -> Found:
        """Claim a task for a claimant.

        The store is asked in a task of its own: if the client goes away meanwhile, what it would have got is
        given back, instead of being claimed until the lease ends.
        """
        asked = asyncio.ensure_future(self._claim(claimant, queues, lease))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            left = asyncio.ensure_future(self._unwanted(asked))
            self._left.add(left)
            left.add_done_callback(self._left.discard)
            raise

    async def give_back(self, row: Row) -> None:
        """Free a claimed task."""
        await self._store.apply(Work(row.session or "", settled=(Change(row.id, row.version, delay=0),)))

    async def aclose(self) -> None:
        """Await what is still to be given back."""
        if self._left:
            await asyncio.wait([*self._left], timeout=1)

    async def _unwanted(self, asked: asyncio.Future[Found]) -> None:
        with suppress(IntervalqError):  # then it is free when the lease ends
            row = (await asked).row
            if row is not None:
                await self.give_back(row)

    async def _claim(self, claimant: str, queues: tuple[str, ...], lease: int) -> Found:
        session = await self._claimants.session(claimant)
        work = Work(session, queues=queues, limit=1, lease=lease)
        while True:
            worked = await self._store.apply(work)
            if not worked.alive:
                await self._claimants.session(claimant, again=True)
            elif not worked.claimed:
                return Found(None, wait=worked.wait)
            elif (task := await self._shown(worked.claimed[0])) is not None:
                return Found(worked.claimed[0], task)

    async def _shown(self, row: Row) -> pb.Task | None:
        """A task as the protocol shows it. One that it can't carry (None) is dead."""
        try:
            return task_of(row)
        except (Refusal, ValueError) as error:
            log.warning("task %s of %s is dead: %s", row.id, row.queue, error)
            change = Change(row.id, row.version, queue=dead_queue(row.queue), error=str(error))
            await self._store.apply(Work(row.session or "", settled=(change,)))
            return None


def shown(row: Row, budget: Budget, *, inserter: str | None = None, value: bool = True) -> pb.Task:
    """A task in a list; without its value, if the protocol can't carry that.

    Raises:
        TooManyValues: there are too many in the list.
    """
    try:
        return task_of(row, budget, claimant=inserter, value=value)
    except TooManyValues:
        raise
    except (Refusal, ValueError) as error:
        bare = row._replace(attempt=min(row.attempt, 2**31 - 1), claims=min(row.claims, 2**31 - 1))
        return task_of(bare._replace(error=row.error or str(error)), claimant=inserter, value=False)
