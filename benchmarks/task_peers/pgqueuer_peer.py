"""pgqueuer, over asyncpg as its documentation has it."""

from __future__ import annotations

from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries
from pgqueuer.models import Context

from task_peers.base import QUEUE, Adapter, batches, carried


class Peer(Adapter):
    """Options: batch, tasks (at the same time), held."""

    async def install(self) -> None:
        """See `Adapter.install`."""
        connection = await asyncpg.connect(self.given.url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._driver = AsyncpgDriver(await asyncpg.connect(self.given.url))

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        queries = Queries(self._driver)
        for numbers in batches(count):
            values = [text.encode() for text in carried(numbers)]
            await queries.enqueue([QUEUE] * len(numbers), list(values), [0] * len(numbers))

    async def insert(self, number: int) -> Any:  # noqa: ANN401 - an id
        """See `Adapter.insert`."""
        [text] = carried([number])
        [task] = await Queries(self._driver).enqueue(QUEUE, text.encode())
        return task

    async def cancel(self, task: Any) -> None:  # noqa: ANN401 - an id
        """See `Adapter.cancel`."""
        await Queries(self._driver).mark_job_as_cancelled([task])

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()
        queuer = PgQueuer(self._driver)

        options = self.given.options
        if options.get("held"):

            @queuer.entrypoint(QUEUE, accepts_context=True)
            async def holding(task: Job, context: Context) -> None:
                with context.cancellation:  # its functions are to use this scope
                    await self.held(task.payload)

        else:

            @queuer.entrypoint(QUEUE)
            async def job(task: Job) -> None:
                note(task.payload)

        await queuer.qm.run(batch_size=options.get("batch", 10), max_concurrent_tasks=options.get("tasks"))
