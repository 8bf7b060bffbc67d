"""`postgresql://`: ledgers in rows of a schema, their rules in PL/pgSQL beside them (ledgers.sql)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar

from intervalq.errors import StoreError
from intervalq.ledger.rules import (
    Answer,
    Beat,
    Cancel,
    Claim,
    Command,
    Count,
    Drop,
    Ended,
    Expire,
    Forget,
    Leave,
    Look,
    Record,
    Release,
    Seen,
    Start,
    Summary,
    Verdict,
)
from intervalq_stores.postgres._connection import Server
from intervalq_stores.postgres._pool import Lines, Pool
from intervalq_stores.postgres._schema import Schema

T = TypeVar("T")

SCHEMA: Final = 1
"""The version of the ledgers in schema `intervalq`; ledgers.sql says when to increment it."""

_VERSION: Final = b"select number from intervalq.ledgers_version"
_NAMES: Final = b"select intervalq.ledger_names()"
_SWEEP: Final = b"select intervalq.ledger_sweep(10000)"
_PATIENCE: Final = 5.0  # seconds that a call may take in all; above the lock's limit in ledgers.sql
_LOOKING: Final = 60.0  # seconds that a query may take
_SWEEPING: Final = 2.0  # seconds that a drop removes rows, which others do later
_AT_ONCE: Final = 2  # commands; the server would not do more of them in the same time


class PostgresLedgerStore:
    """One statement per command, atomic as a whole, on any connection. It works through PgBouncer, too."""

    def __init__(self, url: str) -> None:
        schema = Schema(
            "ledgers", SCHEMA, "intervalq.ledgers_version", _VERSION, "the ledgers of schema intervalq have"
        )
        self._server = Server(url, schema)
        self.url = self._server.url
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._pool = Pool(self._server, _AT_ONCE)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """See `LedgerStore.apply`."""
        sql, values = _asked(ledger, command, now)
        patience = _LOOKING if isinstance(command, Look | Count) else _PATIENCE
        lines = await self._within(self._ask(sql, values), patience)
        if isinstance(command, Drop):
            await self._sweep()
        with self._server.expected():
            return _answer(command, lines)

    async def names(self) -> list[str]:
        """See `LedgerStore.names`."""
        with self._server.expected():
            return [name for (name,) in await self._within(self._ask(_NAMES, ()))]

    async def aclose(self) -> None:
        """See `LedgerStore.aclose`."""
        await self._pool.aclose()

    async def _sweep(self) -> None:
        end = time.monotonic() + _SWEEPING
        while time.monotonic() < end:
            [(removed,)] = await self._within(self._ask(_SWEEP, ()))
            if not removed:
                return

    # --- connections --------------------------------------------------------------------------------

    async def _within(self, call: Awaitable[T], patience: float = _PATIENCE) -> T:
        """The result of `call`, with a timeout, and with errors translated into those of a store."""
        try:
            return await self._server.within(call, patience, self._error)
        except UnicodeEncodeError as error:
            raise self._error(error) from error

    async def _ask(self, sql: bytes, values: tuple[object, ...]) -> Lines:
        """The rows of a statement. It is repeated only if it was certainly not done."""
        async with self._turns:
            return await self._pool.rows(sql, *values)

    def _error(self, error: Exception) -> StoreError:
        return self._server.error_of_values(error, "2**63")


# --- commands and answers ---------------------------------------------------------------------------------


def _asked(ledger: str, command: Command, now: int | None) -> tuple[bytes, tuple[object, ...]]:
    """The statement that calls the function of a command, and its arguments."""
    name, casts, values = _call(command)
    placeholders = ", ".join(["%s::text", *(f"%s::{cast}" for cast in casts), "%s::bigint"])
    sql = f"select * from intervalq.ledger_{name}({placeholders})"  # noqa: S608 - our own names
    if isinstance(command, Claim | Record):  # most lines, which say the same of all rows
        sql += f" where kind <> '{_USUAL[type(command)]}' or attempt > 1"
    return sql.encode(), (ledger, *values, now)


_USUAL: Final[dict[type[Command], str]] = {Claim: "mine", Record: "kept"}
"""The kind of line, at the first attempt, that isn't asked for."""


_Call: TypeAlias = tuple[str, tuple[str, ...], tuple[object, ...]]


def _call(command: Command) -> _Call:  # noqa: C901, PLR0911 - one case per command
    match command:
        case Claim(session, expiry, keys, started, again):
            casts = ("text", "bigint", "text[]", "boolean", "boolean")
            return "claim", casts, (session, expiry, _array(keys), started, again)
        case Start(session, expiry, keys):
            return "start", ("text", "bigint", "text[]"), (session, expiry, _array(keys))
        case Record(session, expiry, _):
            rows = list(_first(command).values())
            casts = ("text", "bigint", "text[]", "text[]", "boolean[]")
            texts = _array(row.key for row in rows), _array(row.value for row in rows)
            return "record", casts, (session, expiry, *texts, _array("ft"[row.failed] for row in rows))
        case Release(session, keys):
            return "release", ("text", "text[]"), (session, _array(keys))
        case Beat(session, expiry):
            return "beat", ("text", "bigint"), (session, expiry)
        case Leave(session):
            return "leave", ("text",), (session,)
        case Cancel(on):
            return "set", ("boolean", "bigint"), (on, None)
        case Expire(at):
            return "set", ("boolean", "bigint"), (None, at)
        case Forget(keys, shown):
            return "forget", ("text[]", "text[]"), (_array(keys), _array(shown))
        case Look(cursor, limit):
            return "look", ("text", "bigint"), (cursor, limit + 1)
        case Count():
            return "count", (), ()
        case Drop():
            return "drop", (), ()


def _array(texts: Iterable[str]) -> str:
    """An array as the server reads it; the driver takes several times as long to write one."""
    quoted = [one.replace("\\", "\\\\").replace('"', '\\"') for one in texts]
    return '{"' + '","'.join(quoted) + '"}' if quoted else "{}"


def _first(command: Record) -> dict[str, Ended]:
    """The ends to record: only the first one of each row counts."""
    return {row.key: row for row in reversed(command.rows)}


def _answer(command: Command, lines: Lines) -> Answer:
    """The answer in these lines; the type of lines in ledgers.sql describes them."""
    (_, removed, flags, _, now), *rest = lines
    answer = Answer(now, found=bool(flags & 1), cancelled=bool(flags & 2))
    if isinstance(command, Claim | Start | Record):
        return answer._replace(verdicts=tuple(_verdicts(command, rest)))
    if isinstance(command, Release | Forget):
        return answer._replace(removed=int(removed))
    if isinstance(command, Look):
        rows = tuple(Seen(key, shown, attempt, value, at) for shown, key, attempt, value, at in rest)
        cursor = rows[command.limit - 1].key if len(rows) > command.limit else ""
        return answer._replace(rows=rows[: command.limit], cursor=cursor)
    if isinstance(command, Count) and answer.found:
        return answer._replace(summary=_summary(rest, cancelled=answer.cancelled))
    return answer


def _verdicts(command: Claim | Start | Record, lines: Lines) -> Iterator[Verdict]:
    found = {line[1]: line for line in lines}
    if isinstance(command, Record):
        ends = _first(command)
        keys, usual = [row.key for row in command.rows], ("kept", "", 1, None, None)
    else:
        ends, keys = {}, list(command.keys)
        usual = ("mine", "", 1, None, None) if isinstance(command, Claim) else ("busy", "", 0, None, None)
    for key in keys:
        kind, _, attempt, value, _ = found.get(key, usual)
        if kind == "kept":
            yield Verdict("known", attempt, ends[key].value, ends[key].failed)
        elif kind in {"done", "failed"}:
            yield Verdict("known", attempt, value, kind == "failed")
        else:
            yield Verdict(kind, attempt)


def _summary(lines: Lines, *, cancelled: bool) -> Summary:
    counts = {line[0]: line[2] for line in lines}
    fields = ("done", "failed", "claimed", "started", "unknown", "sessions")
    return Summary(
        counts["created"], counts["expires"], cancelled, *(counts.get(field, 0) for field in fields)
    )
