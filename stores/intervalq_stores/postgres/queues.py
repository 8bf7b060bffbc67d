"""`postgresql://`: records in rows of a schema, the rules in PL/pgSQL beside them (queues.sql)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio

from intervalq.errors import CorruptState, StoreError, VersionMismatch
from intervalq.keyed import Common, KeyedAnswer, Place, shown
from intervalq.rules import LAYOUT, Answer, BadRecord, Command, NewerRecord, Slot, State
from intervalq.store import StoredSchedules, Swapped, stopwatch
from intervalq_stores.postgres._advice import QUEUES, advice
from intervalq_stores.postgres._connection import Server, is_pooled, sqlstate
from intervalq_stores.postgres._connection import driver as _driver
from intervalq_stores.postgres._listener import Listener
from intervalq_stores.postgres._pool import Pool
from intervalq_stores.postgres._queue_batch import Batcher, Step
from intervalq_stores.postgres._schema import Schema
from intervalq_stores.postgres._tls import way
from intervalq_stores.postgres.schedules import PostgresSchedules

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection

T = TypeVar("T")
SCHEMA: Final = 16
"""The version of schema `intervalq` that this file needs; queues.sql says when to increment it."""

_PATIENCE: Final = 5.0  # seconds that a statement may take in all; above the lock's limit in queues.sql

_APPLY: Final = b"select intervalq.apply(%s, %s, %s, %s)"
_APPLY_ALL: Final = b"select intervalq.apply_all(%s, %s)"
_OF_ONE: Final = frozenset({"22003", "55P03", "IQ001", "IQ002", "XX001"})  # errors that concern one record
_NAMES: Final = b"select intervalq.names()"
_VERSION: Final = b"select number from intervalq.version"


class _Rows(NamedTuple):
    """The rows of a statement, and when it was sent and answered, on `stopwatch`."""

    rows: list[tuple[Any, ...]]
    sent: int
    received: int


class _Done(NamedTuple):
    """The result of `intervalq.apply`, and the bounds, on `stopwatch`, of when it read its clock."""

    data: dict[str, Any]
    trip: tuple[int, int]


class PostgresStore:
    """Keeps one connection, with one statement at a time, for one step or for all that wait.

    It works through PgBouncer in transaction mode, too, but without wake-ups: LISTEN is a state of a server
    connection, which the pooler's clients share.
    """

    def __init__(self, url: str) -> None:
        self._server = Server(url, Schema("queues", SCHEMA, "intervalq.version", _VERSION))
        self.url = self._server.url
        self._pool = Pool(self._server, 1)
        self._steps = Batcher(self._apply)
        self._schedules = PostgresSchedules(url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        step = Step(queue, command.to_dict(), now)
        with self._server.translated(_PATIENCE, lambda error: self._error(error, queue)):
            done = await self._steps.do(step)
        try:
            answer = _answer(done.data)
        except NewerRecord as error:
            raise VersionMismatch(self.url, f"queue {queue!r}: {error}; upgrade intervalq here") from error
        except BadRecord as error:
            raise CorruptState(self.url, _broken(queue)) from error
        return answer if now is not None else replace(answer, trip=done.trip)

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`."""
        step = Step(queue, command.to_dict(), now, known.record, known.to_dict())
        with self._server.translated(_PATIENCE, lambda error: self._error(error, queue)):
            done = await self._steps.do(step)
        try:
            answer, row = _answer(done.data["answer"]), done.data["common"]
            common = None if row is None else State.from_dict(_record(row))
            places = tuple([Place(each[0], Slot(*each[1:])) for each in done.data["places"]])
        except NewerRecord as error:
            raise VersionMismatch(self.url, f"queue {queue!r}: {error}; upgrade intervalq here") from error
        except (BadRecord, KeyError, TypeError) as error:
            raise CorruptState(self.url, _broken(queue)) from error
        answer = shown(answer, common)
        return KeyedAnswer(answer if now is not None else replace(answer, trip=done.trip), common, places)

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        return await self._schedules.read(names, now)

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        return await self._schedules.swap(name, known, text, earliest, now)

    async def names(self) -> list[str]:
        """See `Store.names`."""
        with self._server.expected():
            names = [name for (name,) in (await self._within(self._ask(_NAMES))).rows]
            if not all(type(name) is str for name in names):
                raise TypeError
            return names

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._steps.idle()
        await self._schedules.close()
        await self._pool.aclose()

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`; uses a connection of its own. Behind a pooler the function never returns."""
        connection = await self._within(self._server.open())
        try:
            if await self._within(is_pooled(connection)):
                await connection.close()
                yield anyio.sleep_forever
                return
            channel = f"intervalq_{hashlib.sha256(queue.encode()).hexdigest()[:40]}"
            listener = Listener(connection, _driver().Error, channel)
            await self._within(listener.listen())

            async def woken() -> None:
                try:
                    await listener.heard()
                except _driver().Error as error:
                    raise self._server.error(error) from error

            try:
                yield woken
            finally:
                listener.close()
        finally:
            await connection.close()

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of "ok", "warning" or "error", and a sentence."""
        connection = await self._within(self._server.connect())
        try:
            return [way(connection.pgconn), *await self._within(advice(connection, self._server, QUEUES))]
        finally:
            await connection.close()

    # --- steps --------------------------------------------------------------------------------------

    async def _apply(self, steps: Sequence[Step]) -> list[_Done | Exception]:
        """The outcome of each step. If a step fails because of its record, the others are still done."""
        left = list(steps)
        done: list[_Done | Exception] = []
        failed: list[tuple[int, Exception]] = []
        while left:
            try:
                with anyio.fail_after(_PATIENCE):
                    done = await self._apply_all(left)
                break
            except Exception as error:  # noqa: BLE001 - the callers raise it
                # The driver closes a half-open connection only when no frame refers to it any more.
                error.__cause__ = error.__context__ = error.__traceback__ = None
                place = _place(error)
                if place is None:
                    done = [error] * len(left)
                    break
                failed.append((place, error))  # nothing was done: it is one transaction
                del left[place]
        for place, outcome in reversed(failed):
            done.insert(place, outcome)
        return done

    async def _apply_all(self, steps: Sequence[Step]) -> list[_Done | Exception]:
        if len(steps) == 1 and steps[0].common is None:
            queue, command, now = steps[0][:3]
            rows, sent, received = await self._ask(_APPLY, (queue, json.dumps(command), now, LAYOUT))
        else:
            rows, sent, received = await self._ask(_APPLY_ALL, (json.dumps(steps), LAYOUT))
        # The differences of the readings of the server's clock show when each step was done.
        readings = [data["now"] for (data,) in rows]
        first, last = min(readings), max(readings)
        return [
            _Done(data, (sent + data["now"] - first, received - (last - data["now"]))) for (data,) in rows
        ]

    # --- connections --------------------------------------------------------------------------------

    async def _within(self, call: Awaitable[T]) -> T:
        """The result of `call`, with a timeout, and with errors translated into those of a store."""
        return await self._server.within(call, _PATIENCE)

    async def _ask(self, sql: bytes, values: Sequence[object] = ()) -> _Rows:
        """The rows of one statement. It is repeated only if it was certainly not done."""

        async def ask(connection: Connection) -> _Rows:
            sent = stopwatch()
            rows = await (await connection.execute(sql, values)).fetchall()
            return _Rows(rows, sent, stopwatch())

        return await self._pool.run(ask)

    def _error(self, error: Exception, queue: str) -> StoreError:
        """The store's error for one of the driver."""
        code = sqlstate(error)
        if code == "IQ001":
            return CorruptState(self.url, _broken(queue))
        if code == "22003":
            message = self._server.message(error)
            return CorruptState(
                self.url, f"queue {queue!r}: {message}; nothing was written: give smaller ones"
            )
        return self._server.error(error)


def _answer(data: dict[str, Any]) -> Answer:
    """The answer that the function `intervalq.apply` gave.

    Raises:
        BadRecord, NewerRecord: as `Answer.from_dict` says.
    """
    try:
        row = data.get("state")
        return Answer.from_dict(data if row is None else {**data, "state": _record(row)})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadRecord | NewerRecord):
            raise
        raise BadRecord("it has another form") from error


def _place(error: Exception) -> int | None:
    """Which of several commands failed, if `intervalq.apply_all` tells and the others needn't fail, too."""
    diagnosis = getattr(error, "diag", None)
    detail = (diagnosis and diagnosis.message_detail) or ""
    return int(detail) if sqlstate(error) in _OF_ONE and detail.isdecimal() else None


_OMITTED: Final = frozenset({"limits", "auto", "weight"})


def _record(row: dict[str, Any]) -> dict[str, Any]:
    """The record in a row, which has its leases in two columns, and null for what most queues lack."""
    leases = zip(map(str, row["running"]), row["leases"], strict=True)
    record = {**row, "running": dict(leases)}
    return {name: value for name, value in record.items() if value is not None or name not in _OMITTED}


def _broken(queue: str) -> str:
    return (
        f"the record of queue {queue!r} was not written by intervalq; it is left as it is: repair it, or "
        f"delete this row of intervalq.queues, and the queue starts over"
    )
