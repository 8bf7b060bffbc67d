"""A hand-written baseline over Postgres: updates of one row, pipelined."""

from __future__ import annotations

import psycopg

from peers.base import Adapter, Job, Tally

_UPDATE = "UPDATE floor SET ticket = ticket + 1 WHERE name = 'bench' RETURNING ticket"


class Update(Adapter):
    """Each update is a transaction of its own; all callers share one pipeline."""

    @property
    def in_batches(self) -> bool:
        """See `Adapter.in_batches`."""
        return True

    async def open(self) -> None:
        """See `Adapter.open`."""
        self._link = await psycopg.AsyncConnection.connect(
            self.work.url, autocommit=True, prepare_threshold=0
        )
        await self._link.execute("SELECT pg_advisory_lock(1)")  # two that create a table at once collide
        await self._link.execute("CREATE TABLE IF NOT EXISTS floor (name text PRIMARY KEY, ticket bigint)")
        await self._link.execute("INSERT INTO floor VALUES ('bench', 0) ON CONFLICT DO NOTHING")
        await self._link.execute("SELECT pg_advisory_unlock(1)")

    async def flood(self, tally: Tally) -> None:
        """See `Adapter.flood`."""
        while tally.going:
            if self.work.callers == 1:
                await (await self._link.execute(_UPDATE)).fetchone()
            else:
                async with self._link.pipeline():
                    cursors = [await self._link.execute(_UPDATE) for _ in range(self.work.callers)]
                    for cursor in cursors:
                        await cursor.fetchone()
            tally.jobs += self.work.callers

    async def call(self, job: Job) -> None:
        """See `Adapter.call`."""
        await (await self._link.execute(_UPDATE)).fetchone()
        job()
