"""procrastinate, over psycopg."""

from __future__ import annotations

from typing import Any

from procrastinate import App, PsycopgConnector

from task_peers.base import QUEUE, Adapter, Seen, Work, batches, key_of


class Peer(Adapter):
    """Options: concurrency, delete_jobs, keys, held."""

    def __init__(self, work: Work, seen: Seen) -> None:
        super().__init__(work, seen)
        self._app = App(connector=PsycopgConnector(conninfo=work.url))
        note = self.job()

        held = self.held if work.options.get("held") else None

        @self._app.task(queue=QUEUE, name="job")
        async def job(n: int) -> None:
            if held is not None:
                await held(n)
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
        if self.given.options.get("keys"):
            for number in range(count):
                await self._job.configure(lock=key_of(number, count)).defer_async(n=number)
            return
        for numbers in batches(count):
            values: list[dict[str, Any]] = [{"n": number} for number in numbers]
            await self._job.batch_defer_async(*values)

    async def insert(self, number: int) -> Any:  # noqa: ANN401 - an id
        """See `Adapter.insert`."""
        return await self._job.defer_async(n=number)

    async def cancel(self, task: Any) -> None:  # noqa: ANN401 - an id
        """See `Adapter.cancel`."""
        await self._app.job_manager.cancel_job_by_id_async(task, abort=True)

    async def work(self) -> None:
        """See `Adapter.work`."""
        await self._app.run_worker_async(
            queues=[QUEUE],
            concurrency=self.given.options.get("concurrency", 1),
            install_signal_handlers=False,
            delete_jobs=self.given.options.get("delete_jobs", "always"),  # as all the others, but for chancy
        )
