"""The claims of one session: renews them in time, and settles each once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import anyio

from intervalq.store import stopwatch
from intervalq.tasks.rules import Change, Delete, Session
from intervalq_stores.nats._batch import Part
from intervalq_stores.nats._connection import Connection, NobodyThereError
from intervalq_stores.nats._task.delivery import RENEW, SAFE, Delivery, by_queue, is_forgotten, is_plain
from intervalq_stores.nats._task.lines import seen
from intervalq_stores.nats._task.restore import again, lost, restore
from intervalq_stores.nats._task.revoked import Revocations, may_have_expired
from intervalq_stores.nats._task.settle import move
from intervalq_stores.nats._task.stream import ROUNDED, Stream
from intervalq_stores.nats._url import WITHIN, Headers

_AT_ONCE: Final = 250
"""How many messages are replaced at once."""


class Holdings:
    """The claims of a session."""

    def __init__(self, stream: Stream, session: Session) -> None:
        self.session = session
        self.deliveries: dict[str, Delivery] = {}
        self.overdue = False
        """Whether a settlement came too late and others have its task; then all claims count as lost."""
        self._stream = stream
        self._revocations = Revocations(stream)
        self._seen: Connection | None = None
        self._process = ""  # the server process to which the deadlines apply
        self._done: set[tuple[str, int]] = set()  # settled by a call that failed for other claims
        self._made = ""  # when the stream was created, as read on that connection
        self._lost: dict[
            tuple[str, int], Delivery
        ] = {}  # losses that are not yet reported, by id and version
        self._waiting: list[anyio.Event] = []

    async def connection(self) -> Connection:
        """The connection. Claims that a killed server may have forgotten are given up.

        So are all claims of a removed stream, because sequences of a new one start over.
        """
        connection = await self._stream.connection()
        if connection is not self._seen or self._made != self._stream.made:
            is_new = self._made not in {"", self._stream.made}
            for delivery in [
                delivery
                for delivery in self.deliveries.values()
                if is_new or is_forgotten(delivery, connection)
            ]:
                self._lose(delivery)
            # Once for each restart, before other callers; this is never done with replicas.
            if self._process not in {"", connection.process} and not self._stream.is_replicated:
                for delivery in self.deliveries.values():
                    delivery.deadline -= ROUNDED
            self._process = connection.process
            self._made = self._stream.made
            await self._revocations.listen(connection)
            self._seen = connection
        return connection

    def is_sure(self, id_: str, version: int) -> bool:
        """Whether a claim is this session's, as far as is known; False while there is no connection."""
        delivery = self.deliveries.get(id_)
        if delivery is None or delivery.row.version != version or self._seen is None:
            return False
        return self._seen.is_open and stopwatch() < min(delivery.deadline, delivery.ends or delivery.deadline)

    def is_forgotten(self, delivery: Delivery) -> bool:
        """Whether the server may have forgotten a claim, judging by the connection that was last examined."""
        return self._seen is not None and is_forgotten(delivery, self._seen)

    def has_lost(self, sequence: int) -> bool:
        """Whether the session had claimed the same message, and its loss is not yet reported."""
        return any(delivery.sequence == sequence for delivery in self._lost.values())

    def drop(self, id_: str) -> Delivery | None:
        """Forget a claim."""
        delivery = self.deliveries.pop(id_, None)
        self.ring()
        return delivery

    def ring(self) -> None:
        """Wake waiters, because there may be room for more claims."""
        for event in self._waiting:
            event.set()
        self._waiting.clear()

    async def room(self) -> None:
        """Wait until there may be room for more claims."""
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()

    def begin(self, ids: Sequence[str]) -> None:
        """Note that work on these claims begins, which only this session knows."""
        for delivery in [self.deliveries[id_] for id_ in ids if id_ in self.deliveries]:
            if not delivery.row.begun:
                delivery.row = delivery.row._replace(attempt=delivery.row.attempt + 1, begun=True)

    def may_be_outdated(self, delivery: Delivery) -> bool:
        """See `Revocations.may_be_outdated`."""
        return self._revocations.may_be_outdated(delivery)

    def prepare(self, delivery: Delivery) -> None:
        """Prepare the handover of a token while its task is being worked on."""
        delivery.ready = delivery.connection.later(self._prepare(delivery))

    async def _prepare(self, delivery: Delivery) -> None:
        line = await seen(self._stream, delivery.row.queue, str(delivery.row.key))
        delivery.over = ()  # removed now
        delivery.line = line

    async def clear(self, some: Sequence[Delivery]) -> None:
        """Make sure that replaced messages of claims are removed, before these are settled or given back."""
        for delivery in some:
            if delivery.ready is not None:
                await asyncio.wait((delivery.ready,))
        await self._stream.removed([sequence for delivery in some for sequence in delivery.over])
        for delivery in some:
            delivery.over = ()

    async def give_back(self, some: Sequence[Delivery], parts: Sequence[Part]) -> None:
        """Store claims again."""
        await self.clear(some)
        await restore(self._stream, parts)

    # --- renewing -----------------------------------------------------------------------------------

    async def beat(self) -> bool:
        """Renew claims that need it; returns whether all claims are still held."""
        await self.connection()
        now = stopwatch()
        for delivery in [
            delivery
            for delivery in self.deliveries.values()
            if delivery.ends is not None and delivery.ends <= now
        ]:
            self.drop(delivery.row.id)  # its lease ended, as if its worker had been lost
            there = self._stream.now()
            row = delivery.unclaimed()._replace(at=delivery.row.modified)
            part = again(lost(row, there, begun=True), delivery.subject, delivery.sequence, there)
            await self.give_back([delivery], [part])
        await self.heed()
        return await self.renew(
            [
                delivery
                for delivery in self.deliveries.values()
                if delivery.deadline - now < delivery.wait * RENEW
            ]
        )

    async def heed(self) -> None:
        """Give up the claims that others have ended, as far as that was heard."""
        heard = [delivery for delivery in self.deliveries.values() if self._revocations.is_heard(delivery)]
        for delivery in await self._revocations.of(heard):
            self._lose(delivery)

    async def renew(self, some: Sequence[Delivery]) -> bool:
        """Tell the server that the work goes on; returns whether that was in time."""
        for mine in by_queue(some):
            sent = stopwatch()
            if sent >= min(delivery.deadline for delivery in mine):
                return False
            connection = await self._stream.connection()
            async with self._stream.server.bounded():
                await connection.send([(delivery.reply, b"+WPI", {}) for delivery in mine])
            if stopwatch() >= min(delivery.deadline for delivery in mine):
                return False
            for delivery in mine:
                delivery.deadline = sent + round(delivery.wait * SAFE)
            for delivery in await self._revocations.of(mine):
                self._lose(delivery)
        return True

    def forget(self) -> None:
        """Drop all claims, which are lost."""
        self.deliveries.clear()
        self._lost.clear()
        self._done.clear()
        self.ring()

    async def end(self) -> None:
        """Give all claims back, as if they had not been made."""
        delivery, self.deliveries = list(self.deliveries.values()), {}
        self.ring()
        there = self._stream.now()
        in_time = [one for one in delivery if stopwatch() < one.deadline]
        parts = [again(one.unused(), one.subject, one.sequence, there) for one in in_time]
        await self.give_back(in_time, parts)

    # --- settling -----------------------------------------------------------------------------------

    async def settle(self, settled: Sequence[Delete | Change]) -> list[str]:
        """Settle claims, each independently; returns the ids of lost ones."""
        for part in settled:
            delivery = self.deliveries.get(part.id)
            if delivery is None or delivery.row.version != part.version:
                delivery = self._lost.get((part.id, part.version))
            if delivery is not None:
                delivery.asked += 1  # this also remembers calls that fail now and are repeated
        # A failed call is repeated as a whole, though some of its parts may be done.
        lost = await self._settle([part for part in settled if (part.id, part.version) not in self._done])
        for part in settled:
            known = self._lost.get((part.id, part.version))
            # A repeated settlement of a lost task counts as done; so the session ends if that would be wrong.
            self.overdue = self.overdue or (known is not None and known.asked > 1)
        return lost

    def answered(self, settled: Sequence[Delete | Change]) -> None:
        """Forget the outcomes of settlements once nothing in their call can fail any more.

        Until then the next call needs it, or it would take a loss for a settlement.
        """
        for part in settled:
            self._done.discard((part.id, part.version))
            self._lost.pop((part.id, part.version), None)

    async def _settle(self, settled: Sequence[Delete | Change]) -> list[str]:
        connection = await self.connection()
        lost: list[str] = []
        simple: list[Delivery] = []
        for part in settled:
            delivery = self.deliveries.get(part.id)
            now = stopwatch()
            if (
                delivery is None
                or delivery.row.version != part.version
                or (delivery.ends is not None and delivery.ends <= now)
            ):
                lost.append(part.id)
            elif isinstance(part, Change) and part.keep:
                if not await self._prolong(delivery, part):
                    lost.append(part.id)
            elif isinstance(part, Delete) and is_plain(delivery.row):
                simple.append(delivery)
            elif not await self._move(delivery, part, connection):
                lost.append(part.id)
        return lost + [delivery.row.id for delivery in await self._acknowledge(simple, connection)]

    def _lose(self, delivery: Delivery) -> None:
        """Note that a claim is lost, before that is reported."""
        if self.drop(delivery.row.id) is not None:
            self._lost[delivery.row.id, delivery.row.version] = delivery

    def _ended(self, delivery: Delivery) -> None:
        """Note that a claim is settled, which is reported when the whole call is done."""
        self.drop(delivery.row.id)
        self._done.add((delivery.row.id, delivery.row.version))

    async def _is_lost(self, delivery: Delivery) -> bool:
        """Whether a claim whose task has left its place is lost; if not, an unanswered call removed it.

        Nobody else can have the task without a revocation.
        """
        return not delivery.sent or may_have_expired(delivery) or await self._revocations.is_revoked(delivery)

    async def _prolong(self, delivery: Delivery, part: Change) -> bool:
        if not await self.renew([delivery]) or self.deliveries.get(delivery.row.id) is not delivery:
            return False
        delivery.ends = None if part.lease is None else stopwatch() + part.lease
        until = None if part.lease is None else self._stream.now() + part.lease
        delivery.row = delivery.row._replace(version=delivery.row.version + 1, until=until)
        return True

    async def _acknowledge(self, done: Sequence[Delivery], connection: Connection) -> list[Delivery]:
        """Acknowledge claims; return those that were no longer this session's.

        The server answers the last acknowledgement of each queue when it has processed the others. If that
        answer comes in time, nobody else can have had the tasks. Otherwise, or if the connection was another
        one, or others may have ended a claim unnoticed, the message is replaced if it is the last of its
        subject, as for settlements that need more than an acknowledgement.
        """
        lost: list[Delivery] = []
        for mine in by_queue(done):
            now = stopwatch()
            sure: list[Delivery] = []
            late: list[Delivery] = []
            for delivery in mine:
                in_time = delivery.connection is connection and now < delivery.deadline
                (sure if in_time and self._revocations.is_safe(delivery) else late).append(delivery)
            if sure:
                lost += await self._at_once(sure, connection)
            for start in range(0, len(late), _AT_ONCE):
                some = late[start : start + _AT_ONCE]
                parts = [Delete(delivery.row.id, delivery.row.version) for delivery in some]
                moves = [
                    self._move(delivery, part, connection) for delivery, part in zip(some, parts, strict=True)
                ]
                answers = await asyncio.gather(*moves, return_exceptions=True)
                for answer in answers:
                    if isinstance(answer, BaseException):
                        raise answer
                lost += [delivery for delivery, answer in zip(some, answers, strict=True) if not answer]
        return lost

    async def _at_once(self, sure: Sequence[Delivery], connection: Connection) -> list[Delivery]:
        """Acknowledge claims of a queue without received revocations; returns the lost ones."""
        before = [delivery.sent for delivery in sure]
        for delivery in sure:
            delivery.sent = True
        now = stopwatch()
        try:
            acknowledgements: list[tuple[str, bytes, Headers]] = [
                (delivery.reply, b"+ACK", {}) for delivery in sure
            ]
            await self._stream.server.guarded(connection, connection.send(acknowledgements, WITHIN))
        except NobodyThereError:
            for delivery, sent in zip(sure, before, strict=True):
                delivery.sent = sent
            raise
        arrived = stopwatch()
        revoked = {delivery.sequence for delivery in await self._revocations.of(sure)}
        lost: list[Delivery] = []
        for delivery in sure:
            # If an acknowledgement was late, or others removed messages meanwhile, its outcome is unknown.
            removed = self._revocations.is_removed(delivery, now)
            if arrived >= delivery.deadline or delivery.sequence in revoked or removed:
                self._lose(delivery)
                lost.append(delivery)
            else:
                self._ended(delivery)
        return lost

    async def _move(self, delivery: Delivery, part: Delete | Change, connection: Connection) -> bool:
        """Settle a claim that needs more than an acknowledgement; returns whether it was still valid.

        This uses the connection for which the claims have been checked.
        """
        await self.clear([delivery])
        done = await move(self._stream, delivery, part, connection)
        if not done and isinstance(part, Delete):
            done = not await self._is_lost(delivery)
        if done:
            self._ended(delivery)
        else:
            self._lose(delivery)
        return done
