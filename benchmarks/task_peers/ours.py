"""intervalq's durable tasks, as their users write them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio

from intervalq import IntervalQueue
from intervalq.tasks import Claim, Tasks
from task_peers.base import QUEUE, Adapter, batches, key_of


class Ours(Adapter):
    """`@tasks.worker` and `tasks.run()`.

    Options: concurrency, rate, store (of the queue), until_empty, keep, result, keys, held.
    """

    async def install(self) -> None:
        """See `Adapter.install`: the schema is made at first use."""
        async with Tasks(self.given.url) as tasks:
            await tasks.queues(QUEUE)

    async def open(self) -> None:
        """See `Adapter.open`."""
        self.tasks = Tasks(self.given.url)
        await self.tasks.queues("another")

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        new, keep = self.tasks.new, self.given.options.get("keep")
        if self.given.options.get("keys"):
            for numbers in batches(count):
                some = [new(QUEUE, {"n": number}, key=key_of(number, count)) for number in numbers]
                await self.tasks.modify(*some)
            return
        for numbers in batches(count):
            await self.tasks.modify(*[new(QUEUE, {"n": number}, keep=keep) for number in numbers])

    async def insert(self, number: int) -> Any:  # noqa: ANN401 - an id
        """See `Adapter.insert`."""
        return await self.tasks.insert(QUEUE, {"n": number})

    async def cancel(self, task: Any) -> None:  # noqa: ANN401 - an id
        """See `Adapter.cancel`."""
        await self.tasks.cancel(task)

    async def work(self) -> None:
        """See `Adapter.work`."""
        options = self.given.options
        note = self.job()
        rate = options.get("rate")
        pace = IntervalQueue("p", rate=rate, store=options.get("store", self.given.url)) if rate else None

        held = self.held if options.get("held") else None
        result = {"sent": 1} if options.get("result") else None

        @self.tasks.worker(QUEUE, queue=pace)
        async def job(task: Claim) -> Any:  # noqa: ANN401 - JSON
            if held is not None:
                await held(task)
            note(task)
            return result

        run = partial(self.tasks.run, until_empty=options.get("until_empty", False))
        await run(**({"concurrency": options["concurrency"]} if "concurrency" in options else {}))

    def number(self, carried: Any) -> int:  # noqa: ANN401 - a claim
        """See `Adapter.number`."""
        return int(carried.value["n"])


class Plain(Ours):
    """Plain tasks, which are handed out in ranges."""

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        await self.tasks.put(QUEUE, ({"n": number} for number in range(count)))


class Chunked(Plain):
    """Plain tasks whose function gets many at once. Options: batch."""

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()

        @self.tasks.worker(QUEUE, batch=self.given.options["batch"])
        async def job(claims: Sequence[Claim]) -> None:
            for claim in claims:
                note(claim)

        await self.tasks.run()


class OneByOne(Ours):
    """Coroutines that each claim a task and acknowledge it, in a loop. Options: callers."""

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()

        async def caller() -> None:
            while True:
                claim = await self.tasks.claim(QUEUE)
                note(claim)
                await claim.ack()

        async with anyio.create_task_group() as group:
            for _ in range(self.given.options["callers"]):
                group.start_soon(caller)


class Fetched(Ours):
    """A pull consumer: fetches a batch, and acknowledges all of it. Options: batch."""

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()
        batch = self.given.options["batch"]
        pull = self.tasks.pull(QUEUE, name="bench")
        while True:
            claims = await pull.fetch(batch)
            async with anyio.create_task_group() as group:
                for claim in claims:
                    note(claim)
                    group.start_soon(claim.ack)


class Holder(Ours):
    """A worker whose first function doesn't return, so that its task dies with it."""

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()
        numbers = itertools.count()

        @self.tasks.worker(QUEUE, concurrency=1)
        async def job(task: Claim) -> None:
            note(task)
            if next(numbers) == 0:
                await anyio.sleep_forever()

        await self.tasks.run()
