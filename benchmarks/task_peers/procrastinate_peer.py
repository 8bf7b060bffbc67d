"""procrastinate, over psycopg."""

from __future__ import annotations

from typing import Any

from procrastinate import App, PsycopgConnector

from task_peers.base import QUEUE, Adapter, Seen, Work, batches


class Peer(Adapter):
    """Options: concurrency."""

    def __init__(self, work: Work, seen: Seen) -> None:
        super().__init__(work, seen)
        self._app = App(connector=PsycopgConnector(conninfo=work.url))
        note = self.job()

        @self._app.task(queue=QUEUE, name="job")
        async def job(n: int) -> None:
            note(n)

        self._job = job

    def number(self, carried: object) -> int:
        """See `Adapter.number`."""
        assert isinstance(carried, int)
        return carried

    async def install(self) -> None:
        """See `Adapter.install`."""
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        """See `Adapter.open`."""
        await self._app.open_async()

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        for numbers in batches(count):
            values: list[dict[str, Any]] = [{"n": number} for number in numbers]
            await self._job.batch_defer_async(*values)

    async def insert(self, number: int) -> None:
        """See `Adapter.insert`."""
        await self._job.defer_async(n=number)

    async def work(self) -> None:
        """See `Adapter.work`."""
        await self._app.run_worker_async(
            queues=[QUEUE],
            concurrency=self.given.options.get("concurrency", 1),
            install_signal_handlers=False,
            delete_jobs="always",  # as all the others, but for chancy
        )
