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
from intervalq_stores.nats._task.held import RENEW, SAFE, Held, by_queue, is_forgotten, is_plain
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
        self.deliveries: dict[str, Held] = {}
        self.overdue = False
        """Whether a settlement came too late and others have its task; then all claims count as lost."""
        self._stream = stream
        self._revocations = Revocations(stream)
        self._seen: Connection | None = None
        self._process = ""  # the server process to which the deadlines apply
        self._done: set[tuple[str, int]] = set()  # settled by a call that failed for other claims
        self._made = ""  # when the stream was created, as read on that connection
        self._lost: dict[tuple[str, int], Held] = {}  # losses that are not yet reported, by id and version
        self._waiting: list[anyio.Event] = []

    async def connection(self) -> Connection:
        """The connection. Claims that a killed server may have forgotten are given up.

        So are all claims of a removed stream, because sequences of a new one start over.
        """
        connection = await self._stream.connection()
        if connection is not self._seen or self._made != self._stream.made:
            is_new = self._made not in {"", self._stream.made}
            for held in [
                held for held in self.deliveries.values() if is_new or is_forgotten(held, connection)
            ]:
                self._lose(held)
            # Once for each restart, before other callers; this is never done with replicas.
            if self._process not in {"", connection.process} and not self._stream.is_replicated:
                for held in self.deliveries.values():
                    held.deadline -= ROUNDED
            self._process = connection.process
            self._made = self._stream.made
            await self._revocations.listen(connection)
            self._seen = connection
        return connection

    def is_sure(self, id_: str, version: int) -> bool:
        """Whether a claim is this session's, as far as is known; False while there is no connection."""
        held = self.deliveries.get(id_)
        if held is None or held.row.version != version or self._seen is None:
            return False
        return self._seen.is_open and stopwatch() < min(held.deadline, held.ends or held.deadline)

    def is_forgotten(self, held: Held) -> bool:
        """Whether the server may have forgotten a claim, judging by the connection that was last examined."""
        return self._seen is not None and is_forgotten(held, self._seen)

    def has_lost(self, sequence: int) -> bool:
        """Whether the session had claimed the same message, and its loss is not yet reported."""
        return any(held.sequence == sequence for held in self._lost.values())

    def drop(self, id_: str) -> Held | None:
        """Forget a claim."""
        held = self.deliveries.pop(id_, None)
        self.ring()
        return held

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
        for held in [self.deliveries[id_] for id_ in ids if id_ in self.deliveries]:
            if not held.row.begun:
                held.row = held.row._replace(attempt=held.row.attempt + 1, begun=True)

    def may_be_outdated(self, held: Held) -> bool:
        """See `Revocations.may_be_outdated`."""
        return self._revocations.may_be_outdated(held)

    def prepare(self, held: Held) -> None:
        """Prepare the handover of a token while its task is being worked on."""
        held.ready = held.connection.later(self._prepare(held))

    async def _prepare(self, held: Held) -> None:
        line = await seen(self._stream, held.row.queue, str(held.row.key))
        held.over = ()  # removed now
        held.line = line

    async def clear(self, some: Sequence[Held]) -> None:
        """Make sure that replaced messages of claims are removed, before these are settled or given back."""
        for held in some:
            if held.ready is not None:
                await asyncio.wait((held.ready,))
        await self._stream.removed([sequence for held in some for sequence in held.over])
        for held in some:
            held.over = ()

    async def give_back(self, some: Sequence[Held], parts: Sequence[Part]) -> None:
        """Store claims again."""
        await self.clear(some)
        await restore(self._stream, parts)

    # --- renewing -----------------------------------------------------------------------------------

    async def beat(self) -> bool:
        """Renew claims that need it; returns whether all claims are still held."""
        await self.connection()
        now = stopwatch()
        for held in [held for held in self.deliveries.values() if held.ends is not None and held.ends <= now]:
            self.drop(held.row.id)  # its lease ended, as if its worker had been lost
            there = self._stream.now()
            row = held.unclaimed()._replace(at=held.row.modified)
            part = again(lost(row, there, begun=True), held.subject, held.sequence, there)
            await self.give_back([held], [part])
        await self.heed()
        return await self.renew(
            [held for held in self.deliveries.values() if held.deadline - now < held.wait * RENEW]
        )

    async def heed(self) -> None:
        """Give up the claims that others have ended, as far as that was heard."""
        heard = [held for held in self.deliveries.values() if self._revocations.is_heard(held)]
        for held in await self._revocations.of(heard):
            self._lose(held)

    async def renew(self, some: Sequence[Held]) -> bool:
        """Tell the server that the work goes on; returns whether that was in time."""
        for mine in by_queue(some):
            sent = stopwatch()
            if sent >= min(held.deadline for held in mine):
                return False
            connection = await self._stream.connection()
            async with self._stream.server.bounded():
                await connection.send([(held.reply, b"+WPI", {}) for held in mine])
            if stopwatch() >= min(held.deadline for held in mine):
                return False
            for held in mine:
                held.deadline = sent + round(held.wait * SAFE)
            for held in await self._revocations.of(mine):
                self._lose(held)
        return True

    def forget(self) -> None:
        """Drop all claims, which are lost."""
        self.deliveries.clear()
        self._lost.clear()
        self._done.clear()
        self.ring()

    async def end(self) -> None:
        """Give all claims back, as if they had not been made."""
        held, self.deliveries = list(self.deliveries.values()), {}
        self.ring()
        there = self._stream.now()
        in_time = [one for one in held if stopwatch() < one.deadline]
        parts = [again(one.unused(), one.subject, one.sequence, there) for one in in_time]
        await self.give_back(in_time, parts)

    # --- settling -----------------------------------------------------------------------------------

    async def settle(self, settled: Sequence[Delete | Change]) -> list[str]:
        """Settle claims, each independently; returns the ids of lost ones."""
        for part in settled:
            held = self.deliveries.get(part.id)
            if held is None or held.row.version != part.version:
                held = self._lost.get((part.id, part.version))
            if held is not None:
                held.asked += 1  # this also remembers calls that fail now and are repeated
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
        simple: list[Held] = []
        for part in settled:
            held = self.deliveries.get(part.id)
            now = stopwatch()
            if (
                held is None
                or held.row.version != part.version
                or (held.ends is not None and held.ends <= now)
            ):
                lost.append(part.id)
            elif isinstance(part, Change) and part.keep:
                if not await self._prolong(held, part):
                    lost.append(part.id)
            elif isinstance(part, Delete) and is_plain(held.row):
                simple.append(held)
            elif not await self._move(held, part, connection):
                lost.append(part.id)
        return lost + [held.row.id for held in await self._acknowledge(simple, connection)]

    def _lose(self, held: Held) -> None:
        """Note that a claim is lost, before that is reported."""
        if self.drop(held.row.id) is not None:
            self._lost[held.row.id, held.row.version] = held

    def _ended(self, held: Held) -> None:
        """Note that a claim is settled, which is reported when the whole call is done."""
        self.drop(held.row.id)
        self._done.add((held.row.id, held.row.version))

    async def _is_lost(self, held: Held) -> bool:
        """Whether a claim whose task has left its place is lost; if not, an unanswered call removed it.

        Nobody else can have the task without a revocation.
        """
        return not held.sent or may_have_expired(held) or await self._revocations.is_revoked(held)

    async def _prolong(self, held: Held, part: Change) -> bool:
        if not await self.renew([held]) or self.deliveries.get(held.row.id) is not held:
            return False
        held.ends = None if part.lease is None else stopwatch() + part.lease
        until = None if part.lease is None else self._stream.now() + part.lease
        held.row = held.row._replace(version=held.row.version + 1, until=until)
        return True

    async def _acknowledge(self, done: Sequence[Held], connection: Connection) -> list[Held]:
        """Acknowledge claims; return those that were no longer this session's.

        The server answers the last acknowledgement of each queue when it has processed the others. If that
        answer comes in time, nobody else can have had the tasks. Otherwise, or if the connection was another
        one, or others may have ended a claim unnoticed, the message is replaced if it is the last of its
        subject, as for settlements that need more than an acknowledgement.
        """
        lost: list[Held] = []
        for mine in by_queue(done):
            now = stopwatch()
            sure: list[Held] = []
            late: list[Held] = []
            for held in mine:
                in_time = held.connection is connection and now < held.deadline
                (sure if in_time and self._revocations.is_safe(held) else late).append(held)
            if sure:
                lost += await self._at_once(sure, connection)
            for start in range(0, len(late), _AT_ONCE):
                some = late[start : start + _AT_ONCE]
                parts = [Delete(held.row.id, held.row.version) for held in some]
                moves = [self._move(held, part, connection) for held, part in zip(some, parts, strict=True)]
                answers = await asyncio.gather(*moves, return_exceptions=True)
                for answer in answers:
                    if isinstance(answer, BaseException):
                        raise answer
                lost += [held for held, answer in zip(some, answers, strict=True) if not answer]
        return lost

    async def _at_once(self, sure: Sequence[Held], connection: Connection) -> list[Held]:
        """Acknowledge claims of a queue without received revocations; returns the lost ones."""
        before = [held.sent for held in sure]
        for held in sure:
            held.sent = True
        now = stopwatch()
        try:
            acknowledgements: list[tuple[str, bytes, Headers]] = [(held.reply, b"+ACK", {}) for held in sure]
            await self._stream.server.guarded(connection, connection.send(acknowledgements, WITHIN))
        except NobodyThereError:
            for held, sent in zip(sure, before, strict=True):
                held.sent = sent
            raise
        arrived = stopwatch()
        revoked = {held.sequence for held in await self._revocations.of(sure)}
        lost: list[Held] = []
        for held in sure:
            # If an acknowledgement was late, or others removed messages meanwhile, its outcome is unknown.
            removed = self._revocations.is_removed(held, now)
            if arrived >= held.deadline or held.sequence in revoked or removed:
                self._lose(held)
                lost.append(held)
            else:
                self._ended(held)
        return lost

    async def _move(self, held: Held, part: Delete | Change, connection: Connection) -> bool:
        """Settle a claim that needs more than an acknowledgement; returns whether it was still valid.

        This uses the connection for which the claims have been checked.
        """
        await self.clear([held])
        done = await move(self._stream, held, part, connection)
        if not done and isinstance(part, Delete):
            done = not await self._is_lost(held)
        if done:
            self._ended(held)
        else:
            self._lose(held)
        return done
