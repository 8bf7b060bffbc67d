"""Schedules in PostgreSQL: texts in rows of a table, compared by a function beside it (schedules.sql)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from intervalq.store import StoredSchedules, Swapped
from intervalq_stores.postgres._connection import Server
from intervalq_stores.postgres._pool import Lines, Pool
from intervalq_stores.postgres._schema import Schema

SCHEMA: Final = 1
"""The version of the schedules in schema `intervalq`; schedules.sql says when to increment it."""

_VERSION: Final = b"select number from intervalq.schedules_version"
_READ: Final = b"select * from intervalq.schedule_texts(%s::text[], %s::bigint)"
_SWAP: Final = b"select * from intervalq.schedule_swap(%s::text, %s::text, %s::text, %s::bigint, %s::bigint)"
_PATIENCE: Final = 5.0  # seconds that a call may take in all


class PostgresSchedules:
    """One statement per call, on a connection of its own that is made when schedules are first used."""

    def __init__(self, url: str) -> None:
        what = "the schedules of schema intervalq have"
        schema = Schema("schedules", SCHEMA, "intervalq.schedules_version", _VERSION, what)
        self._server = Server(url, schema)
        self._pool = Pool(self._server, 1)

    async def read(self, names: Collection[str] | None, now: int | None) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        with self._server.expected():
            (at, *_), *rows = await self._ask(_READ, None if names is None else [*names], now)
            return StoredSchedules(at, {name: text for _, name, text in rows})

    async def swap(
        self, name: str, known: str | None, text: str | None, earliest: int, now: int | None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        with self._server.expected():
            [(done, at, stored)] = await self._ask(_SWAP, name, known, text, earliest, now)
            return Swapped(done, at, stored)

    async def close(self) -> None:
        """Close the connection; it is made again when it is needed again."""
        await self._pool.aclose()

    async def _ask(self, sql: bytes, *values: object) -> Lines:
        return await self._server.within(self._pool.rows(sql, *values), _PATIENCE)
