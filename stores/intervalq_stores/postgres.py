"""`postgresql://`: records in rows of a schema, the rules in PL/pgSQL beside them (postgres.sql)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from intervalq.errors import (
    BackendUnsupported,
    CorruptState,
    InvalidOption,
    MissingExtra,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    VersionMismatch,
)
from intervalq.rules import Answer, BadRecord, Command, NewerRecord, Slot, State
from intervalq.store import shown_url

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.abc import PQGen

    Connection = AsyncConnection[tuple[Any, ...]]

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

SCHEMA: Final = 1
"""The version of schema `intervalq` that this file works with; postgres.sql says when it counts up."""

_FILE: Final = Path(__file__).with_name("postgres.sql")
_PATIENCE: Final = 5.0  # seconds that a call may take in all; above the lock's limit in postgres.sql
_TURNS: Final = 5
_OLD: Final = 600.0  # seconds; a transaction that is open for longer is worth a warning

_APPLY: Final = b"select intervalq.apply(%s, %s, %s)"
_NAMES: Final = b"select intervalq.names()"
_VERSION: Final = b"select number from intervalq.version"
_LOOK: Final = b"""
    select pg_backend_pid(), current_setting('server_version'),
        current_setting('server_version_num')::integer, pg_is_in_recovery(), current_setting('fsync'),
        current_setting('synchronous_commit'), current_setting('default_transaction_isolation'), coalesce((
            select extract(epoch from clock_timestamp() - min(since))::float8 from (
                select xact_start from pg_stat_activity
                where pid <> pg_backend_pid() and (backend_xmin is not null or backend_xid is not null)
                union all select prepared from pg_prepared_xacts
            ) as open (since)
        ), 0)
"""

_ROLLED_BACK: Final = frozenset({"40001", "40P01"})  # nothing was done: the only ones that are asked again
_NO_SCHEMA: Final = frozenset({"3F000", "42P01", "42883"})  # no such schema, table, or function
_KINDS: Final[dict[str, type[StoreError]]] = {
    "57014": StoreTimeout,  # statement_timeout, or somebody cancelled it
    "55P03": StoreTimeout,  # lock_timeout
    "25006": StoreReadOnly,
    "53100": StoreFull,
    "42501": Unauthorized,
    "IQ002": VersionMismatch,
}
# A refused connection has no SQLSTATE in libpq, only words: its own, or the server's, if that is English.
_REFUSALS: Final = ("authentication", "pg_hba.conf", "no password supplied", "no such user", 'role "')
_PASSING: Final = ("too many connections", "due to timeout")  # said of a role or an authentication as well
_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class PostgresStore:
    """One connection, kept; one statement a step. Works through PgBouncer in transaction mode, too.

    Through a pooler no wake-ups come: LISTEN is a state of a server's connection, which others use as well.
    """

    def __init__(self, url: str) -> None:
        self._driver = _driver()
        self._parameters = _parameters(url)
        self.url = shown_url(url)
        self._lock = asyncio.Lock()  # of no event loop until somebody has to wait for it
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        asked = (queue, json.dumps(command.to_dict()), now)
        [(data,)] = await self._within(self._ask(_APPLY, asked), queue)
        try:
            return _answer(data)
        except NewerRecord as error:
            raise VersionMismatch(self.url, f"queue {queue!r}: {error}; upgrade intervalq here") from error
        except BadRecord as error:
            raise CorruptState(self.url, _broken(queue)) from error

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return [name for (name,) in await self._within(self._ask(_NAMES))]

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        async with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`; uses a connection of its own. Behind a pooler the function never returns."""
        connection = await self._within(self._open())
        try:
            if await self._within(_is_pooled(connection)):
                await connection.close()
                yield anyio.sleep_forever
                return
            heard, lost = asyncio.Event(), list[Exception]()
            connection.add_notify_handler(lambda _: heard.set())
            channel = f"intervalq_{hashlib.sha256(queue.encode()).hexdigest()[:40]}"
            await self._within(connection.execute(f"listen {channel}".encode()))

            # Not by the driver's generator: what comes while its caller is cancelled, it loses.
            def hear() -> None:
                try:
                    connection.pgconn.consume_input()
                    while connection.pgconn.notifies():
                        heard.set()
                except self._driver.Error as error:
                    loop.remove_reader(socket)
                    lost.append(error)
                    heard.set()

            async def woken() -> None:
                await heard.wait()
                if lost:
                    raise self._error(lost[0]) from lost[0]
                heard.clear()

            loop, socket = asyncio.get_running_loop(), connection.fileno()
            loop.add_reader(socket, hear)
            try:
                yield woken
            finally:
                loop.remove_reader(socket)
        finally:
            await connection.close()

    async def advice(self) -> list[tuple[str, str]]:
        """What whoever runs this store should know: "ok", "warning" or "error", and a sentence."""
        connection = await self._within(self._connect())
        try:
            found = await self._within(_version(connection))
            cursor = await self._within(connection.execute(_LOOK))
            row = await self._within(cursor.fetchone())
            # A pooler makes up the numbers that its clients get.
            pooled = row is not None and row[0] != connection.info.backend_pid
        finally:
            await connection.close()
        return _advice(row or (), found, pooled=pooled)

    # --- connections --------------------------------------------------------------------------------

    async def _within(self, call: Awaitable[T], queue: str = "") -> T:
        """What `call` gives, within the time for a call, and with the errors of a store."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if asyncio.iscoroutine(call):
                call.close()
            raise BackendUnsupported(
                self.url, "the driver psycopg runs on asyncio only: use asyncio, or a redis:// store"
            ) from None
        try:
            with anyio.fail_after(_PATIENCE):
                return await call
        except TimeoutError as error:
            raise StoreTimeout(self.url, f"no answer within {_PATIENCE:g} s") from error
        except (self._driver.Error, OSError) as error:
            raise self._error(error, queue) from error

    async def _ask(self, sql: bytes, values: Sequence[object] = ()) -> Rows:
        """The rows of one statement. Only what surely was not done is asked again."""
        async with self._lock:
            turn, whole = 1, True
            while True:
                try:
                    return await self._ask_once(sql, values, whole=whole)
                except self._driver.Error as error:
                    # The schema may vanish under an open connection: then it is made again, once.
                    gone = error.sqlstate in _NO_SCHEMA and whole
                    if turn == _TURNS or not (gone or error.sqlstate in _ROLLED_BACK):
                        raise
                    whole = not gone
                await anyio.sleep(random.uniform(0, 0.01 * 2**turn))  # noqa: S311 - no secret
                turn += 1

    async def _ask_once(self, sql: bytes, values: Sequence[object], *, whole: bool) -> Rows:
        # Out of its place while in use: whatever goes wrong, nobody reads the answer to somebody else.
        connection, self._connection = self._connection, None
        connection = connection or await self._open(whole=whole)
        try:
            rows = await (await connection.execute(sql, values)).fetchall()
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return rows

    async def _connect(self) -> Connection:
        # No prepared statements, and nothing that outlives a transaction: a pooler may change the server's
        # connection after each one.
        return await self._driver.connect(autocommit=True, prepare_threshold=None, **self._parameters)

    async def _open(self, *, whole: bool = True) -> Connection:
        """A new connection to a schema of our version; it is made, or brought up to it, where it isn't."""
        connection = await self._connect()
        try:
            found = await _version(connection)
            if found is None or found < SCHEMA or (found == SCHEMA and not whole):
                await connection.execute(_FILE.read_bytes())
                found = await _version(connection)
        except BaseException:
            await connection.close()
            raise
        if found == SCHEMA:
            return connection
        await connection.close()
        raise VersionMismatch(self.url, _other_version(found))

    def _error(self, error: Exception, queue: str = "") -> StoreError:
        """The store's error for one of the driver. What is unknown is ambiguous: unavailable."""
        code = getattr(error, "sqlstate", None) or ""
        diagnosis = getattr(error, "diag", None)
        said = " ".join(((diagnosis and diagnosis.message_primary) or str(error)).split())
        for secret in (self._parameters.get(name) for name in _SECRETS):
            said = said.replace(str(secret), "***") if secret else said
        if code == "IQ001":
            return CorruptState(self.url, _broken(queue))
        if code == "22003":
            return CorruptState(self.url, f"queue {queue!r}: {said}; nothing was written: give smaller ones")
        if code == "42501":
            said += f"; let an administrator run {_FILE} (psql -f) and grant what its head says to this role"
        if code == "IQ002":
            said += "; upgrade intervalq here"
        refused = any(word in said for word in _REFUSALS) and not any(word in said for word in _PASSING)
        if code.startswith("28") or (not code and refused):
            return Unauthorized(self.url, f"{said}; check user and password of the URL")
        unknown = StoreTimeout if "timeout expired" in said else StoreUnavailable
        return _KINDS.get(code, unknown)(self.url, f"{said} ({code})" if code else said)


@cache
def _driver() -> type[Connection]:
    """The driver's connection, with an end at once: its own asks the server to cancel, and waits for that."""
    try:
        from psycopg import AsyncConnection, waiting  # noqa: PLC0415 - an optional part
    except ImportError as error:
        raise MissingExtra("a postgresql:// store", "postgres") from error

    class Impatient(AsyncConnection[tuple[Any, ...]]):
        async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:  # noqa: ARG002
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)

    return Impatient


def _parameters(url: str) -> dict[str, Any]:
    """The parameters of a connection: ours, where the URL says nothing else."""
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415 - an optional part

    given: dict[str, Any] = {}
    try:
        given = conninfo.conninfo_to_dict(url)
        numeric = all(port.isdigit() for port in str(given.get("port", 0)).split(","))
    except (ProgrammingError, ValueError):  # whose message may have the password in it; or it is no UTF-8
        numeric = False
    if not numeric or "@" in str(given.get("dbname", "")):
        raise InvalidOption(
            "a PostgreSQL store is postgresql://user:password@host:port/database, where "
            "characters such as / @ : # ? of user and password are written as %2F %40 %3A %23 %3F"
        ) from None
    several = "," in str(given.get("host", ""))
    return {
        "application_name": "intervalq",
        "client_encoding": "UTF8",
        "connect_timeout": 2 if several else 5,  # seconds a host
        "target_session_attrs": "read-write" if several else "any",
        # A peer that went away without a word is noticed by whoever only listens.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        **given,
    }


async def _version(connection: Connection) -> int | None:
    """The version of the schema; None: there is none."""
    try:
        row = await (await connection.execute(_VERSION)).fetchone()
    except connection.Error as error:
        if error.sqlstate in _NO_SCHEMA:
            return None
        raise
    return row[0] if row else None


async def _is_pooled(connection: Connection) -> bool:
    """Whether something is between: a pooler makes up the process number that its clients get."""
    row = await (await connection.execute(b"select pg_backend_pid()")).fetchone()
    return row is None or row[0] != connection.info.backend_pid


def _answer(data: dict[str, Any]) -> Answer:
    """The answer that the function `intervalq.apply` gave."""
    state, first = data["state"], data["first"]
    return Answer(
        state=None if state is None else State.from_dict(state),
        now=data["now"],
        refused=data["refused"],
        healed=data["healed"],
        granted=tuple(data["granted"]),
        missed=tuple(data["missed"]),
        first=None if first is None else Slot(*first),
        count=data["count"],
        begun=data["begun"],
        woken=data["woken"],
    )


def _broken(queue: str) -> str:
    return (
        f"the record of queue {queue!r} is not one that intervalq wrote; it is left as it is: repair it, or "
        f"delete this row of intervalq.queues, and the queue begins anew"
    )


def _other_version(found: int | None) -> str:
    remedy = "upgrade intervalq here" if (found or 0) > SCHEMA else f"run the statements of {_FILE} (psql -f)"
    return f"schema intervalq has version {found}, this intervalq works with version {SCHEMA}: {remedy}"


def _advice(row: tuple[Any, ...], found: int | None, *, pooled: bool) -> list[tuple[str, str]]:
    """What the answer to `_LOOK` and the version of the schema mean."""
    _, server, number, replica, fsync, commit, isolation, oldest = row
    lines: list[tuple[str, str]] = []

    def check(fine: object, good: str, level: str, *bad: str) -> None:
        lines.append(("ok", good) if fine else (level, " ".join(bad)))

    good = f"the server is PostgreSQL {server}"
    check(number >= 140_000, good, "warning", f"{good}, this store is made for 14 and newer: upgrade it")
    bad = "the server is a replica, which takes no steps: give the URL of the primary"
    check(not replica, "the server is a primary", "error", bad)
    bad = "fsync is off: a crash of the server may destroy the records: set fsync = on"
    check(fsync != "off", "fsync is on", "warning", bad)
    check(
        commit != "off",
        f"synchronous_commit is {commit}",
        "warning",
        "synchronous_commit is off: a crash of the server loses the last steps, and jobs may then begin too",
        "early: alter role ... set synchronous_commit = on",
    )
    check(
        isolation == "read committed",
        f"transactions are {isolation}",
        "warning",
        f"transactions are {isolation}: steps at the same moment fail and are repeated:",
        "alter role ... set default_transaction_isolation = 'read committed'",
    )
    check(
        oldest <= _OLD,
        "no transaction is open for long, as far as this role may see",
        "warning",
        f"a transaction has been open for {oldest:.0f} s: vacuum can't clean up behind it, and steps get",
        "slower: end it (pg_stat_activity and pg_prepared_xacts show it)",
    )
    good = f"schema intervalq has version {found}" if found else "schema intervalq is made on first use"
    check(found in (None, SCHEMA), good, "error", _other_version(found))
    check(
        not pooled,
        "wake-ups get through",
        "warning",
        "a connection pooler is between, and wake-ups don't get through: shards see the end of a pause when",
        "they ask next; to have them at once, give the URL of the server itself",
    )
    return lines
