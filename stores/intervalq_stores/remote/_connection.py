"""Channels to the hosts of a service: each step is sent once, to the host that answered last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import grpc
import grpc.aio

from intervalq._wire.failures import error_of
from intervalq._wire.intervalq_v1_pb2 import Result, Step, Subject, Wakeup
from intervalq._wire.values import MalformedValue
from intervalq._wire.verbs import MAX_ANSWER, VERSION
from intervalq.errors import (
    InsecureTransport,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    UnsupportedOperation,
)
from intervalq.store import stopwatch
from intervalq_stores._transport import Remedies, look_again
from intervalq_stores.remote._url import Where

Trip: TypeAlias = tuple[int, int]

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),  # a store never sends a command twice by itself
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_http_proxy", 0),  # it would get the token, even of a service on this machine
)
_NOT_SENT: Final = ("failed to connect to all addresses", "DNS resolution failed", "empty address list")
"""How gRPC begins to say that it has no connection, so that a command can't have been sent."""
_PASSING: Final = (
    "dns resolution failed",
    "handshake read failed",
    "handshake write failed",
    "alert_internal",
)
"""What it says, in lower case, of a host that is away, or ends while a connection is made."""
_CUT: Final = ("socket closed", "connection reset", "broken pipe")
"""What it says, in lower case, of a host that ended a connection at once."""
_REMEDIES: Final = Remedies(
    authority="tls_ca=PATH",
    own="tls_cert=PATH and tls_key=PATH",
    plain="omit the tls_ options and write intervalq:// for clear text",
    tls="begin it with intervalqs://",
)
_FAULTS: Final = {
    "hostname verification": "the server's certificate is for another host: use the host name of the "
    "certificate in the URL, or issue a new one",
    "expired": "the server's certificate has expired: renew it, or set the clock of this machine",
    "not yet valid": "the server's certificate isn't valid yet: set the clock of this machine",
    **dict.fromkeys(
        ("alert_certificate", "alert_bad_certificate", "alert_unknown_ca"),
        "the server refuses the client's certificate, or demands one: give one that it accepts with "
        f"{_REMEDIES.own}",
    ),
    "certificate_verify_failed": "the server's certificate is from an unknown authority: give the "
    f"certificate file of its authority with {_REMEDIES.authority}",
    "wrong_version_number": "the server uses clear text there, or something on the network has removed TLS: "
    f"enable TLS on the server, or {_REMEDIES.plain}",
    **dict.fromkeys(("ssl", "tls", "certificate"), "server and client can't agree on it"),
}
"""What gRPC says of failed TLS, and what it means."""
_CODE: Final = grpc.StatusCode
_MAX_WAKEUPS: Final = 10_000


class Connection:
    """A channel for each host, opened when it is first needed."""

    def __init__(self, where: Where, url: str) -> None:
        self._where, self._url = where, url
        self._hosts = deque(where.hosts)
        """The one that answered last comes first."""
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._metadata = () if where.token is None else (("authorization", f"Bearer {where.token}"),)

    async def apply(
        self, kind: str, name: str, command: bytes, *, known: bytes, now: int | None, patience: float
    ) -> tuple[bytes, Trip]:
        """The answer to a command, and when it was sent and the answer arrived.

        A host to which there is no connection has not got the command, so the next one is asked.

        Raises:
            StoreTimeout: no answer came; the step may have been done.
            StoreUnavailable: no host can be reached.
            Unauthorized, InsecureTransport, StoreError: as for other stores.
            DependencyError, InboxFull: the service's store says so.
        """
        step = Step(version=VERSION, kind=kind, name=name, command=command, known=known, now=now)
        end = asyncio.get_running_loop().time() + patience
        hosts = tuple(self._hosts)
        for host in hosts:
            verb = self._channel(host).unary_unary(
                "/intervalq.v1.Store/Apply",
                request_serializer=Step.SerializeToString,
                response_deserializer=Result.FromString,
            )
            sent = stopwatch()
            try:
                within = max(0.0, end - asyncio.get_running_loop().time())
                result: Result = await verb(step, timeout=within, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                if self._leaves(host, error) and host != hosts[-1]:
                    continue
                raise await self._error(host, error) from error
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise StoreTimeout(self._url, "the store was closed meanwhile") from error  # by `aclose`
            return self._answer(result), (sent, stopwatch())
        raise AssertionError("unreachable")  # the last host has answered or failed

    @asynccontextmanager
    async def listening(
        self, kind: str, name: str, patience: float
    ) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        """Listen for wake-ups. The context gives a function that waits for the next one."""
        host = self._hosts[0]
        stream = self._channel(host).unary_stream(
            "/intervalq.v1.Store/Listen",
            request_serializer=Subject.SerializeToString,
            response_deserializer=Wakeup.FromString,
        )
        call = stream(Subject(version=VERSION, kind=kind, name=name), metadata=self._metadata)
        heard: deque[bytes] = deque()
        began, news = asyncio.Event(), asyncio.Event()

        async def read() -> None:  # in a task of its own: a read that is cancelled ends the whole stream
            try:
                async for wakeup in call:
                    if began.is_set() and (wakeup.handed or not heard or heard[-1]):
                        heard.append(wakeup.handed)
                        news.set()
                    began.set()
                    if len(heard) > _MAX_WAKEUPS:
                        break
            finally:
                began.set()
                news.set()

        reading = asyncio.ensure_future(read())

        async def woken() -> bytes:
            while not heard:
                if reading.done():
                    await self._fail(host, reading)
                news.clear()
                await news.wait()
            return heard.popleft()

        try:
            try:
                async with asyncio.timeout(patience):
                    await began.wait()
            except TimeoutError as error:
                self._leave(host)
                raise StoreUnavailable(self._url, "the service doesn't say that it listens") from error
            if reading.done():
                await self._fail(host, reading)
            yield woken
        finally:
            call.cancel()
            reading.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await reading

    async def aclose(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def _channel(self, host: str) -> grpc.aio.Channel:
        if host not in self._channels:
            where = self._where
            if where.has_tls:
                credentials = grpc.ssl_channel_credentials(*where.pems())
                self._channels[host] = grpc.aio.secure_channel(host, credentials, options=_OPTIONS)
            else:
                self._channels[host] = grpc.aio.insecure_channel(host, options=_OPTIONS)
        return self._channels[host]

    def _answer(self, result: Result) -> bytes:
        if result.HasField("answer"):
            return result.answer
        try:
            raise error_of(result.failure, self._url)
        except MalformedValue as error:
            raise StoreError(self._url, f"the service's answer is malformed: {error}") from error

    def _leave(self, host: str) -> None:
        """Ask the next host from now on, unless another call has decided so already."""
        if self._hosts[0] == host:
            self._hosts.rotate(-1)

    def _leaves(self, host: str, error: grpc.aio.AioRpcError) -> bool:
        """Leave a host that can't be used after an error; whether the command was certainly not sent."""
        code, text = error.code(), error.details() or ""
        if code in {_CODE.UNAVAILABLE, _CODE.DEADLINE_EXCEEDED, _CODE.CANCELLED}:
            self._leave(host)
        return code == _CODE.UNAVAILABLE and text.startswith(_NOT_SENT)

    async def _fail(self, host: str, reading: asyncio.Future[None]) -> None:
        """Raise what ended a stream."""
        error = reading.exception()
        if isinstance(error, grpc.aio.AioRpcError):
            self._leaves(host, error)
            raise await self._error(host, error) from error
        raise StoreUnavailable(self._url, "the service has ended its wake-ups") from error

    async def _unreachable(self, host: str, text: str) -> StoreError:
        """The error of a host to which there is no connection, given what gRPC says."""
        has_tls = self._where.has_tls
        said_all = text.lower()
        may_be_fault = has_tls and not any(said in said_all for said in _PASSING)
        why = next((why for said, why in _FAULTS.items() if may_be_fault and said in said_all), None)
        if why is not None:
            return InsecureTransport(
                self._url, f"TLS is required and failed, and no token was sent: {why} ({text[:300]})"
            )
        text = f"no service answers: {text[:300]}"
        if any(said in text.lower() for said in _CUT):
            name, _, port = host.rpartition(":")
            fault = None if has_tls else await look_again(name.strip("[]"), int(port), None, _REMEDIES)
            if fault is not None:
                return InsecureTransport(self._url, f"{fault}; no token was sent")
            if has_tls:  # a service that refuses a client's certificate doesn't say so
                text += (
                    f"; if it demands a client's certificate, give one that it accepts with {_REMEDIES.own}"
                )
        return StoreUnavailable(self._url, text)

    async def _error(self, host: str, error: grpc.aio.AioRpcError) -> StoreError:
        code, text = error.code(), error.details() or ""
        if code == _CODE.UNAVAILABLE and text.startswith(_NOT_SENT):
            return await self._unreachable(host, text)
        if code in {_CODE.UNAUTHENTICATED, _CODE.PERMISSION_DENIED}:
            return Unauthorized(self._url, text)
        if code == _CODE.UNIMPLEMENTED:
            return UnsupportedOperation(
                self._url, text or "the service doesn't know intervalq.v1: upgrade it"
            )
        if code in {_CODE.INVALID_ARGUMENT, _CODE.RESOURCE_EXHAUSTED, _CODE.INTERNAL, _CODE.UNKNOWN}:
            return StoreError(self._url, text)
        return StoreTimeout(
            self._url, f"no answer, so it is unknown whether the step was done: {text[:300] or code}"
        )
