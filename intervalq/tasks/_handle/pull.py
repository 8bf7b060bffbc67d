"""Pull consumers: `fetch` first asks without waiting, then waits, and returns up to n claims."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

import anyio

from intervalq._queue.options import Duration, whole
from intervalq._spec import parse
from intervalq.errors import IntervalqError, TooManyWaiting
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks.rules import Count, Select, Sessions
from intervalq.tasks.store import Pulled, Pulling

_EARLY: Final = 0.1
"""Seconds before the caller's timeout at which requests expire, as in JetStream's clients."""

_MAX_COUNT: Final = 10_000
"""The maximum number of tasks that one call may ask for."""

_ASKS: Final = 30.0
"""Seconds that one request of `consume` waits before the next one is made."""


class PullInfo(NamedTuple):
    """The state of a pull consumer, over all processes that use its name."""

    name: str
    pending: int
    """Tasks that are ready and not claimed."""
    ack_pending: int
    """Claims that are not settled."""
    redelivered: int
    """Of these, tasks that were claimed before."""
    waiting: int
    """Waiting calls of `fetch`: in this process, or on NATS in all processes."""
    consumers: Mapping[str, Pulled] = MappingProxyType({})
    """NATS's state of each queue's consumer: `delivered`, `ack_floor`, `config` and more; elsewhere empty."""


class Pull:
    """A durable pull consumer, designed like JetStream's (NATS, ADR-13). Created by `Tasks.pull`."""

    def __init__(
        self,
        name: str,
        queues: tuple[str, ...],
        session: Callable[[], WorkSession],
        max_waiting: int,
        max_ack_pending: int | None,
    ) -> None:
        self.name = name
        self.queues = queues
        self.max_waiting = max_waiting
        self.max_ack_pending = max_ack_pending
        self._session = session

    async def fetch(
        self,
        count: int = 1,
        timeout: Duration = 5.0,
        *,
        no_wait: bool = False,
        lease: Duration | None = None,
    ) -> list[Claim]:
        """Claim tasks: what is ready, up to `count`; if nothing is, wait for the first.

        Args:
            count: 1 to 10,000. Ready tasks are returned at once; on stores other than NATS, up to 1000 of
                them.
            timeout: how long to wait for the first; the request itself expires 100 ms before (a tenth of it,
                if that is less), so that tasks claimed at the last moment still reach the caller.
            no_wait: ask once, and don't wait.
            lease: the claims expire after this time. None: they hold while this process lives.

        Returns:
            One to `count` claims; an empty list if none came in time, or `max_ack_pending` are unsettled.

        Raises:
            TooManyWaiting: `max_waiting` calls are already waiting.
            StoreError: the store can't be reached, or can't be trusted.
        """
        count = whole("count", count, 1, _MAX_COUNT)
        seconds = parse.duration(timeout, what="timeout") / 1e6
        micros = None if lease is None else parse.duration(lease, least=1, what="lease")
        early = min(_EARLY, seconds / 10)
        session = self._session()
        if session.waiting() >= self.max_waiting:
            raise TooManyWaiting(self.name, self.max_waiting)
        return await session.claims(
            self.queues,
            count,
            lease=micros,
            most=self.max_ack_pending,
            once=no_wait or seconds == 0,
            timeout=None if no_wait or seconds == 0 else seconds - early,
            last=early,
        )

    def __aiter__(self) -> AsyncIterator[Claim]:
        return self.consume()

    async def consume(
        self, batch: int = 100, *, lease: Duration | None = None
    ) -> AsyncGenerator[Claim, None]:
        """Yield claims, one after the other, without end: `async for claim in pull.consume(10)`.

        The session's heartbeat keeps claims that wait here for their turn, and a request that the store has
        forgotten is repeated. Use `contextlib.aclosing`, so that claims which were not yet yielded are given
        back as soon as the loop ends; otherwise this happens when the iterator is collected.

        Args:
            batch: how many tasks to claim at once, 1 to 10,000. With 1, nothing is claimed ahead.
            lease: as for `fetch`.

        Raises:
            TooManyWaiting, StoreError: as for `fetch`.
        """
        claims: deque[Claim] = deque()
        try:
            while True:
                claims.extend(await self.fetch(batch, _ASKS, lease=lease))
                while claims:
                    claim = claims.popleft()
                    if claim.open:  # not lost in the meantime
                        yield claim
        finally:
            with anyio.CancelScope(shield=True), suppress(IntervalqError):
                for claim in claims:
                    if claim.open:
                        await claim.release()

    async def info(self) -> PullInfo:
        """The state of this pull consumer."""
        session = self._session()
        store = session.store
        if isinstance(store, Pulling):
            consumers = await store.pulled(self.queues)
            each = consumers.values()
            return PullInfo(
                name=self.name,
                pending=sum(one.pending for one in each),
                ack_pending=sum(one.ack_pending for one in each),
                redelivered=sum(one.redelivered for one in each),
                waiting=sum(one.waiting for one in each),
                consumers=consumers,
            )
        stats = await store.apply(Count(names=self.queues))
        mine = [other for other in await store.apply(Sessions()) if other.consumer == self.name]
        held = [row for other in mine for row in await store.apply(Select(session=other.id, values=False))]
        return PullInfo(
            name=self.name,
            pending=sum(queue.ready for queue in stats),
            ack_pending=len(held),
            redelivered=sum(row.claims > 1 for row in held),
            waiting=session.waiting(),
        )
