"""What one session has claimed: taken from pull consumers, renewed in time, and settled once."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
from nats.aio.msg import Msg

from intervalq.errors import CorruptState, TooManyWaiting
from intervalq.store import stopwatch
from intervalq.tasks.rules import Change, Delete, Row, Session
from intervalq_stores._nats_anew import again, lost, restore, stray, with_others
from intervalq_stores._nats_batch import Part
from intervalq_stores._nats_commit import clear, outdated
from intervalq_stores._nats_held import RENEW, SAFE, Held, by_queue, claimed, is_forgotten, is_plain
from intervalq_stores._nats_link import Link
from intervalq_stores._nats_names import encoded
from intervalq_stores._nats_pull import Pulled, Puller
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import delivered, is_gone, rests, row_of
from intervalq_stores._nats_url import WITHIN

log: Final = logging.getLogger("intervalq")

_PINGS: Final = 5
"""How often one who waits makes sure, in its session's expiry, that nothing has come that it didn't see."""

_OTHER: Final = 100_000
"""Microseconds until a task is looked at again while one of another queue with its id is worked on here."""

_CORRUPT: Final = 60_000_000_000
"""Nanoseconds after which what is no task is looked at again: it is left to whoever put it there."""


class Claims:
    """The claims of a session."""

    def __init__(self, stream: Stream, session: Session) -> None:
        self.session = session
        self.held: dict[str, Held] = {}
        self.overdue = False
        """It is known that others have what was to be settled here before: all of it is as good as lost."""
        self._stream = stream
        self._pullers: dict[str, Puller] = {}
        self._seen: Link | None = None
        self._lost: dict[str, Held] = {}  # of which nobody has been told yet

    # --- claiming -----------------------------------------------------------------------------------

    async def claim(
        self, queues: Sequence[str], limit: int, lease: int | None, most: int | None, begins: int = 1
    ) -> list[Row]:
        """What is there to be claimed now, the same share of each queue first."""
        rows: list[Row] = []
        share = -(-limit // len(queues))
        with self._given_back(rows):
            for size in (share, limit):
                for queue in random.sample(queues, len(queues)):
                    await self._claim(rows, queue, min(size, limit - len(rows)), lease, most, begins=begins)
                if len(queues) == 1:
                    break
        return rows

    async def _claim(
        self, rows: list[Row], queue: str, wanted: int, lease: int | None, most: int | None, *, begins: int
    ) -> None:
        """Add so many of one queue, or all that there are. What came too early makes room for others."""
        end = len(rows) + wanted
        while len(rows) < end:
            puller = await self._puller(queue, most)
            wanted = end - len(rows)
            try:
                async with self._stream.wire.bounded():
                    pulled = await puller.now(wanted)
            except TooManyWaiting:  # for what isn't there
                break
            is_more = await self._take(rows, queue, puller, pulled, end=end, lease=lease, begins=begins)
            if (len(pulled.messages) < wanted and not is_more) or self._is_alone(begins):
                break

    async def wait(
        self, queues: Sequence[str], lease: int | None, most: int | None, seconds: float, begins: int = 1
    ) -> list[Row]:
        """One task of any queue as soon as there is one, or several at that moment; or none in time."""
        rows: list[Row] = []

        async def one(queue: str) -> None:
            async with await self._fresh(queue, most) as puller:
                async with self._stream.wire.bounded(seconds + 2 * WITHIN):
                    pulled = await puller.wait(seconds)
                end = len(rows) + 1
                await self._take(rows, queue, puller, pulled, end=end, lease=lease, begins=begins)
            if rows:
                group.cancel_scope.cancel()

        with self._given_back(rows):
            try:
                async with anyio.create_task_group() as group:
                    for queue in queues:
                        group.start_soon(one, queue)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return rows

    @contextmanager
    def _given_back(self, rows: list[Row]) -> Iterator[None]:
        """What was claimed for somebody who left, or for a call that failed, is free again."""
        try:
            yield
        except BaseException:
            for row in rows:
                held = self.held.pop(row.id, None)
                if held is not None and held.link.is_open:
                    part = again(held.unclaimed(), held.subject, held.sequence, self._stream.now())
                    held.link.later(restore(self._stream, [part]))
            raise

    async def _puller(self, queue: str, most: int | None) -> Puller:
        """Who asks without waiting: one a queue."""
        puller = self._pullers.get(queue)
        link = await self._link()
        await self._stream.consumer(queue, self.session.expiry, most)
        if puller is None or puller.link is not link:
            puller = self._pullers[queue] = await self._fresh(queue, most)
        return puller

    async def _link(self) -> Link:
        """The connection. Claims are given up that a server which was killed may have forgotten."""
        link = await self._stream.link()
        if link is not self._seen:
            self._seen = link
            for held in [held for held in self.held.values() if is_forgotten(held, link)]:
                self._lose(held)
        return link

    async def _fresh(self, queue: str, most: int | None) -> Puller:
        await self._stream.consumer(queue, self.session.expiry, most)
        link, url, ping = await self._stream.link(), self._stream.wire.url, self.session.expiry / 1e6 / _PINGS
        return Puller(link, url, encoded(queue), lambda message: stray(self._stream, message), ping)

    async def _take(
        self,
        rows: list[Row],
        queue: str,
        puller: Puller,
        pulled: Pulled,
        *,
        end: int,
        lease: int | None,
        begins: int,
    ) -> bool:
        """Of what was delivered, add what may be worked on; the rest is put where it belongs.

        Args:
            rows: where to add.
            queue: whose tasks they are.
            puller: who asked for them.
            pulled: what came.
            end: how many there may be then.
            lease: see `Work`.
            begins: likewise; the server can't be told of a beginning, so 0 is as good as 1.

        Returns:
            Whether some of it was stored anew, so that there may be more to be claimed.
        """
        link, anew, fresh = puller.link, list[Part](), list[Msg]()
        messages = deque(pulled.messages)
        try:
            async with self._stream.wire.bounded():
                messages = deque(await with_others(puller, pulled))
            wait = (await self._stream.consumer(queue, self.session.expiry))["ack_wait"] // 1_000
            since, now = pulled.since, self._stream.now()
            until, ends = since + round(wait * SAFE), None if lease is None else since + lease
            while messages:
                message = messages[0]
                row = await self._judge(message, link, until, now, anew)
                if row is not None and (len(rows) >= end or (row.alone and self._is_alone(begins))):
                    anew.append(again(row, message.subject, row.version, now))
                elif row is not None:
                    row = claimed(row, self.session.id, None if lease is None else now + lease, begins)
                    self.held[row.id] = Held(
                        row, message.subject, row.version, message.reply, link, since, wait, until, ends
                    )
                    rows.append(row)
                    fresh.append(message)
                messages.popleft()
        except BaseException:
            for message in messages:
                if link.is_open:
                    link.later(stray(self._stream, message))
            raise
        old = await outdated(self._stream, fresh)
        ids = {held.row.id for held in self.held.values() if held.sequence in old}  # others are lost already
        for id_ in ids:
            del self.held[id_]
        rows[:] = [row for row in rows if row.id not in ids]
        if anew:
            await restore(self._stream, anew)
        return bool(anew) or len(fresh) < len(pulled.messages)

    def _is_alone(self, begins: int) -> bool:
        """Whether it has one that is to run alone: of several nobody could tell which had begun."""
        return begins < 2 and any(held.row.alone for held in self.held.values())

    def begin(self, ids: Sequence[str]) -> None:
        """The work on these begins, as only this session will know."""
        for held in [self.held[id_] for id_ in ids if id_ in self.held]:
            if not held.row.begun:
                held.row = held.row._replace(attempt=held.row.attempt + 1, begun=True)

    async def _judge(self, message: Msg, link: Link, until: int, now: int, anew: list[Part]) -> Row | None:
        """The task of a message, if it may be worked on now."""
        times, sequence, stored = delivered(message)
        if is_gone(message):
            link.later(clear(self._stream, message))
            return None
        try:
            row = row_of(message, message.subject, sequence, stored, self._stream.wire.url)
        except CorruptState as error:
            log.warning("%s", error)
            await link.publish(message.reply, b'-NAK {"delay":%d}' % _CORRUPT)
            return None
        if stopwatch() >= until:  # this process stood still: it may be another's by now
            anew.append(again(row, message.subject, sequence, now))
        elif rests(row) and row.at > now:
            await link.publish(message.reply, b'-NAK {"delay":%d}' % ((row.at - now) * 1_000))
        elif times > 1:
            anew.append(again(lost(row, now), message.subject, sequence, now))
        elif row.id in self.held:  # an id is that of one queue, and of one claim here
            later = row._replace(at=now + _OTHER)
            anew.append(again(later, message.subject, sequence, now))
        else:
            return row
        return None

    # --- renewing -----------------------------------------------------------------------------------

    async def beat(self) -> bool:
        """Renew what needs it; whether all that was claimed is still held."""
        await self._link()
        now = stopwatch()
        for held in [held for held in self.held.values() if held.ends is not None and held.ends <= now]:
            del self.held[held.row.id]  # it ended by itself, as if its worker had been lost
            there = self._stream.now()
            row = held.unclaimed()._replace(at=held.row.modified)
            part = again(lost(row, there, begun=True), held.subject, held.sequence, there)
            await restore(self._stream, [part])
        return await self.renew(
            [held for held in self.held.values() if held.deadline - now < held.wait * RENEW]
        )

    async def renew(self, some: Sequence[Held]) -> bool:
        """Tell the server that the work goes on; whether it was told in time."""
        for mine in by_queue(some):
            sent = stopwatch()
            if sent >= min(held.deadline for held in mine):
                return False
            link = await self._stream.link()
            async with self._stream.wire.bounded():
                await link.send([(held.reply, b"+WPI", {}) for held in mine])
            if stopwatch() >= min(held.deadline for held in mine):
                return False
            for held in mine:
                held.deadline = sent + round(held.wait * SAFE)
            for held in await self._revoked(mine):
                self._lose(held)
        return True

    async def _revoked(self, mine: Sequence[Held]) -> list[Held]:
        """Those, of one queue, that others have changed without having claimed them."""
        sequences = [held.sequence for held in mine]
        found = await self._stream.revoked(mine[0].row.queue, sequences)
        return [held for held in mine if held.sequence in found]

    def forget(self) -> None:
        """All of it is lost."""
        self.held.clear()
        self._lost.clear()

    async def end(self) -> None:
        """Give everything back, as if it had not been claimed."""
        held, self.held = list(self.held.values()), {}
        for puller in self._pullers.values():
            await puller.close()
        self._pullers.clear()
        there = self._stream.now()
        in_time = [one for one in held if stopwatch() < one.deadline]
        parts = [again(one.unused(), one.subject, one.sequence, there) for one in in_time]
        await restore(self._stream, parts)

    # --- settling -----------------------------------------------------------------------------------

    async def settle(self, settled: Sequence[Delete | Change]) -> list[str]:
        """Settle claims, each by itself; the ids of those that are lost."""
        for held in [self.held.get(part.id) or self._lost.get(part.id) for part in settled]:
            if held is not None:
                held.asked += 1  # also if it fails now, and is asked for again
        await self._link()
        lost: list[str] = []
        simple: list[Held] = []
        for part in settled:
            held = self.held.get(part.id)
            now = stopwatch()
            if (
                held is None
                or held.row.version != part.version
                or (held.ends is not None and held.ends <= now)
            ):
                lost.append(part.id)
                if (known := self._lost.pop(part.id, None)) is not None:
                    self._note(known)
                continue
            if isinstance(part, Change) and part.keep:
                if not await self._prolong(held, part):
                    lost.append(part.id)
            elif isinstance(part, Delete) and is_plain(held.row):
                simple.append(held)
            elif not await self._move(held, part):
                lost.append(part.id)
                self._note(self._lost.pop(part.id))
        for held in await self._acknowledge(simple):
            lost.append(held.row.id)
            self._note(held)
        return lost

    def _lose(self, held: Held) -> None:
        """It is known to be lost, before anybody is told."""
        if self.held.pop(held.row.id, None) is not None:
            self._lost[held.row.id] = held

    def _note(self, held: Held) -> None:
        """What is asked for again counts as done if it is lost; so the session ends where that isn't true."""
        self.overdue = self.overdue or held.asked > 1

    async def _is_lost(self, held: Held) -> bool:
        """Whether a claim is whose task has gone from its place; else a call without an answer removed it."""
        return not held.sent or bool(await self._stream.with_ids([held.row.id], held.row.queue))

    async def _prolong(self, held: Held, part: Change) -> bool:
        if not await self.renew([held]) or self.held.get(held.row.id) is not held:
            return False
        held.ends = None if part.lease is None else stopwatch() + part.lease
        until = None if part.lease is None else self._stream.now() + part.lease
        held.row = held.row._replace(version=held.row.version + 1, until=until)
        return True

    async def _acknowledge(self, done: Sequence[Held]) -> list[Held]:
        """Acknowledge; those that were not this session's any more.

        The server answers the last of each queue when it has done the others. If that comes in time, nobody
        else can have had them. Else, or if the connection was another one, a message is removed by its
        sequence, which the server says whether it has done.
        """
        lost: list[Held] = []
        for mine in by_queue(done):
            link = await self._stream.link()
            now = stopwatch()
            sure: list[Held] = []
            late: list[Held] = []
            for held in mine:
                (sure if held.link is link and now < held.deadline else late).append(held)
            if sure:
                for held in sure:
                    held.sent = True
                async with self._stream.wire.bounded():
                    await link.send([(held.reply, b"+ACK", {}) for held in sure])
                arrived = stopwatch()
                # Of what was said too late nobody can say whether it was done.
                lost += [held for held in sure if arrived >= held.deadline]
            for held in late:
                removed = not is_forgotten(held, link) and await self._stream.remove(held.sequence)
                others = await self._stream.lasts([held.subject]) if removed else {}
                if (not removed and await self._is_lost(held)) or any(others.values()):
                    lost.append(held)
            lost += [held for held in await self._revoked(mine) if held not in lost]
        for held in done:
            self.held.pop(held.row.id, None)
        return lost

    async def _move(self, held: Held, part: Delete | Change) -> bool:
        """Do what takes more than an acknowledgement; whether it was this session's."""
        from intervalq_stores._nats_change import move  # noqa: PLC0415 - which needs this module

        done = await move(self._stream, held, part)
        if not done and isinstance(part, Delete):
            done = not await self._is_lost(held)
        if done:
            self.held.pop(held.row.id, None)
        else:
            self._lose(held)
        return done
