"""What one session holds: renewed in time, and settled once."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from intervalq.store import stopwatch
from intervalq.tasks.rules import Change, Delete, Session
from intervalq_stores._nats_anew import again, lost, restore
from intervalq_stores._nats_held import RENEW, SAFE, Held, by_queue, is_forgotten, is_plain
from intervalq_stores._nats_link import Link
from intervalq_stores._nats_revoked import Revocations
from intervalq_stores._nats_stream import Stream


class Holdings:
    """The claims of a session."""

    def __init__(self, stream: Stream, session: Session) -> None:
        self.session = session
        self.held: dict[str, Held] = {}
        self.overdue = False
        """It is known that others have what was to be settled here before: all of it is as good as lost."""
        self._stream = stream
        self._revocations = Revocations(stream)
        self._seen: Link | None = None
        self._lost: dict[str, Held] = {}  # of which nobody has been told yet
        self._waiting: list[anyio.Event] = []

    async def link(self) -> Link:
        """The connection. Claims are given up that a server which was killed may have forgotten."""
        link = await self._stream.link()
        if link is not self._seen:
            for held in [held for held in self.held.values() if is_forgotten(held, link)]:
                self._lose(held)
            await self._revocations.listen(link)
            self._seen = link
        return link

    def drop(self, id_: str) -> Held | None:
        """It isn't held any more."""
        held = self.held.pop(id_, None)
        self.ring()
        return held

    def ring(self) -> None:
        """There may be room for more."""
        for event in self._waiting:
            event.set()
        self._waiting.clear()

    async def room(self) -> None:
        """Wait until there may be room for more."""
        event = anyio.Event()
        self._waiting.append(event)
        await event.wait()

    def begin(self, ids: Sequence[str]) -> None:
        """The work on these begins, as only this session will know."""
        for held in [self.held[id_] for id_ in ids if id_ in self.held]:
            if not held.row.begun:
                held.row = held.row._replace(attempt=held.row.attempt + 1, begun=True)

    # --- renewing -----------------------------------------------------------------------------------

    async def beat(self) -> bool:
        """Renew what needs it; whether all that was claimed is still held."""
        await self.link()
        now = stopwatch()
        for held in [held for held in self.held.values() if held.ends is not None and held.ends <= now]:
            self.drop(held.row.id)  # it ended by itself, as if its worker had been lost
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
            for held in await self._revocations.of(mine):
                self._lose(held)
        return True

    def forget(self) -> None:
        """All of it is lost."""
        self.held.clear()
        self._lost.clear()
        self.ring()

    async def end(self) -> None:
        """Give everything back, as if it had not been claimed."""
        held, self.held = list(self.held.values()), {}
        self.ring()
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
        await self.link()
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
                self._note(self._lost.pop(part.id, held))
        for held in await self._acknowledge(simple):
            lost.append(held.row.id)
            self._note(held)
        return lost

    def _lose(self, held: Held) -> None:
        """It is known to be lost, before anybody is told."""
        if self.drop(held.row.id) is not None:
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
            lost += [held for held in await self._revocations.of(mine) if held not in lost]
        for held in done:
            self.drop(held.row.id)
        return lost

    async def _move(self, held: Held, part: Delete | Change) -> bool:
        """Do what takes more than an acknowledgement; whether it was this session's."""
        from intervalq_stores._nats_change import move  # noqa: PLC0415 - which needs this module

        done = await move(self._stream, held, part)
        if not done and isinstance(part, Delete):
            done = not await self._is_lost(held)
        if done:
            self.drop(held.row.id)
        else:
            self._lose(held)
        return done
