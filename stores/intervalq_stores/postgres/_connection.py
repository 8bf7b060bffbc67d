"""Connections of stores on PostgreSQL, and the translation of errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from intervalq.errors import (
    BackendUnsupported,
    CorruptState,
    InsecureTransport,
    IntervalqError,
    InvalidOption,
    MissingExtra,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    VersionMismatch,
    short,
)
from intervalq.store import shown_url
from intervalq_stores._transport import warn_of_password
from intervalq_stores.postgres._schema import Schema, statements
from intervalq_stores.postgres._tls import MODES, REMEDY, fault, may_show_password, settings

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.abc import PQGen

    Connection = AsyncConnection[tuple[Any, ...]]

T = TypeVar("T")

ROLLED_BACK: Final = frozenset({"40001", "40P01"})  # nothing was done: the only errors after which to retry
NO_SCHEMA: Final = frozenset({"3F000", "42P01", "42883"})  # no such schema, table, or function
_EXTRA: Final = "a postgresql:// store", "postgres"
_URL: Final = re.compile(
    r"postgres(?:ql)?://(?:[^@/]*@)?"
    r"(?:\[[^\]]*\]|[^\[:/?,@]*)(?::[0-9]*)?(?:,(?:\[[^\]]*\]|[^\[:/?,@]*)(?::[0-9]*)?)*"
    r"(?:/[^?@]*)?(?:\?(?:[a-z_]+=[^&=]*(?:&|$))*)?"
)
"""A rough check of URLs; libpq, which knows the names of parameters, makes the full check at first use."""

_MODE: Final = re.compile(r"[?&]sslmode=([^&]*)")

_ESCAPED: Final = re.compile(r"(?:[^%]|%(?!00)[0-9A-Fa-f]{2})*")
_ADDRESS: Final = (
    "the URL of a PostgreSQL store is postgresql://user:password@host:port/database, where "
    "characters such as / @ : # ? of user and password are written as %2F %40 %3A %23 %3F"
)
_LOCK: Final = b"select pg_advisory_xact_lock(7310027118246817121)"  # that of the files
_THERE: Final = b"select to_regclass(%s) is not null"
_KINDS: Final[dict[str, type[StoreError]]] = {
    "57014": StoreTimeout,  # statement_timeout, or somebody cancelled it
    "55P03": StoreTimeout,  # lock_timeout
    "25006": StoreReadOnly,
    "53100": StoreFull,
    "42501": Unauthorized,
    "IQ001": CorruptState,
    "IQ002": VersionMismatch,
}
# Texts and numbers that the server can't hold.
_UNFIT: Final = frozenset({"22003", "22021", "22P02", "22P05", "54000"})
# libpq reports no SQLSTATE for a refused connection, only text: its own, or the server's, which
# is expected to be in English.
_NO_DATABASE: Final = re.compile(r'database ".*" does not exist')
"""What an English server says of a database that is not there; without a connection there is no code."""

_REFUSALS: Final = ("authentication", "pg_hba.conf", "no password supplied", "no such user", 'role "')
_PASSING: Final = ("too many connections", "due to timeout")  # may mention a role or an authentication
_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class Server:
    """The access to one server, with one part of the schema."""

    def __init__(self, url: str, schema: Schema) -> None:
        if find_spec("psycopg") is None:
            raise MissingExtra(*_EXTRA)
        if not (_URL.fullmatch(url) and _ESCAPED.fullmatch(url)):
            raise InvalidOption(_ADDRESS)
        if (mode := _MODE.search(url)) is not None and mode[1] not in MODES:
            raise InvalidOption(f"sslmode is one of {', '.join(MODES)}, not {short(mode[1])}")
        self._address = url
        self.url = shown_url(url)
        self.schema = schema
        self._was_connected = False

    @property
    def driver(self) -> type[Connection]:
        """The driver's connection class. `connect` has imported it before anything can fail."""
        return driver()

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a connection."""
        return parameters(self._address)

    async def within(
        self, call: Awaitable[T], patience: float, explain: Callable[[Exception], StoreError] | None = None
    ) -> T:
        """The result of `call`, with a timeout, and with errors translated into those of a store."""
        try:
            with self.translated(patience, explain), anyio.fail_after(patience):
                return await call
        except BackendUnsupported:
            if asyncio.iscoroutine(call):
                call.close()
            raise

    @contextmanager
    def translated(
        self, patience: float, explain: Callable[[Exception], StoreError] | None = None
    ) -> Iterator[None]:
        """Raise errors of the driver as those of a store; `patience` is the time limit inside, in seconds."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise BackendUnsupported(
                self.url,
                "its driver psycopg runs on asyncio only: use asyncio; under trio, use a SQLite database "
                "(sqlite://), a JSON file (file://) or memory://",
            ) from None
        try:
            with self.expected():
                yield
        except TimeoutError as error:
            raise StoreTimeout(self.url, f"no answer within {patience:g} s") from error
        except (self.driver.Error, OSError) as error:
            raise (explain or self.error)(error) from error

    @contextmanager
    def expected(self) -> Iterator[None]:
        """A context that reads answers, which anything may have sent that listens there.

        Raises:
            CorruptState: one of them has another form.
            UnicodeEncodeError: what was to be sent is not Unicode.
        """
        try:
            yield
        except (IntervalqError, UnicodeEncodeError):
            raise
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            raise CorruptState(
                self.url, "an answer of the server can't be read: is this a PostgreSQL?"
            ) from error

    async def connect(self) -> Connection:
        """A new connection."""
        if not driver.cache_info().currsize:  # the import is slow, and would block the event loop
            await anyio.to_thread.run_sync(driver, limiter=anyio.CapacityLimiter(1))
        # No prepared statements, and nothing that outlives a transaction, because a pooler may switch to
        # another connection after each one.
        try:
            connection = await self.driver.connect(autocommit=True, prepare_threshold=None, **self.parameters)
        except self.driver.OperationalError as error:
            if (why := await fault(error, had_files=self._was_connected)) is not None:
                raise InsecureTransport(self.url, str(why)) from error
            raise
        self._was_connected = True
        if connection.pgconn.used_password and may_show_password(settings(connection.pgconn)):
            warn_of_password(self.url, REMEDY)
        return connection

    async def open(self, *, whole: bool = True) -> Connection:
        """A new connection to a schema of our version, which is created or upgraded if needed."""
        connection = await self.connect()
        try:
            found = await self.version(connection)
            if self._old(found) or (found == self.schema.number and not whole):
                # If nothing is left, the first process creates all of it. A second creation would disturb
                # those who already use it.
                found = await self._make(connection, whole=whole or found is None)
        except BaseException:
            await connection.close()
            raise
        if found == self.schema.number:
            return connection
        await connection.close()
        raise VersionMismatch(self.url, self.schema.other(found))

    def _old(self, found: int | None) -> bool:
        return found is None or found < self.schema.number

    async def _make(self, connection: Connection, *, whole: bool) -> int | None:
        # Processes that begin at the same moment wait here; all but the first one then have nothing to do.
        await connection.execute(b"begin")
        await connection.execute(_LOCK)
        [(there,)] = await (await connection.execute(_THERE, (self.schema.table,))).fetchall()
        if not whole or not there or self._old(await self.version(connection)):
            await connection.execute(statements(self.schema.name).encode())  # which commit
        else:
            await connection.execute(b"commit")
        return await self.version(connection)

    async def version(self, connection: Connection) -> int | None:
        """The version of the schema; None: there is none."""
        try:
            row = await (await connection.execute(self.schema.asked)).fetchone()
        except connection.Error as error:
            if error.sqlstate in NO_SCHEMA:
                return None
            raise
        return row[0] if row else None

    def error(self, error: Exception) -> StoreError:
        """The store's error for one of the driver. An unknown error is ambiguous, so it means unavailable."""
        code = sqlstate(error)
        message = self.message(error)
        if code == "42501":
            message += (
                f"; let an administrator run {self.schema.file} (psql -f) and grant this role the rights"
            )
            message += " that the head of that file lists"
        if not code and _NO_DATABASE.search(message):
            message += "; create it (createdb), or correct the name in the URL"
        if code == "IQ002":
            message += "; upgrade intervalq here"
        refused = any(word in message for word in _REFUSALS) and not any(word in message for word in _PASSING)
        if code.startswith("28") or (not code and refused):
            remedy = REMEDY if "no encryption" in message else "check user and password in the URL"
            return Unauthorized(self.url, f"{message}; {remedy}")
        unknown = StoreTimeout if "timeout expired" in message else StoreUnavailable
        return _KINDS.get(code, unknown)(self.url, f"{message} ({code})" if code else message)

    def error_of_values(self, error: Exception, numbers: str) -> StoreError:
        """Like `error`, if values may be the reason: those that the server can't hold never pass.

        Args:
            error: one of the driver, or of encoding a text.
            numbers: the bound of all numbers, as the message says it.
        """
        code = sqlstate(error)
        of_text = not code and isinstance(error, (self.driver.DataError, UnicodeEncodeError))
        if code not in _UNFIT and not of_text:
            return self.error(error)
        remedy = f"omit the character U+0000 and lone surrogates, and keep numbers below {numbers}"
        return StoreError(self.url, f"{self.message(error)}; nothing was done: {remedy}")

    def message(self, error: Exception) -> str:
        """The message of the server or the driver, without secrets."""
        diagnosis = getattr(error, "diag", None)
        message = " ".join(((diagnosis and diagnosis.message_primary) or str(error)).split())
        for secret in (self.parameters.get(name) for name in _SECRETS):
            message = message.replace(str(secret), "***") if secret else message
        return message


def sqlstate(error: Exception) -> str:
    """The code of an error of the server, or an empty text."""
    return getattr(error, "sqlstate", None) or ""


@cache
def driver() -> type[Connection]:
    """The driver's connection class, but cancelled at once: its own asks the server to cancel, and waits."""
    try:
        from psycopg import AsyncConnection, waiting  # noqa: PLC0415 - an optional part
    except ImportError as error:
        raise MissingExtra(*_EXTRA) from error

    class Impatient(AsyncConnection[tuple[Any, ...]]):
        async def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:  # noqa: ARG002
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)

    return Impatient


def parameters(url: str) -> dict[str, Any]:
    """The parameters of a connection: ours, unless the URL sets them."""
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415 - an optional part

    given: dict[str, Any] = {}
    try:
        given = conninfo.conninfo_to_dict(url)
        numeric = all(port.isdigit() for port in str(given.get("port", 0)).split(","))
    except (ProgrammingError, ValueError):  # its message may contain the password; or it is not UTF-8
        numeric = False
    if not numeric or "@" in str(given.get("dbname", "")):
        raise InvalidOption(_ADDRESS) from None
    several = "," in str(given.get("host", ""))
    return {
        "application_name": "intervalq",
        "client_encoding": "UTF8",
        "connect_timeout": 2 if several else 5,  # seconds per host
        "target_session_attrs": "read-write" if several else "any",
        # A connection that only listens must notice a peer that vanished silently.
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        **given,
    }


async def is_pooled(connection: Connection) -> bool:
    """Whether a pooler is in between: it invents the process number that its clients get."""
    row = await (await connection.execute(b"select pg_backend_pid()")).fetchone()
    return row is None or row[0] != connection.info.backend_pid
