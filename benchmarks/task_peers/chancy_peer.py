"""chancy, with its executor for coroutines."""

from __future__ import annotations

import logging
from collections.abc import Callable

from chancy import Chancy, Job, Queue, Worker  # type: ignore[import-untyped]  # it has no types

from task_peers.base import QUEUE, Adapter, Seen, Work, batches

_NOTE: list[Callable[[int], None]] = []  # its functions are found by their names


async def job(*, n: int) -> None:
    """The function of all tasks."""
    _NOTE[0](n)


class Peer(Adapter):
    """Options: those of its Queue, and `flush`: seconds between two writes of outcomes."""

    def __init__(self, work: Work, seen: Seen) -> None:
        super().__init__(work, seen)
        self._app = Chancy(work.url, log=logging.getLogger("chancy"))
        self._app.log.setLevel(logging.WARNING)
        _NOTE[:] = [self.job()]

    def number(self, carried: object) -> int:
        """See `Adapter.number`."""
        assert isinstance(carried, int)
        return carried

    async def install(self) -> None:
        """See `Adapter.install`."""
        await self._app.migrate()

    async def open(self) -> None:
        """See `Adapter.open`."""
        await self._app.pool.open()
        options = {name: value for name, value in self.given.options.items() if name != "flush"}
        await self._app.declare(Queue(QUEUE, executor=Chancy.Executor.Async, **options), upsert=True)

    def _job(self, number: int) -> Job:
        return Job.from_func(job, queue=QUEUE, kwargs={"n": number})

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        for numbers in batches(count):
            async for _ in self._app.push_many([self._job(number) for number in numbers]):
                pass

    async def insert(self, number: int) -> None:
        """See `Adapter.insert`."""
        await self._app.push(self._job(number))

    async def work(self) -> None:
        """See `Adapter.work`."""
        async with Worker(self._app, register_signal_handlers=False) as worker:
            worker.send_outgoing_interval = self.given.options.get("flush", worker.send_outgoing_interval)
            await worker.wait_for_shutdown()
