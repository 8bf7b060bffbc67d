"""Requests for messages to a pull consumer, by the rules of NATS's decision record about them (ADR-13).

The first request doesn't wait; the next one has an expiry. Status messages of the server (404, 408, 409 ...)
end a request, and are never passed on. A request without a waiter is withdrawn, and messages in flight are
given back at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias

from nats import errors as driver
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from intervalq.errors import StoreUnavailable, TooManyWaiting
from intervalq.store import stopwatch
from intervalq_stores.nats._client import status
from intervalq_stores.nats._connection import Connection, expire, fail
from intervalq_stores.nats._names import decoded
from intervalq_stores.nats._task.message import STREAM
from intervalq_stores.nats._task.stream import Consumer
from intervalq_stores.nats._url import WITHIN

_GRACE: Final = 0.03
"""Seconds after which a caller that doesn't want to wait checks why there is no answer."""

_NONE: Final = frozenset({"404", "408"})
_TOO_MANY: Final = ("Exceeded MaxWaiting", "Exceeded MaxRequest")
_WAIT_FOR_ROOM: Final = "Exceeded MaxAckPending"

_HEARTBEAT: Final = 5.0
"""Seconds of silence after which the server confirms that a request is waiting."""

_MISSED: Final = 2.5
"""After this many of these intervals without a message, the server has forgotten the request."""


Stray: TypeAlias = Callable[[Msg], Coroutine[Any, Any, None]]
"""The handler of messages without a waiter."""


class Pulled(NamedTuple):
    """The result of a request."""

    since: int
    """Its messages were delivered after this, on `stopwatch`."""
    messages: list[Msg]


class Puller:
    """Sends requests to one consumer, one at a time, on a subscription that many pullers share."""

    def __init__(
        self, connection: Connection, url: str, consumer: Consumer, stray: Stray, ping: float
    ) -> None:
        """Send nothing yet.

        Args:
            connection: the connection to use.
            url: the URL of the store, for errors.
            consumer: the configuration of the consumer.
            stray: the handler of messages without a waiter.
            ping: seconds between two pings while waiting.
        """
        self.connection = connection
        self._ping = ping
        self._stray = stray
        self._url = url
        self._consumer: str = consumer["durable_name"]
        self._most: int = consumer.get("max_waiting", 0)
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}"
        self.surely = 0
        """How long a delivered message is certainly nobody else's, in microseconds."""
        self.is_spent = False
        """Whether it has abandoned a request that may still be answered; such messages are given back."""
        self._inbox = ""
        self._watch = ""
        self._subscription: Subscription | None = None
        self._wanted = 0
        self._waits = False
        self._stands = False  # the server may still answer the last request
        self._heard = 0  # when the server last said something of it, on `stopwatch`
        self._found: list[Msg] = []
        self._over: asyncio.Future[str] | None = None

    async def now(self, count: int) -> Pulled:
        """The available messages, up to `count`.

        Raises:
            TimeoutError: the server didn't answer in time.
        """
        return await self._ask(b'{"batch":%d,"no_wait":true}' % count, count)

    async def wait(self, count: int, seconds: float) -> Pulled:
        """Wait for the first message, and return it with others that come at the same moment, up to `count`.

        Returns none after `seconds`. The request is withdrawn if the call is cancelled, or gets fewer
        messages than requested. A long wait takes two requests: one with heartbeats isn't even refused if too
        many wait, so it isn't the first.
        """
        end = stopwatch() + round(seconds * 1e6)
        plain = seconds if seconds < 4 * _HEARTBEAT else 2 * _HEARTBEAT
        async with asyncio.timeout(seconds + WITHIN):
            pulled = await self._ask(b'{"batch":%d,"expires":%d}' % (count, _nanos(plain)), count, waits=True)
            left = (end - stopwatch()) / 1e6
            if pulled.messages or plain == seconds or left < 2 * _HEARTBEAT:
                return pulled
            terms = count, _nanos(left), _nanos(_HEARTBEAT)
            request = b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % terms
            return await self._ask(request, count, waits=True, beats=True)

    async def close(self) -> None:
        """Send no more requests. Messages that still come are given back."""
        self.connection.forget(self._watch)
        with suppress(Exception):  # the connection may end in the meantime
            await self._withdraw()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, request: bytes, count: int, *, waits: bool = False, beats: bool = False) -> Pulled:
        if self._subscription is None:
            self._subscription, self._inbox = await self.connection.private(self._came)
            self._watch = self._watch or self.connection.listen(self._ended)
        loop = asyncio.get_running_loop()
        over = self._over = loop.create_future()
        self._wanted, self._found, self._waits, self._stands = count, [], waits, True
        since = self._heard = stopwatch()
        answered, timers = False, list[asyncio.TimerHandle]()
        try:
            self.connection.post(self._subject, request, self._inbox)
            if waits:
                since = await self._hear(over, beats) or since
            else:
                timers = [
                    loop.call_later(_GRACE, self._ask_why, over),
                    loop.call_later(WITHIN, expire, over),
                ]
            ending = await over
            if self._stands and self._found:
                await self._withdraw()  # messages sent until then are for this call, too
                self._stands = False
            answered = True
        finally:
            for timer in timers:
                timer.cancel()
            found, self._found, self._wanted, self._over = self._found, [], 0, None
            if not answered:
                for message in found:
                    self.give_back(message)
            if self._stands:  # the server forgets a request without a listener
                self.is_spent = True
                if self.connection.is_open:
                    self.connection.later(self._withdraw())
        if not found:
            self._judge(ending)
        return Pulled(since, found)

    async def _withdraw(self) -> None:
        """Receive the rest of the server's messages; the next request has another inbox."""
        subscription, self._subscription = self._subscription, None
        if subscription is None or not self.connection.is_open:
            return
        if self._stands:
            await self.connection.withdraw(subscription)
        else:
            await self.connection.leave(subscription)

    async def _hear(self, over: asyncio.Future[str], beats: bool) -> int | None:
        """Wait for the end of the request; returns a time before which nothing was delivered.

        A paused process may find a message that came long ago. Messages after the answer to a ping were
        delivered after the ping was sent.
        """
        since = None
        while True:
            await asyncio.wait((over,), timeout=self._ping)
            if over.done():
                return since
            asked = stopwatch()
            await self.connection.flush()
            if over.done():
                return since
            since = asked
            if beats and asked - self._heard > _MISSED * _HEARTBEAT * 1e6:
                raise StoreUnavailable(self._url, "the server has forgotten a request for tasks")

    def _ask_why(self, over: asyncio.Future[str]) -> None:
        """Whether the limit of unacknowledged messages is reached, when a server doesn't answer at all."""

        async def ask() -> None:
            answer = await self.connection.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{self._consumer}")
            reply = json.loads(answer.data)
            limit = reply.get("config", {}).get("max_ack_pending", -1)
            if not over.done() and 0 < limit <= reply["num_ack_pending"]:
                over.set_result(f"408 {_WAIT_FOR_ROOM}")

        if not over.done():
            self.connection.later(ask())

    def _ended(self, _: Msg | None) -> None:
        if self._over is not None and not self._over.done():
            fail(self._over, driver.ConnectionClosedError())

    def _came(self, message: Msg) -> None:
        over = self._over
        self._heard = stopwatch()
        code = None if message.data else status(message)
        if code is not None:
            if over is not None and not over.done() and code != "100":
                self._stands = False
                over.set_result(f"{code} {(message.headers or {}).get('Description', '')}")
            return
        if over is None:
            self.give_back(message)
            return
        self._found.append(message)
        self._stands = self._stands and len(self._found) < self._wanted
        if not over.done() and (self._waits or not self._stands):
            over.set_result("")

    def give_back(self, message: Msg) -> None:
        """Give back an unwanted message, so that others get it at once."""
        if self.connection.is_open:
            self.connection.later(self._stray(message))

    def _judge(self, ending: str) -> None:
        code, _, text = ending.partition(" ")
        if code in _NONE or not code or text.startswith(_WAIT_FOR_ROOM):
            return
        if text.startswith(_TOO_MANY):
            raise TooManyWaiting(decoded(self._consumer), self._most)
        raise StoreUnavailable(self._url, f"the request for tasks was ended by the server: {ending[:100]}")


def _nanos(seconds: float) -> int:
    return max(1_000_000, round(seconds * 1e9))
