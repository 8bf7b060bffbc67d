"""Hand-written baselines over PostgreSQL, one for each kind of work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it has no types
import psycopg

from task_peers.base import QUEUE, Adapter, batches, carried

_TABLE = "CREATE TABLE floor (id bigserial PRIMARY KEY, owner int, value text NOT NULL)"

_CLAIM = """
WITH next AS (SELECT id FROM floor WHERE owner IS NULL ORDER BY id LIMIT {limit} FOR UPDATE SKIP LOCKED)
UPDATE floor SET owner = {owner} FROM next WHERE floor.id = next.id RETURNING floor.id, floor.value
"""

_FUSED = "WITH done AS (DELETE FROM floor WHERE id = ANY(%s) AND owner = %s), " + _CLAIM.format(
    limit="%s", owner="%s"
).lstrip().removeprefix("WITH ")

_RANGES = """
CREATE TABLE floor (id bigserial PRIMARY KEY, value text NOT NULL);
CREATE TABLE head (low bigint NOT NULL) WITH (fillfactor = 10);
CREATE TABLE lease (low bigint PRIMARY KEY, high bigint NOT NULL, owner int NOT NULL);
INSERT INTO head VALUES (0);
"""

_LEASE = """
WITH done AS (DELETE FROM floor WHERE id > %(low)s AND id <= %(high)s),
  gone AS (DELETE FROM lease WHERE low = %(low)s AND owner = %(me)s),
  top AS (SELECT coalesce(max(id), 0) AS id FROM floor),
  taken AS (UPDATE head SET low = least(head.low + %(limit)s, top.id) FROM top WHERE head.low < top.id
            RETURNING old.low AS low, new.low AS high),
  leased AS (INSERT INTO lease SELECT low, high, %(me)s FROM taken)
SELECT floor.id, floor.value, taken.low, taken.high FROM taken
JOIN floor ON floor.id > taken.low AND floor.id <= taken.high
"""


class Fused(Adapter):
    """Delete the last batch and claim the next with SKIP LOCKED, in one statement. Options: batch."""

    table = _TABLE

    async def install(self) -> None:
        """See `Adapter.install`."""
        with psycopg.connect(self.given.url, autocommit=True) as link:
            link.execute(self.table.encode())

    async def open(self) -> None:
        """See `Adapter.open`: a connection that blocks, since there is nothing else to do."""
        self.link = psycopg.connect(self.given.url, autocommit=True, prepare_threshold=0)

    async def fill(self, count: int) -> None:
        """See `Adapter.fill`."""
        for numbers in batches(count):
            with self.link.cursor().copy(b"COPY floor (value) FROM STDIN") as copy:
                copy.write("".join(f"{text}\n" for text in carried(numbers)))

    async def insert(self, number: int) -> None:
        """See `Adapter.insert`."""
        self.link.execute(
            b"WITH new AS (INSERT INTO floor (value) VALUES (%s)) SELECT pg_notify(%s, '')",
            (*carried([number]), QUEUE),
        )

    async def work(self) -> None:
        """See `Adapter.work`."""
        note, me = self.job(), os.getpid()
        cursor = self.link.cursor(binary=True)
        rows: Sequence[tuple[Any, ...]] = ()
        while True:
            ids = [row[0] for row in rows]
            rows = cursor.execute(_FUSED, (ids, me, self.given.options["batch"], me)).fetchall()
            for row in rows:
                note(row[1])


class Ranges(Fused):
    """Ranges of a table that is never updated: end the last lease, delete its rows, lease the next."""

    table = _RANGES

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()
        cursor = self.link.cursor(binary=True)
        given = {"low": 0, "high": 0, "me": os.getpid(), "limit": self.given.options["batch"]}
        while True:
            rows = cursor.execute(_LEASE, given).fetchall()
            for row in rows:
                note(row[1])
            given["low"], given["high"] = rows[0][2:] if rows else (0, 0)


class OneByOne(Fused):
    """Coroutines with a connection each: one statement claims a task, another one deletes it.

    Options: callers.
    """

    async def work(self) -> None:
        """See `Adapter.work`."""
        note = self.job()
        claim = _CLAIM.format(limit="1", owner="$1")

        async def caller(me: int, link: Any) -> None:  # noqa: ANN401 - a connection of asyncpg
            while True:
                rows = await link.fetch(claim, me)
                if not rows:
                    await asyncio.sleep(0.05)  # noqa: TID251
                for number, value in rows:
                    note(value)
                    await link.execute("DELETE FROM floor WHERE id = $1 AND owner = $2", number, me)

        await asyncio.gather(*(caller(number, link) for number, link in enumerate(self.links)))

    async def open(self) -> None:
        """See `Adapter.open`."""
        await super().open()
        self.links = [
            await asyncpg.connect(self.given.url) for _ in range(self.given.options.get("callers", 1))
        ]


class Listening(Fused):
    """A process that waits for notifications, and claims at each of them."""

    async def work(self) -> None:
        """See `Adapter.work`."""
        note, me = self.job(), os.getpid()
        ear = psycopg.connect(self.given.url, autocommit=True)
        ear.execute(f"LISTEN {QUEUE}".encode())
        cursor = self.link.cursor(binary=True)
        for _ in ear.notifies():
            for number, value in cursor.execute(_FUSED, ([], me, 10, me)).fetchall():
                note(value)
                cursor.execute("DELETE FROM floor WHERE id = %s AND owner = %s", (number, me))
