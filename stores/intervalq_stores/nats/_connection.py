"""One connection to a NATS, and the translation of the driver's errors."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from nats import errors as driver
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from intervalq.errors import (
    InsecureTransport,
    StoreError,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
)
from intervalq.store import stopwatch
from intervalq_stores._transport import TLSFault, fault_of, look_again
from intervalq_stores.nats._client import REMEDIES, QuickClient, QuickMsg, status
from intervalq_stores.nats._url import WITHIN, Headers


class NobodyThereError(StoreUnavailable):
    """There was no responder for the last message, so nothing was done."""


class Connection:
    """One connection, with one subscription for the answers to all requests."""

    def __init__(self, client: QuickClient) -> None:
        self._client = client
        self._inbox = f"_INBOX.{secrets.token_hex(10)}."
        self._waiting: dict[str, Callable[[Msg | None], None]] = {}
        self._requests: dict[str, tuple[str, asyncio.Future[Msg]]] = {}
        self._asked = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        self.ended_at: int | None = None
        """When it ended, on `stopwatch`."""
        self.denied = ""
        """The server's last message about permissions that this user lacks."""

    @classmethod
    async def connect(cls, url: str, options: dict[str, Any]) -> Connection:
        """Connect, with a single try: don't wait for an unreachable server."""
        client = QuickClient(secure="tls" in options)
        connection = cls(client)
        try:
            await client.connect(
                **options,
                name="intervalq",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,  # otherwise an attempt without an answer is repeated two seconds later
                connect_timeout=int(WITHIN),
                pending_size=0,  # nothing is buffered, because it would be sent after its caller has left
                error_cb=connection._heard,
                closed_cb=connection._closed,
                disconnected_cb=connection._closed,
            )
            inbox = await client.subscribe(f"{connection._inbox}*", cb=connection._answered)
            client.direct[inbox._id] = connection._came  # noqa: SLF001 - there is no other name for it
        except BaseException as error:
            await client.give_up()
            fault = await _fault(error, client, options)
            if fault is not None:
                raise InsecureTransport(url, str(fault)) from error
            if isinstance(error, Exception):
                raise translate_error(url, error, connection.denied) from error
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """Whether it can be used, as far as this process knows."""
        return self._client.is_connected and not self.ended.is_set()

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is established."""
        return self._client.is_encrypted

    @property
    def heard(self) -> int:
        """How many answers have arrived; recent ones show that the connection works."""
        return self._client.heard

    @property
    def version(self) -> str:
        """The version of the server."""
        return str(self._client._server_info.get("version", "?"))  # noqa: SLF001 - a parsed form of it only

    @property
    def process(self) -> str:
        """The id of the server's process, which differs after each start."""
        return str(self._client._server_info.get("server_id", ""))  # noqa: SLF001 - there is no other name

    @property
    def has_jetstream(self) -> bool:
        """Whether the server itself has streams, and doesn't only forward messages."""
        return bool(self._client._server_info.get("jetstream"))  # noqa: SLF001 - likewise

    async def request(
        self, subject: str, data: bytes = b"", headers: Headers | None = None, seconds: float | None = None
    ) -> Msg:
        """Send one message, and wait for its one answer.

        Raises:
            TimeoutError: none came within `seconds` (None: until the caller gives up).
            nats.errors.Error: the connection ended, there is no responder, or this user may not send it.
        """
        reply, answer = self.expect()
        self._requests[reply] = subject, answer
        try:
            self._client.put(subject, reply, data, headers)
            return await answered(answer, seconds)
        finally:
            del self._requests[reply]
            self.forget(reply)

    def expect(self) -> tuple[str, asyncio.Future[Msg]]:
        """An inbox for an answer, and the future that gets it; the caller must forget the inbox."""
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def came(message: Msg | None) -> None:
            if answer.done():
                return
            if message is None:
                fail(answer, driver.ConnectionClosedError())
            elif status(message) == "503":
                fail(answer, driver.NoRespondersError())
            else:
                answer.set_result(message)

        return self.listen(came), answer

    def listen(self, came: Callable[[Msg | None], None]) -> str:
        """Call a function with each message to the returned inbox; None: the connection ended."""
        self._asked += 1
        token = f"{self._asked:x}"
        self._waiting[token] = came
        if not self.is_open:
            came(None)
        return self._inbox + token

    def forget(self, reply: str) -> None:
        """Forget an inbox, which expects no more messages."""
        self._waiting.pop(reply[len(self._inbox) :], None)

    async def gather(self, subject: str, data: bytes, several: bool) -> list[Msg]:
        """Send one message, and collect its answers until the server marks the last one."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        found: list[Msg] = []

        def came(message: Msg | None) -> None:
            if done.done():
                return
            if message is None:
                fail(done, driver.ConnectionClosedError())
            elif (code := status(message)) == "503":
                fail(done, driver.NoRespondersError())
            elif code in ("204", "404"):  # the end of a batch; nothing found
                done.set_result(None)
            elif code is not None:
                fail(done, driver.Error(f"{code} {(message.headers or {}).get('Description')}"))
            else:
                found.append(message)
                if not several:
                    done.set_result(None)

        reply = self.listen(came)
        try:
            self._client.put(subject, reply, data, None)
            await done
        finally:
            self.forget(reply)
        return found

    def stored(self, stream: str, fields: dict[str, Any]) -> Msg:
        """A message from the API, in the form of one that was read directly."""
        head = base64.b64decode(fields.get("hdrs", "")).decode().rstrip("\r\n") or "NATS/1.0"
        more = {
            "Nats-Stream": stream,
            "Nats-Subject": fields["subject"],
            "Nats-Sequence": fields["seq"],
            "Nats-Time-Stamp": fields["time"],
        }
        raw = "".join([head, *(f"\r\n{name}: {value}" for name, value in more.items()), "\r\n\r\n"])
        data = base64.b64decode(fields.get("data", ""))
        return QuickMsg(self._client, fields["subject"], "", data, raw.encode())

    async def publish(
        self, subject: str, data: bytes = b"", reply: str = "", headers: Headers | None = None
    ) -> None:
        """Send a message, without an acknowledgement."""
        await self._client.publish(subject, data, reply, headers)

    def post(self, subject: str, data: bytes, reply: str) -> None:
        """Send a message at once, whose answers go to a subscription."""
        self._client.put(subject, reply, data, None)

    async def send(self, messages: Sequence[tuple[str, bytes, Headers]], seconds: float | None = None) -> Msg:
        """Send several messages in one piece, and wait for the answer to the last, as `request` does."""
        if max(len(data) for _, data, _ in messages) > self._client.max_payload:
            raise driver.MaxPayloadError
        reply, answer = self.expect()
        pieces: list[bytes] = []
        for number, (subject, data, headers) in enumerate(messages, 1):
            to = f" {reply}" if number == len(messages) else ""
            if headers:
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                head = f"NATS/1.0\r\n{lines}\r\n".encode()
                pieces.append(
                    f"HPUB {subject}{to} {len(head)} {len(head) + len(data)}\r\n".encode() + head + data
                )
            else:
                pieces.append(f"PUB {subject}{to} {len(data)}\r\n".encode() + data)
        pieces.append(b"")
        try:
            # The driver's own `publish` does this for each message, which would take most of the time.
            self._client.write(b"\r\n".join(pieces))
            return await answered(answer, seconds)
        finally:
            self.forget(reply)

    async def flush(self) -> None:
        """Wait until the server has read what was sent."""
        self._client.write(b"")  # the driver's ping would overtake data that its own task has yet to write
        # In a task of its own: the driver stops reading at the answer to a ping whose sender was cancelled.
        flush = asyncio.ensure_future(self._client.flush(timeout=int(WITHIN)))
        self._tasks.add(flush)
        flush.add_done_callback(self._flushed)
        await asyncio.shield(flush)

    def _flushed(self, flush: asyncio.Task[None]) -> None:
        self._tasks.discard(flush)
        if not flush.cancelled():
            flush.exception()  # the waiter has it

    async def private(self, came: Callable[[Msg], None]) -> tuple[Subscription, str]:
        """A separate subscription, for messages that keep their subjects."""

        async def call(message: Msg) -> None:
            came(message)

        self._asked += 1
        inbox = f"{self._inbox[:-1]}-{self._asked:x}"
        subscription = await self._client.subscribe(inbox, cb=call)
        self._client.direct[subscription._id] = came  # noqa: SLF001 - which distinguishes messages
        return subscription, inbox

    async def hear(self, some: Mapping[str, Callable[[Msg], None]]) -> bool:
        """Call functions with all messages of subjects from now on; return whether all are allowed."""
        denied, self.denied = self.denied, ""
        for subject, came in some.items():
            subscription = await self._client.subscribe(subject, cb=self._answered)
            self._client.direct[subscription._id] = came  # noqa: SLF001 - which distinguishes messages
        await self.flush()
        allowed, self.denied = not self.denied, denied
        return allowed

    async def leave(self, subscription: Subscription) -> None:
        """End a subscription that gets no more messages."""
        with suppress(driver.Error):
            await subscription.unsubscribe()
        self._client.direct.pop(subscription._id, None)  # noqa: SLF001 - see there

    async def withdraw(self, subscription: Subscription) -> None:
        """Unsubscribe at the server; messages that it has already sent are still received."""
        # The driver's own `unsubscribe` would drop messages in flight.
        await self._client._send_unsubscribe(subscription._id)  # noqa: SLF001
        await self.flush()
        await self.leave(subscription)

    def later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something in the background; if it fails, the connection has ended, or an answer was odd."""

        async def do() -> None:
            with suppress(Exception):
                await work

        task = asyncio.ensure_future(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @asynccontextmanager
    async def subscribed(self, subject: str, came: Callable[[Msg], None]) -> AsyncIterator[Subscription]:
        """Call a function with each message of a subject."""

        async def call(message: Msg) -> None:
            came(message)

        subscription = await self._client.subscribe(subject, cb=call)
        try:
            await self.flush()
            yield subscription
        finally:
            with anyio.CancelScope(shield=True), suppress(Exception):  # the connection may have ended
                await subscription.unsubscribe()

    async def close(self) -> None:
        """Close the connection; waiting callers get an error."""
        if self._tasks:
            _, undone = await asyncio.wait(self._tasks, timeout=1.0)
            for task in undone:
                task.cancel()
        with suppress(Exception):
            await self._client.close()
        await self._closed()

    async def _answered(self, message: Msg) -> None:
        self._came(message)

    def _came(self, message: Msg) -> None:
        came = self._waiting.get(message.subject[len(self._inbox) :])
        if came is not None:
            came(message)

    async def _heard(self, error: Exception) -> None:
        text = str(error).lower()
        if "permissions violation" in text:
            self.denied = str(error).removeprefix("nats: ")
            for subject, answer in self._requests.values():  # which get no answer
                if f'"{subject.lower()}"' in text and not answer.done():
                    fail(answer, error)

    async def _closed(self) -> None:
        self.ended.set()
        self.ended_at = stopwatch() if self.ended_at is None else self.ended_at
        for came in list(self._waiting.values()):
            came(None)


async def _fault(error: BaseException, client: QuickClient, options: Mapping[str, Any]) -> TLSFault | None:
    """The TLS fault for which a client could not connect; None: something else was wrong."""
    fault = error if isinstance(error, TLSFault) else fault_of(error, REMEDIES)
    cut = isinstance(error, ConnectionResetError | BrokenPipeError | driver.ConnectionClosedError)
    server = client._current_server  # noqa: SLF001 - there is no other name for it
    if fault is None and cut and "tls" in options and server is not None:
        host, port = server.uri.hostname or "", server.uri.port or 4222
        fault = await look_again(host, port, options["tls"], REMEDIES, after_hello=True)
    return fault


async def answered(answer: asyncio.Future[Msg], seconds: float | None) -> Msg:
    """The answer, if it comes within `seconds` (None: no limit); cheaper than a context with a time limit."""
    if seconds is None:
        return await answer
    timer = asyncio.get_running_loop().call_later(seconds, expire, answer)
    try:
        return await answer
    finally:
        timer.cancel()


def expire(answer: asyncio.Future[Any]) -> None:
    """Fail the wait for an answer with a timeout."""
    if not answer.done():
        fail(answer, TimeoutError())


def fail(answer: asyncio.Future[Any], error: Exception) -> None:
    """Fail the wait for an answer. If nobody waits any more, the event loop must not log the error."""
    answer.set_exception(error)
    answer.exception()


def translate_error(store: str, error: Exception, denied: str = "") -> StoreError:
    """The store's error for one of the driver. An unknown one doesn't tell whether a step was done."""
    text = str(error).removeprefix("nats: ") or type(error).__name__
    kind: type[StoreError] = StoreUnavailable
    why = f"the server can't be reached or did not answer (does it run, at this address?): {text[:200]}"
    if isinstance(error, StoreError):
        return error
    if denied:
        kind, why = Unauthorized, f"the server forbids it ({denied[:200]}): allow it for this user"
    elif isinstance(error, driver.AuthorizationError) or "authorization" in text.lower():
        kind, why = Unauthorized, "the server refuses the user, password, token or credentials"
    elif isinstance(error, driver.MaxPayloadError):
        kind = StoreFull
        why = "the message is larger than the server's max_payload: raise that, or send less"
    elif isinstance(error, TimeoutError):
        kind, why = StoreTimeout, f"no answer within {WITHIN:g} s"
    elif isinstance(error, driver.NoRespondersError):
        kind = NobodyThereError
        why = "JetStream doesn't answer: it isn't enabled (nats-server -js), or has no leader at the moment"
    return kind(store, why)
