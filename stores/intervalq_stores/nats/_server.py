"""A store's access to a NATS with JetStream: requests with a timeout, sent once, and translated errors.

The connection is created when it is first needed. A broken one isn't repaired, but replaced by the next call,
so nothing is sent after its caller has given up, and no subscription outlives the server that knew it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import anyio

from intervalq.errors import (
    BackendUnsupported,
    CorruptState,
    IntervalqError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnsupportedOperation,
)
from intervalq.store import shown_url, stopwatch
from intervalq_stores.nats._url import WITHIN, Headers, made_by, options_of, rights, warn_of_login, way

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from intervalq_stores.nats._connection import Connection

Body: TypeAlias = Mapping[str, Any]
A = TypeVar("A")

_CONNECTION: Final = "intervalq_stores.nats._connection"
"""The module that imports the driver, which may be slow."""

_PLACE: Final = 0.1
"""Seconds before repeating a request for a stream or consumer that can't be placed yet."""

_AGAIN: Final = 1.5
"""Seconds after which a message with an id that has no answer yet is sent once more."""

# What the error codes of JetStream mean.
_NO_LEADER: Final = 10008
_UNAVAILABLE: Final = frozenset({_NO_LEADER, 10009, 10118})  # no leader, no quorum, shutting down ...
_NO_PLACE: Final = frozenset({10005, 10023, _NO_LEADER})  # no peers or room: also while a cluster begins
_FULL: Final = frozenset({10023, 10028, 10047, 10054, 10122})
_NO_REPLICAS: Final = 10074
_NOT_ENABLED: Final = frozenset({10035, 10039, 10076})
_NO_STREAM: Final = frozenset({10059})
_NAME_IN_USE: Final = 10058
_NO_MESSAGE: Final = 10037
_NO_ROOM_MESSAGES: Final = re.compile("maximum (messages|bytes) exceeded")


def running_loop(store: str) -> asyncio.AbstractEventLoop:
    """The event loop of the caller.

    Raises:
        BackendUnsupported: it isn't asyncio's.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise BackendUnsupported(
            store,
            "its driver nats-py runs on asyncio only: use asyncio; under trio, use a SQLite database "
            "(sqlite://), a JSON file (file://) or memory://",
        ) from None


async def _load() -> None:
    """Import the driver, before a time limit begins: on a busy machine, this alone may take longer."""
    if not hasattr(sys.modules.get(_CONNECTION), "Connection"):  # it may be half imported, by another thread
        await anyio.to_thread.run_sync(import_module, _CONNECTION, limiter=anyio.CapacityLimiter(1))


class NoPlaceError(StoreUnavailable):
    """No server has room for a stream or consumer at the moment, or the cluster has no leader."""


class Refused(Exception):
    """JetStream refuses a request."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Stored(NamedTuple):
    """The acknowledgement of a message."""

    sequence: int
    value: int | None
    """The value of a counter; None: it isn't one, or this is a repeated message."""
    duplicate: bool
    """Whether a message with this id already existed; `sequence` is that of the first."""
    sent: int
    received: int
    """When the answer arrived, on `stopwatch`: it was stored between `sent` and this."""


class Server:
    """The connection of a store, which is bound to no event loop before the first call."""

    def __init__(self, url: str) -> None:
        self.url = shown_url(url)
        self.made = made_by(url)
        self._options = options_of(url)
        self._address = url
        warn_of_login(url, self.url)
        self._connection: Connection | None = None
        self._connecting = anyio.Lock(fast_acquire=True)

    async def connection(self) -> Connection:
        """The connection, created now if there is none."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                await _load()
                from intervalq_stores.nats._connection import Connection  # noqa: PLC0415 - just loaded

                self._connection = await Connection.connect(self.url, self._options)
            return self._connection

    async def safety(self) -> list[tuple[str, str]]:
        """Ratings of the connection to the server, and of the rights of this user."""
        connection = await self.connection()
        answer: Body = {}
        with suppress(Exception):  # a user without this right has few rights
            answer = json.loads((await connection.request("$SYS.REQ.USER.INFO", seconds=1.0)).data)["data"]
        return [way(self._address, encrypted=connection.is_encrypted), rights(answer)]

    async def close(self) -> None:
        """Close the connection."""
        connection = self._connection
        if connection is not None:
            # Background work must end with this connection, and not create a new one.
            await connection.close()
        if self._connection is connection:
            self._connection = None

    @asynccontextmanager
    async def bounded(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Limit the time of the code inside, and translate its errors into those of stores."""
        running_loop(self.url)
        await _load()
        connection = self._connection
        heard = connection.heard if connection is not None else 0
        try:
            async with asyncio.timeout(WITHIN if seconds is None else seconds):
                yield
        except (IntervalqError, Refused):
            raise
        except Exception as error:
            raise await self._trouble(error, connection, heard) from error

    @contextmanager
    def expected(self) -> Iterator[None]:
        """A context that reads answers, which anything may have sent that listens there.

        Raises:
            CorruptState: one of them has another form.
            StoreError: JetStream refuses something for a reason that this version doesn't know; or what was
                to be sent is not Unicode.
        """
        try:
            yield
        except IntervalqError:
            raise
        except Refused as refused:
            raise StoreError(self.url, f"JetStream refuses it: {refused}") from refused
        except UnicodeEncodeError as error:
            raise StoreError(self.url, f"{error}; nothing was done: omit that value") from error
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError) as error:
            raise CorruptState(
                self.url, "an answer of the server can't be read: is this a NATS with JetStream?"
            ) from error

    async def guarded(self, connection: Connection, work: Awaitable[A]) -> A:
        """The result of a call that has its own timeout, with errors translated into those of stores."""
        heard = connection.heard
        try:
            return await work
        except IntervalqError:
            raise
        except Exception as error:
            raise await self._trouble(error, connection, heard) from error

    async def _trouble(self, error: Exception, connection: Connection | None, heard: int) -> StoreError:
        late = connection is not None and isinstance(error, TimeoutError) and connection.heard == heard
        if connection is not None and late and not connection.denied:  # a forbidden request has no answer
            await self._drop(connection)
        return self._error(error, self._connection)

    def _error(self, error: Exception, connection: Connection | None) -> StoreError:
        from intervalq_stores.nats._connection import translate_error  # noqa: PLC0415 - needs the extra

        return translate_error(self.url, error, connection.denied if connection is not None else "")

    async def _drop(self, connection: Connection) -> None:
        """Drop a connection that was silent during the whole wait: whatever is wrong, a new one is better."""
        if self._connection is connection:
            self._connection = None
        await connection.close()

    async def ask(  # in any case
        self, subject: str, body: Body | None = None, no_place: Container[int] = ()
    ) -> Any:  # noqa: ANN401
        """Send a request to the API of JetStream, and return its answer; `no_place` as for `read`.

        Raises:
            Refused: JetStream refuses it.
            StoreError: any other failure.
        """
        async with self.bounded():
            connection = await self.connection()
            text = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
            return self.read((await connection.request(f"$JS.API.{subject}", text)).data, no_place)

    async def place(self, subject: str, body: Body) -> Any:  # noqa: ANN401 - any JSON
        """Create a stream or consumer, and wait a while for a cluster that has no place for it.

        Raises:
            Refused, StoreError: as for `ask`.
        """
        end = stopwatch() + round(WITHIN * 1e6)
        while True:
            try:
                return await self.ask(subject, body, _NO_PLACE)
            except NoPlaceError:
                if stopwatch() >= end:
                    raise
                await anyio.sleep(_PLACE)

    async def publish(self, subject: str, headers: Headers, data: bytes = b"") -> Stored:
        """Store a message. With `Nats-Msg-Id` it may be sent twice, but is stored only once.

        Raises:
            Refused: by a limit or an expectation; nothing was stored.
            StoreTimeout: no answer; it may have been stored.
        """
        again = "Nats-Msg-Id" in headers
        running_loop(self.url)
        await _load()
        first = sent = stopwatch()
        while True:
            connection, heard = self._connection, -1
            try:
                left = WITHIN - (sent - first) / 1e6
                if connection is None or not connection.is_open:
                    async with asyncio.timeout(left):
                        connection = await self.connection()
                    sent = stopwatch()
                heard = connection.heard
                answer = await connection.request(
                    subject, data, headers, min(left, _AGAIN) if again else left
                )
            except StoreError:
                raise
            except Exception as error:
                if connection is not None and isinstance(error, TimeoutError) and connection.heard == heard:
                    await self._drop(connection)
                if not again:
                    raise self._error(error, connection) from error
                again, sent = False, stopwatch()
                continue
            received = stopwatch()
            reply = self.read(answer.data)
            value, duplicate = reply.get("val"), bool(reply.get("duplicate"))
            counted = None if value is None else int(value)
            return Stored(reply["seq"], counted, duplicate, first if duplicate else sent, received)

    async def messages(self, stream: str, body: Body) -> list[Msg]:
        """Read the stored messages that `body` describes directly; there may be none.

        With `batch` there may be several; the last one says how many are left.
        """
        async with self.bounded():
            connection = await self.connection()
            return await connection.gather(
                f"$JS.API.DIRECT.GET.{stream}",
                json.dumps(body).encode(),
                "batch" in body or "multi_last" in body,
            )

    async def message(self, stream: str, body: Body) -> Msg | None:
        """Read a stored message from the leader of its stream; None: it doesn't exist."""
        try:
            stored = (await self.ask(f"STREAM.MSG.GET.{stream}", body))["message"]
        except Refused as refused:
            if refused.code == _NO_MESSAGE:
                return None
            raise
        return (await self.connection()).stored(stream, stored)

    async def ensure(self, config: Body, needed: Sequence[str], why: str) -> Any:  # noqa: ANN401 - the server's info
        """Create a stream, or check the existing one of this name; returns the server's info about it.

        Args:
            config: the configuration of a new stream. An existing one may have other storage, replicas and
                limits.
            needed: fields of the configuration that must be as given.
            why: the purpose of the stream, for errors.

        Raises:
            UnsupportedOperation: the server has no such streams.
            StoreError: the existing stream has another configuration.
        """
        name = config["name"]
        try:
            made = await self.place(f"STREAM.CREATE.{name}", {**config, **self.made.stream})
        except Refused as refused:
            if refused.code != _NAME_IN_USE:
                raise self._cannot_make(name, refused, why) from refused
            made = await self.ask(f"STREAM.INFO.{name}")
        if wrong := [field for field in needed if made["config"].get(field) != config[field]]:
            raise UnsupportedOperation(
                self.url,
                f"stream {name!r} has no {', '.join(wrong)}, which {why} needs: this server is NATS "
                f"{self._version()}, and 2.14 or newer is needed; if it is new enough, another program "
                "created the stream: remove it",
            )
        return made

    def _cannot_make(self, name: str, refused: Refused, why: str) -> StoreError:
        if refused.code == _NO_REPLICAS:
            return UnsupportedOperation(
                self.url, "a server without a cluster has no replicas: omit replicas= in the URL"
            )
        return UnsupportedOperation(
            self.url,
            f"stream {name!r}, which {why} needs, can't be created ({refused}): this server is NATS "
            f"{self._version()}, and 2.14 or newer with JetStream is needed",
        )

    def _version(self) -> str:
        return self._connection.version if self._connection is not None else "?"

    def read(self, answer: bytes, no_place: Container[int] = ()) -> Any:  # noqa: ANN401 - any JSON
        """Parse an answer of JetStream; the codes `no_place` mean that there is no place at the moment.

        Raises:
            Refused: an error that the caller may understand.
            StoreError: an error with the same meaning for everybody.
        """
        try:
            reply: Any = json.loads(answer.decode())
        except (ValueError, RecursionError):
            raise StoreUnavailable(
                self.url, f"the server's answer is not one of JetStream: {answer[:60]!r}"
            ) from None
        error = reply.get("error")
        if error is None:
            return reply
        code, text = error.get("err_code", 0), str(error.get("description", error.get("code")))
        if code in _UNAVAILABLE or code in _NO_STREAM:
            kind = NoPlaceError if code in no_place else StoreUnavailable
            raise kind(self.url, f"JetStream can't answer just now: {text}")
        if code in no_place:
            raise NoPlaceError(
                self.url,
                f"no server of the cluster has room for it at the moment, or placement excludes all: {text}",
            )
        if code in _FULL or _NO_ROOM_MESSAGES.search(text):
            raise StoreFull(self.url, f"the server can't store more: {text}")
        if code in _NOT_ENABLED:
            raise UnsupportedOperation(
                self.url, f"the server has no JetStream for this account ({text}): enable it"
            )
        raise Refused(code, text)
