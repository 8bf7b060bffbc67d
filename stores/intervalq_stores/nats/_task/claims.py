"""Claims of a session: checks what pull consumers deliver, and holds what may be worked on."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import anyio
from nats.aio.msg import Msg

from intervalq.errors import CorruptState, TooManyWaiting
from intervalq.store import stopwatch
from intervalq.tasks.rules import Row, Session, Work
from intervalq_stores.nats._batch import Part
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._task.commit import clear, outdated
from intervalq_stores.nats._task.delivery import SAFE, Delivery, claimed
from intervalq_stores.nats._task.holdings import Holdings
from intervalq_stores.nats._task.message import delivered, is_gone, over_of, rests, row_of
from intervalq_stores.nats._task.pull import Pulled, Puller
from intervalq_stores.nats._task.restore import again, lost, restore, stray, with_others
from intervalq_stores.nats._task.stream import Stream
from intervalq_stores.nats._url import WITHIN

log: Final = logging.getLogger("intervalq")

_PINGS: Final = 5
"""How many times within its session's expiry a waiter checks that it has not missed a delivery."""

_OTHER: Final = 100_000
"""Redelivery delay, in microseconds, while this session works on a task of another queue with the same id."""

_CORRUPT: Final = 60_000_000_000
"""Redelivery delay, in nanoseconds, of a message that is not a task, which is left to its sender."""


class Claims:
    """The requests and claims of a session."""

    def __init__(self, stream: Stream, session: Session) -> None:
        self.holdings = Holdings(stream, session)
        self.expected = stream.server.expected
        """See `Server.expected`."""
        self._stream = stream
        self._pullers: dict[str, list[Puller]] = {}  # unused ones, by queue
        self._asked = 0  # how many tasks the requests in flight may bring

    async def pull(self, work: Work, seconds: float) -> list[Row]:
        """Claim ready tasks; otherwise the first that come in time, as soon as there is room for them."""
        end = stopwatch() + round(seconds * 1e6)
        while True:
            with self._room(work) as room:
                rows = await self.claim(work, room) if room else []
                left = (end - stopwatch()) / 1e6
                if room and not rows and left > 0:
                    rows = await self.wait(work, room, left)
            if room or left <= 0:
                return self._in_time(rows)
            with anyio.move_on_after(left):
                await self.holdings.room()

    def _in_time(self, rows: Sequence[Row]) -> list[Row]:
        """The claims that still belong to this session: the checks may have taken very long."""
        deliveries = self.holdings.deliveries
        mine = [row for row in rows if row.id in deliveries and deliveries[row.id].row.version == row.version]
        late = {row.id for row in mine if stopwatch() >= deliveries[row.id].deadline}
        for id_ in late:
            self.holdings.drop(id_)
        return [row for row in mine if row.id not in late]

    @contextmanager
    def _room(self, work: Work) -> Iterator[int]:
        """How many more claims this session may hold. Other sessions of the queue don't count."""
        room = work.limit
        if work.most is not None:
            room = max(0, min(room, work.most - len(self.holdings.deliveries) - self._asked))
        self._asked += room
        try:
            yield room
        finally:
            self._asked -= room
            if room:
                self.holdings.ring()

    async def claim(self, work: Work, limit: int) -> list[Row]:
        """Claim ready tasks, first the same share of each queue."""
        rows: list[Row] = []
        share = -(-limit // len(work.queues))
        with self._given_back(rows):
            for size in (share, limit):
                if len(work.queues) == 1:
                    await self._claim(rows, work.queues[0], limit, work)
                    break
                for queue in random.sample(work.queues, len(work.queues)):
                    await self._claim(rows, queue, min(size, limit - len(rows)), work)
        return rows

    async def _claim(self, rows: list[Row], queue: str, wanted: int, work: Work) -> None:
        """Add up to that many of one queue. Messages that arrived too early make room for others."""
        end = len(rows) + wanted
        while len(rows) < end:
            wanted = end - len(rows)
            async with self._asking(queue) as puller:
                try:
                    pulled = await self._stream.server.guarded(puller.connection, puller.now(wanted))
                except TooManyWaiting:  # for a message that isn't there
                    break
                is_more = await self._take(rows, puller, pulled, end=end, work=work)
            if (len(pulled.messages) < wanted and not is_more) or self._is_alone(work):
                break

    async def wait(self, work: Work, limit: int, seconds: float) -> list[Row]:
        """The first task of any queue, with those that arrive with it; or none in time."""
        rows: list[Row] = []
        count = limit if len(work.queues) == 1 else 1
        waits: list[anyio.CancelScope] = []

        async def one(queue: str) -> None:
            pulled: Pulled | None = None
            async with self._asking(queue) as puller:
                if not rows:
                    with anyio.CancelScope() as wait:
                        waits.append(wait)
                        async with self._stream.server.bounded(seconds + 2 * WITHIN):
                            pulled = await puller.wait(count, seconds)
                if pulled is not None:  # several may arrive at the same moment, but no more than wanted
                    await self._take(rows, puller, pulled, end=limit, work=work)
            if rows:
                for wait in waits:
                    wait.cancel()

        with self._given_back(rows):
            if len(work.queues) == 1:
                await one(work.queues[0])
                return rows
            try:
                async with anyio.create_task_group() as group:
                    for queue in work.queues:
                        group.start_soon(one, queue)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            if rows and len(rows) < limit:
                rows += await self.claim(work, limit - len(rows))
        return rows

    @contextmanager
    def _given_back(self, rows: list[Row]) -> Iterator[None]:
        """Give back tasks that were claimed for a caller that left, or for a failed call."""
        try:
            yield
        except BaseException:
            for row in rows:
                delivery = self.holdings.drop(row.id)
                if delivery is not None and delivery.connection.is_open:
                    part = again(
                        delivery.unclaimed(), delivery.subject, delivery.sequence, self._stream.now()
                    )
                    delivery.connection.later(self.holdings.give_back([delivery], [part]))
            raise

    @asynccontextmanager
    async def _asking(self, queue: str) -> AsyncIterator[Puller]:
        """A puller of a queue's consumer, which sends one request at a time."""
        connection = await self.holdings.connection()
        consumer = await self._stream.consumer(queue, self.holdings.session.expiry)
        idle = self._pullers.setdefault(queue, [])
        puller = idle.pop() if idle else None
        if puller is None or puller.connection is not connection:
            idle.clear()
            ping = self.holdings.session.expiry / 1e6 / _PINGS
            puller = Puller(connection, self._stream.server.url, consumer, partial(stray, self._stream), ping)
        puller.surely = self._stream.surely(consumer)
        try:
            yield puller
        finally:
            if connection.is_open and not puller.is_spent:
                idle.append(puller)

    async def _take(self, rows: list[Row], puller: Puller, pulled: Pulled, *, end: int, work: Work) -> bool:
        """Add delivered tasks that may be worked on; give back or repair the others.

        Args:
            rows: the list to add to.
            puller: the puller that requested them.
            pulled: the delivered messages.
            end: the maximum number of rows after this.
            work: the command.

        Returns:
            Whether some were stored again, so that there may be more to claim.
        """
        if not pulled.messages:
            return False
        connection, came = puller.connection, stopwatch()
        anew, fresh, stale = list[Part](), dict[int, tuple[Delivery, Msg]](), list[Msg]()
        lease, deliveries = work.lease, self.holdings.deliveries
        judged = 0
        try:
            if delivered(pulled.messages[-1]).times > 1:
                async with self._stream.server.bounded():
                    await with_others(puller, pulled)
            wait = puller.surely
            since, now = pulled.since, self._stream.now()
            until, ends = since + round(wait * SAFE), None if lease is None else since + lease
            for message in pulled.messages:
                row = await self._judge(message, connection, until, now, anew)
                if row is not None and (len(rows) >= end or (row.alone and self._is_alone(work))):
                    anew.append(again(row, message.subject, row.version, now))
                    row = None
                if row is not None:
                    leased = None if lease is None else now + lease
                    row = claimed(row, self.holdings.session.id, leased, work.begins)
                    one = deliveries[row.id] = Delivery(
                        row, message.subject, row.version, message.reply, connection, since, came, wait,
                        until, ends, over=tuple(over_of(message)),
                    )  # fmt: skip
                    rows.append(row)
                    fresh[row.version] = one, message
                else:
                    stale.append(message)
                judged += 1
            old = await self._outdated(fresh, stale)
            rows[:] = [row for row in rows if row.id not in old]
            if anew:
                await restore(self._stream, anew)
        except BaseException:
            if connection.is_open:
                for message in pulled.messages[judged:]:
                    connection.later(stray(self._stream, message))
                if anew:
                    connection.later(self._restored(anew, stale))
            raise
        return bool(anew) or len(fresh) < len(pulled.messages)

    async def _restored(self, anew: Sequence[Part], stale: Sequence[Msg]) -> None:
        """Store tasks of a call that has left again; otherwise they stay undelivered for the ack wait."""
        await self._stream.removed([sequence for message in stale for sequence in over_of(message)])
        await restore(self._stream, anew)

    async def _outdated(self, fresh: dict[int, tuple[Delivery, Msg]], stale: Sequence[Msg]) -> set[str]:
        """Give up replaced messages, and prepare the settlement of the others.

        Work on a token begins at once if nobody else can have had it.
        """
        some = [delivery for delivery, _ in fresh.values()]
        looked = {
            delivery.sequence: delivery.subject
            for delivery in some
            if self.holdings.may_be_outdated(delivery)
        }
        cleared = [delivery for delivery in some if delivery.row.key is None or delivery.sequence in looked]
        over = [sequence for delivery in cleared for sequence in delivery.over]
        over += [sequence for message in stale for sequence in over_of(message)]
        old = await outdated(self._stream, looked, over)
        old |= {delivery.sequence for delivery in some if self.holdings.is_forgotten(delivery)}  # meanwhile
        for delivery in cleared:
            delivery.over = ()
        for delivery in some:
            if delivery.row.key is not None and delivery.sequence not in old:
                self.holdings.prepare(delivery)
        gone = [fresh[sequence][0] for sequence in old]
        for delivery in gone:
            if self.holdings.deliveries.get(delivery.row.id) is delivery:
                self.holdings.drop(delivery.row.id)
        return {delivery.row.id for delivery in gone}

    def _is_alone(self, work: Work) -> bool:
        """Whether the session has a task that runs alone: with several, it is unclear which one had begun."""
        return work.begins < 2 and any(delivery.row.alone for delivery in self.holdings.deliveries.values())

    async def _judge(
        self, message: Msg, connection: Connection, until: int, now: int, anew: list[Part]
    ) -> Row | None:
        """The task of a message, if it may be worked on now."""
        times, sequence, stored = delivered(message)
        if is_gone(message):
            connection.later(clear(self._stream, message))
            return None
        try:
            row = row_of(message, message.subject, sequence, stored, self._stream.server.url)
        except CorruptState as error:
            log.warning("%s", error)
            await connection.publish(message.reply, b'-NAK {"delay":%d}' % _CORRUPT)
            return None
        if stopwatch() >= until:  # this process was paused, so the task may be another's by now
            anew.append(again(row, message.subject, sequence, now))
        elif rests(row) and row.at > now:
            await connection.publish(message.reply, b'-NAK {"delay":%d}' % ((row.at - now) * 1_000))
        elif times > 1:
            anew.append(again(lost(row, now), message.subject, sequence, now))
        elif self.holdings.has_lost(sequence):  # pending settlements of that claim must not concern this one
            anew.append(again(row, message.subject, sequence, now))
        elif row.id in self.holdings.deliveries:  # an id belongs to one queue, and to one claim here
            later = row._replace(at=now + _OTHER)
            anew.append(again(later, message.subject, sequence, now))
        else:
            return row
        return None

    async def end(self) -> None:
        """Stop requesting tasks, and give everything back."""
        for puller in [puller for some in self._pullers.values() for puller in some]:
            await puller.close()
        self._pullers.clear()
        await self.holdings.end()
