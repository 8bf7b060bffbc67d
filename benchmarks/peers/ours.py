"""intervalq: for pacing with its usual settings, and without an effective limit in three ways."""

from __future__ import annotations

import time
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ClassVar

from intervalq import IntervalQueue, QueueNotFound
from intervalq.rules import Advance, Settings
from peers.base import Adapter, Job, Tally, Work

_GRANT: ContextVar[Any] = ContextVar("grant", default=None)
"""The slot of the present call."""


class _Noting(IntervalQueue):
    """Records the slot of a call, which `run` doesn't report. It overrides a method that isn't public."""

    async def _acquire(self, *arguments: Any) -> Any:  # noqa: ANN401 - the queue's own
        """Get a slot, and record it."""
        shard, grant = await super()._acquire(*arguments)
        _GRANT.set(grant)
        return shard, grant


class Ours(Adapter):
    """`async with queue.slot()`."""

    lookahead: ClassVar[int | None] = 16
    kind: ClassVar[type[IntervalQueue]] = IntervalQueue

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.queue = self.kind("bench", interval=work.interval, store=work.url, lookahead=self.lookahead)

    async def open(self) -> None:
        """See `Adapter.open`."""
        await connect(self.queue)

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        async with self.queue.slot() as slot:
            job(slot.ticket, slot.due, self.checked())

    def checked(self) -> int | None:
        """The last reading of the clock, for `frozen`; not public, and None where there is none."""
        at: int | None = getattr(self.queue._shard().dispatcher, "begun_at", None)
        return None if at is None else at * 1_000

    async def step(self) -> bool:
        """See `Adapter.step`: the command that a call on an idle queue needs, and nothing else."""
        take = Advance(settings=Settings(interval=1_000), nonce="step", take=1, reach=20_000)
        await self.queue._shard().store.apply("step", take)
        return True

    async def figures(self) -> dict[str, Any]:
        """See `Adapter.figures`."""
        state = await self.queue.inspect()
        return {"calls": state.calls, "given_up": state.given_up, "begun": state.begun}


class Run(Ours):
    """`await queue.run(f)`."""

    kind = _Noting

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""

        async def begin() -> None:
            at = time.monotonic_ns()
            slot = _GRANT.get()
            job(slot and slot.ticket, slot and slot.due, self.checked(), at)

        _GRANT.set(None)
        await self.queue.run(begin)


class Add(Ours):
    """`await queue.add(f)`, then `await` the job."""

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""

        async def begin() -> tuple[int, int | None]:
            return time.monotonic_ns(), self.checked()

        added = await self.queue.add(begin)
        at, checked = await added
        job(added.ticket, added.due, checked, at)


class Turns(Ours):
    """Shards take turns."""

    lookahead = 1


class Greedy(Ours):
    """Every waiting job has a ticket."""

    lookahead = None


class FloodSlot(Adapter):
    """`async with queue.slot()`."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.queue = IntervalQueue("bench", interval=1e-6, burst=1_000_000, lookahead=None, store=work.url)
        self.paced = self.queue(_nothing)

    async def open(self) -> None:
        """See `Adapter.open`."""
        await connect(self.queue)

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        async with self.queue.slot():
            job()

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            async with self.queue.slot():
                tally.jobs += 1

    async def figures(self) -> dict[str, Any]:
        """See `Adapter.figures`."""
        state = await self.queue.inspect()
        return {"calls": state.calls, "given_up": state.given_up}


class FloodRun(FloodSlot):
    """`queue.run(f)`."""

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            await self.queue.run(_nothing)
            tally.jobs += 1


class FloodDecorator(FloodSlot):
    """`@queue`."""

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            await self.paced()
            tally.jobs += 1


async def connect(queue: IntervalQueue) -> None:
    """Load the store's driver, and connect, as in a process that has used the queue before."""
    with suppress(QueueNotFound):
        await queue.inspect()


async def _nothing() -> None:
    pass
