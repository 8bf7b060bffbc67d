"""Requests for messages to a pull consumer, by the rules of NATS's decision record about them (ADR-13).

First it is asked without waiting; then with an expiry. What the server says about a request (404, 408, 409
...) ends it, and is never handed on. A request that nobody waits for any more is withdrawn, and what was on
its way is given back at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias

from nats import errors as driver
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from intervalq.errors import StoreUnavailable, TooManyWaiting
from intervalq.store import stopwatch
from intervalq_stores._nats_link import Link, fail
from intervalq_stores._nats_names import decoded
from intervalq_stores._nats_task import MOST_WAITING, STREAM
from intervalq_stores._nats_url import WITHIN

_GRACE: Final = 0.03
"""Seconds after which one who doesn't want to wait asks why there is no answer."""

_NONE: Final = frozenset({"404", "408"})
_TOO_MANY: Final = ("Exceeded MaxWaiting", "Exceeded MaxRequest")
_WAIT_FOR_ROOM: Final = "Exceeded MaxAckPending"
_FULL: Final = f"408 {_WAIT_FOR_ROOM}"


Stray: TypeAlias = Callable[[Msg], Coroutine[Any, Any, None]]
"""What becomes of a message that nobody waits for any more."""


class Pulled(NamedTuple):
    """What a request brought."""

    since: int
    """What it brought was handed out after this, on `stopwatch`."""
    messages: list[Msg]


class Puller:
    """One who asks one consumer, a request at a time, on a subscription that is made once."""

    def __init__(self, link: Link, url: str, consumer: str, stray: Stray, ping: float) -> None:
        """Ask nothing yet.

        Args:
            link: by which connection.
            url: of the store, for errors.
            consumer: whose messages.
            stray: see there.
            ping: seconds between two pings of one who waits.
        """
        self.link = link
        self._ping = ping
        self._stray = stray
        self._url = url
        self._consumer = consumer
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}"
        self._inbox = ""
        self._watch = ""
        self._subscription: Subscription | None = None
        self._wanted = 0
        self._found: list[Msg] = []
        self._over: asyncio.Future[str] | None = None
        self._lock = asyncio.Lock()

    async def now(self, count: int) -> Pulled:
        """What is there, up to `count`."""
        return await self._ask({"batch": count, "no_wait": True}, count, WITHIN, self._hear_at_once)

    async def wait(self, seconds: float) -> Pulled:
        """One message, as soon as there is one; none after `seconds`. Withdrawn when it is cancelled."""
        request = {"batch": 1, "expires": max(1_000_000, round(seconds * 1e9))}
        return await self._ask(request, 1, seconds + WITHIN, self._hear)

    async def close(self) -> None:
        """Ask no more. What still comes is given back."""
        self.link.forget(self._watch)
        subscription, self._subscription = self._subscription, None
        if subscription is not None and self.link.is_open:
            with suppress(Exception):  # the connection may end meanwhile
                await self.link.withdraw(subscription)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(
        self,
        request: Mapping[str, object],
        count: int,
        patience: float,
        hear: Callable[[asyncio.Future[str]], Awaitable[int | None]],
    ) -> Pulled:
        async with self._lock:
            if self._subscription is None:
                self._subscription, self._inbox = await self.link.private(self._came)
                self._watch = self._watch or self.link.listen(self._ended)
            over = self._over = asyncio.get_running_loop().create_future()
            self._wanted, self._found = count, []
            since = stopwatch()
            answered = False
            try:
                await self.link.publish(self._subject, json.dumps(request).encode(), self._inbox)
                async with asyncio.timeout(patience):
                    while not over.done():
                        since = await hear(over) or since
                status = over.result()
                answered = True
            finally:
                found, self._found, self._wanted, self._over = self._found, [], 0, None
                if not answered:
                    for message in found:
                        self.give_back(message)
                if not answered or status == _FULL:
                    # The request stands; without anybody who listens the server forgets it.
                    subscription, self._subscription = self._subscription, None
                    if self.link.is_open:
                        self.link.later(self.link.withdraw(subscription))
            if not found:
                self._judge(status)
            return Pulled(since, found)

    async def _hear(self, over: asyncio.Future[str]) -> int | None:
        """Wait for a while; since when it is known, then, that nothing was handed out.

        A process that stood still may find a message that came long ago. What comes after the answer to a
        ping was handed out after the ping was sent.
        """
        await asyncio.wait((over,), timeout=self._ping)
        if over.done():
            return None
        asked = stopwatch()
        await self.link.flush()
        return None if over.done() else asked

    async def _hear_at_once(self, over: asyncio.Future[str]) -> None:
        """Wait a moment. While as many are unacknowledged as may be, a server doesn't answer at all."""
        await asyncio.wait((over,), timeout=_GRACE)
        if over.done():
            return
        answer = await self.link.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{self._consumer}")
        said = json.loads(answer.data)
        limit = said.get("config", {}).get("max_ack_pending", -1)
        if not over.done() and 0 < limit <= said["num_ack_pending"]:
            over.set_result(_FULL)

    def _ended(self, _: Msg | None) -> None:
        if self._over is not None and not self._over.done():
            fail(self._over, driver.ConnectionClosedError())

    def _came(self, message: Msg) -> None:
        over = self._over
        headers = message.headers if not message.data else None
        if headers is not None and "Status" in headers:
            if over is not None and not over.done() and headers["Status"] != "100":
                over.set_result(f"{headers['Status']} {headers.get('Description', '')}")
            return
        if over is None or over.done():
            self.give_back(message)
            return
        self._found.append(message)
        if len(self._found) == self._wanted:
            over.set_result("")

    def give_back(self, message: Msg) -> None:
        """Nobody wants it here: others can have it at once."""
        if self.link.is_open:
            self.link.later(self._stray(message))

    def _judge(self, status: str) -> None:
        code, _, text = status.partition(" ")
        if code in _NONE or not code or text.startswith(_WAIT_FOR_ROOM):
            return
        if text.startswith(_TOO_MANY):
            raise TooManyWaiting(decoded(self._consumer), MOST_WAITING)
        raise StoreUnavailable(self._url, f"the request for tasks was ended by the server: {status[:100]}")
