"""intervalq: for pacing as users have it, and without an effective limit in its three ways."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from intervalq import IntervalQueue, QueueNotFound
from intervalq.rules import Advance, Settings
from peers.base import Adapter, Job, Tally, Work


class Ours(Adapter):
    """`async with queue.slot()`."""

    lookahead: ClassVar[int | None] = 16

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.queue = IntervalQueue("bench", interval=work.interval, store=work.url, lookahead=self.lookahead)

    async def open(self) -> None:
        """See `Adapter.open`."""
        await connect(self.queue)

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        async with self.queue.slot() as slot:
            # For `frozen`; not public, and the figure is left out where there is none.
            checked: int | None = getattr(self.queue.shard(), "begun_at", None)
            job(slot.ticket, slot.due, None if checked is None else checked * 1_000)

    async def step(self) -> bool:
        """See `Adapter.step`: the command that a call on an idle queue needs, and nothing else."""
        take = Advance(settings=Settings(interval=1_000), nonce="step", take=1, reach=20_000)
        await self.queue.shard().store.apply("step", take)
        return True

    async def figures(self) -> dict[str, Any]:
        """See `Adapter.figures`."""
        state = await self.queue.inspect()
        return {"calls": state.calls, "given_up": state.given_up, "begun": state.begun}


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
    """Load the store's driver, and connect, as a process does that has used the queue before."""
    with suppress(QueueNotFound):
        await queue.inspect()


async def _nothing() -> None:
    pass
