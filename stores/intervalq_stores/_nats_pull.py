"""Requests for messages to a pull consumer, by the rules of NATS's decision record about them (ADR-13).

First it is asked without waiting; then with an expiry. What the server says about a request (404, 408, 409
...) ends it, and is never handed on. A request that nobody waits for any more is withdrawn, and what was on
its way is given back at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias

from nats import errors as driver
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from intervalq.errors import StoreUnavailable, TooManyWaiting
from intervalq.store import stopwatch
from intervalq_stores._nats_client import status
from intervalq_stores._nats_link import Link, fail
from intervalq_stores._nats_names import decoded
from intervalq_stores._nats_stream import Consumer
from intervalq_stores._nats_task import STREAM
from intervalq_stores._nats_url import WITHIN

_GRACE: Final = 0.03
"""Seconds after which one who doesn't want to wait asks why there is no answer."""

_NONE: Final = frozenset({"404", "408"})
_TOO_MANY: Final = ("Exceeded MaxWaiting", "Exceeded MaxRequest")
_WAIT_FOR_ROOM: Final = "Exceeded MaxAckPending"

_HEARTBEAT: Final = 5.0
"""Seconds after which the server says that a request waits, if it has nothing else to say."""

_MISSED: Final = 2.5
"""So many of these without a word, and the server doesn't know of the request any more."""


Stray: TypeAlias = Callable[[Msg], Coroutine[Any, Any, None]]
"""What becomes of a message that nobody waits for any more."""


class Pulled(NamedTuple):
    """What a request brought."""

    since: int
    """What it brought was handed out after this, on `stopwatch`."""
    messages: list[Msg]


class Puller:
    """One who asks one consumer, a request at a time, on a subscription that serves many of them."""

    def __init__(self, link: Link, url: str, consumer: Consumer, stray: Stray, ping: float) -> None:
        """Ask nothing yet.

        Args:
            link: by which connection.
            url: of the store, for errors.
            consumer: whose messages, by its configuration.
            stray: see there.
            ping: seconds between two pings of one who waits.
        """
        self.link = link
        self._ping = ping
        self._stray = stray
        self._url = url
        self._consumer: str = consumer["durable_name"]
        self._most: int = consumer.get("max_waiting", 0)
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._consumer}"
        self.is_spent = False
        """It has left a request that may still be answered: what comes then is given back."""
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
        """What is there, up to `count`."""
        return await self._ask({"batch": count, "no_wait": True}, count)

    async def wait(self, count: int, seconds: float) -> Pulled:
        """What comes first, as soon as it does, with what comes at that moment, up to `count`.

        None after `seconds`. Withdrawn when it is cancelled, or when less came than it asked for. A long wait
        is two requests: one with heartbeats isn't even refused where too many wait, so it isn't the first.
        """
        end = stopwatch() + round(seconds * 1e6)
        plain = seconds if seconds < 4 * _HEARTBEAT else 2 * _HEARTBEAT
        async with asyncio.timeout(seconds + WITHIN):
            pulled = await self._ask({"batch": count, "expires": _nanos(plain)}, count, waits=True)
            left = (end - stopwatch()) / 1e6
            if pulled.messages or plain == seconds or left < 2 * _HEARTBEAT:
                return pulled
            request = {"batch": count, "expires": _nanos(left), "idle_heartbeat": _nanos(_HEARTBEAT)}
            return await self._ask(request, count, waits=True)

    async def close(self) -> None:
        """Ask no more. What still comes is given back."""
        self.link.forget(self._watch)
        with suppress(Exception):  # the connection may end meanwhile
            await self._withdraw()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, request: Mapping[str, object], count: int, *, waits: bool = False) -> Pulled:
        if self._subscription is None:
            self._subscription, self._inbox = await self.link.private(self._came)
            self._watch = self._watch or self.link.listen(self._ended)
        loop = asyncio.get_running_loop()
        over = self._over = loop.create_future()
        self._wanted, self._found, self._waits, self._stands = count, [], waits, True
        since = self._heard = stopwatch()
        answered, why = False, None
        try:
            self.link.post(self._subject, json.dumps(request).encode(), self._inbox)
            if waits:
                since = await self._hear(over, "idle_heartbeat" in request) or since
            else:
                why = loop.call_later(_GRACE, self._ask_why, over)
            ending = await over
            if self._stands and self._found:
                await self._withdraw()  # what was sent by then is for this call, too
                self._stands = False
            answered = True
        finally:
            if why is not None:
                why.cancel()
            found, self._found, self._wanted, self._over = self._found, [], 0, None
            if not answered:
                for message in found:
                    self.give_back(message)
            if self._stands:  # without anybody who listens the server forgets it
                self.is_spent = True
                if self.link.is_open:
                    self.link.later(self._withdraw())
        if not found:
            self._judge(ending)
        return Pulled(since, found)

    async def _withdraw(self) -> None:
        """Hear the rest of what the server has sent; the next request has another inbox."""
        subscription, self._subscription = self._subscription, None
        if subscription is None or not self.link.is_open:
            return
        if self._stands:
            await self.link.withdraw(subscription)
        else:
            await self.link.leave(subscription)

    async def _hear(self, over: asyncio.Future[str], beats: bool) -> int | None:
        """Wait until it is over; since when it is known, then, that nothing was handed out.

        A process that stood still may find a message that came long ago. What comes after the answer to a
        ping was handed out after the ping was sent.
        """
        since = None
        while True:
            await asyncio.wait((over,), timeout=self._ping)
            if over.done():
                return since
            asked = stopwatch()
            await self.link.flush()
            if over.done():
                return since
            since = asked
            if beats and asked - self._heard > _MISSED * _HEARTBEAT * 1e6:
                raise StoreUnavailable(self._url, "the server has forgotten a request for tasks")

    def _ask_why(self, over: asyncio.Future[str]) -> None:
        """While as many are unacknowledged as may be, a server doesn't answer at all."""

        async def ask() -> None:
            answer = await self.link.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{self._consumer}")
            said = json.loads(answer.data)
            limit = said.get("config", {}).get("max_ack_pending", -1)
            if not over.done() and 0 < limit <= said["num_ack_pending"]:
                over.set_result(f"408 {_WAIT_FOR_ROOM}")

        if not over.done():
            self.link.later(ask())

    def _ended(self, _: Msg | None) -> None:
        if self._over is not None and not self._over.done():
            fail(self._over, driver.ConnectionClosedError())

    def _came(self, message: Msg) -> None:
        over = self._over
        self._heard = stopwatch()
        said = None if message.data else status(message)
        if said is not None:
            if over is not None and not over.done() and said != "100":
                self._stands = False
                over.set_result(f"{said} {(message.headers or {}).get('Description', '')}")
            return
        if over is None:
            self.give_back(message)
            return
        self._found.append(message)
        self._stands = self._stands and len(self._found) < self._wanted
        if not over.done() and (self._waits or not self._stands):
            over.set_result("")

    def give_back(self, message: Msg) -> None:
        """Nobody wants it here: others can have it at once."""
        if self.link.is_open:
            self.link.later(self._stray(message))

    def _judge(self, ending: str) -> None:
        code, _, text = ending.partition(" ")
        if code in _NONE or not code or text.startswith(_WAIT_FOR_ROOM):
            return
        if text.startswith(_TOO_MANY):
            raise TooManyWaiting(decoded(self._consumer), self._most)
        raise StoreUnavailable(self._url, f"the request for tasks was ended by the server: {ending[:100]}")


def _nanos(seconds: float) -> int:
    return max(1_000_000, round(seconds * 1e9))
