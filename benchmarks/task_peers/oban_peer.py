"""oban-py, over psycopg as its own command has it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

# It needs Python 3.12, so type checkers may run where it isn't installed.
import oban  # type: ignore[import-not-found,unused-ignore]
from oban.schema import install  # type: ignore[import-not-found,unused-ignore]

from task_peers.base import QUEUE, Adapter, Seen, Work, batches


class Peer(Adapter):
    """Options: limit (tasks at the same time), result, held."""

    def __init__(self, work: Work, seen: Seen) -> None:
        super().__init__(work, seen)
        note = self.job()
        held, seen, number = work.options.get("held"), self.seen, self.number
        result = oban.Record({"sent": 1}) if work.options.get("result") else None

        @oban.worker(queue=QUEUE)
        class Job:
            async def process(self, job: Any) -> Any:  # noqa: ANN401 - it has no types here
                if held:
                    seen.task()
                    while not job.cancelled():  # its functions are to look for themselves
                        await asyncio.sleep(0.01)  # noqa: TID251 - see above
                    seen.start(time.monotonic_ns(), number(job.args))
                    return None
                note(job.args)
                return result

        self._job: Any = Job

    def number(self, carried: Any) -> int:  # noqa: ANN401 - a dict
        """See `Adapter.number`."""
        return int(carried["n"])

    async def install(self) -> None:
        """See `Adapter.install`."""
        await self.open()
        await install(self._pool)
        await self._pool.close()

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._pool = await oban.Oban.create_pool(self.given.url)
        # One that only inserts has no queues, and is never started.
        limit = self.given.options.get("limit", 10)
        self._oban = oban.Oban(pool=self._pool, queues={QUEUE: limit} if self.given.role == "work" else {})

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        for numbers in batches(count):
            await self._oban.enqueue_many([self._job.new({"n": number}) for number in numbers])

    async def insert(self, number: int) -> Any:  # noqa: ANN401 - as above
        """See `Adapter.insert`."""
        return await self._oban.enqueue(self._job.new({"n": number}))

    async def cancel(self, task: Any) -> None:  # noqa: ANN401 - as above
        """See `Adapter.cancel`."""
        await self._oban.cancel_job(task)

    async def work(self) -> None:
        """See `Adapter.work`."""
        await self._oban.start()
