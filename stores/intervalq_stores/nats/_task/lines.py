"""What is stored for tasks that come, change or go: with a key, their line moves on in the same step.

The first of a line has the token of its key; the others wait behind it. Who changes a line says what was
stored there last when it looked, so that of two at the same moment one has to look again. That says enough:
the sequence of the last message never goes back while there is anything in the line, because what is removed
has something above it that stays. So what says that a waiting task has gone stays if nothing is above it, and
the next step removes it. What says that the last task of a line has gone is removed after all else.

To hand the token on is one message: the next task, with the subject of the token, which names both the task
that had it and its own former place as removed. An atomic batch takes the server ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from intervalq.errors import InboxFull
from intervalq.tasks.rules import Row
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict, Part
from intervalq_stores.nats._task.message import (
    headers_of,
    home_of,
    is_token,
    line_of,
    mark_of,
    rests,
    token_of,
)
from intervalq_stores.nats._task.stream import Stream


@dataclass
class Line:
    """The tasks of a key, as they will be after the step."""

    name: str
    last: int = 0
    """The sequence of what was stored there last."""
    first: Row | None = None
    """Who has the token."""
    waiting: list[Row] = field(default_factory=list)
    top: int = 0
    """The sequence of what has the subject of the token: its task, or what says that it has gone."""
    gone: dict[str, int] = field(default_factory=dict)
    """What takes the place of those that have gone, for a while: subjects, and sequences."""
    parts: dict[str, Part] = field(default_factory=dict)
    """What the step stores there, if nothing was stored since it looked."""

    @property
    def token(self) -> int:
        """The sequence of the task that has the token; 0: none has."""
        return 0 if self.first is None else self.first.version

    def waits(self, row: Row, sequence: int) -> None:
        """See that a task waits there as it was seen.

        Raises:
            Conflict: it doesn't.
        """
        if all(one.id != row.id or one.version != sequence for one in self.waiting):
            raise Conflict

    def stored(self) -> list[Part]:
        """What the step stores there, in this order: what is last stays, until all below it is removed."""
        parts = sorted(self.parts.values(), key=_order)
        above = parts.pop()
        if not is_token(above.subject):
            above = above._replace(ends=False)
        gone = [sequence for sequence in self.gone.values() if sequence not in above.over]
        return [*parts, batch.removing(above, gone)]


def _order(part: Part) -> int:
    """What says that some have gone, the token, those that wait; or what says that all have gone."""
    if is_token(part.subject):
        return 3 if part.ends else 1
    return 0 if part.ends else 2


async def seen(stream: Stream, queue: str, key: str) -> Line:
    """The tasks of a key as they are now."""
    name = line_of(queue, key)
    last, rows, gone = await stream.line(name)
    waiting = sorted((one for one in rows if one.waiting), key=lambda one: one.place)
    first = next((one for one in rows if not one.waiting), None)
    top = first.version if first else gone.get(token_of(queue, key), 0)
    return Line(name, last, first, waiting, top, gone)


class Steps:
    """One step that is being put together. Of each subject, only what is there at its end is stored."""

    def __init__(self, stream: Stream, *, look: bool, known: Line | None = None) -> None:
        """Begin with nothing.

        Args:
            stream: where it is stored.
            look: look at the lines first. Else they are taken for empty, which is quick where they are.
            known: one of the lines as it was seen before, if it was. It can't be used again.
        """
        self._parts: dict[str, Part] = {}
        self._stream = stream
        self._look = look
        self._lines = {} if known is None else {known.name: known}

    def parts(self) -> list[Part]:
        """What is to be stored; before it the conditions, which are about what the step itself changes.

        That nothing was stored in a line says all about it, so the first message says that in the place of
        its own condition. Where a message is stored by several servers, and not yet by all, they compare the
        conditions of the next by their subjects only: so there both are said.
        """
        conditions: list[Part] = []
        parts: list[Part] = []
        for line in self._lines.values():
            if not line.parts:
                continue
            some = line.stored()
            if self._stream.is_replicated and line.last:
                conditions.append(batch.seen(line.name, line.last))
            else:
                some[0] = batch.within(some[0], line.name, line.last)
            parts += some
        return [*conditions, *parts, *self._parts.values()]

    async def tombstone(self, subject: str) -> int | None:
        """The sequence of what says that a task has gone; None: nothing does, or it wasn't looked."""
        return (await self._stream.tombstone(subject))[1] or None if self._look else None

    def insert(self, row: Row, *, instead_of: int | None = None) -> str:
        """A task without a key where there is none, or the tombstone of one; gives its subject."""
        return self._put(_stored(row, instead_of or 0))

    async def enter(self, row: Row, *, inbox: int | None = None, replace: bool = False) -> str:
        """A task with a key goes to the end of its line; gives its subject.

        Raises:
            InboxFull: so many wait there.
        """
        line = await self._line(row, look=self._look)
        if replace:
            for other in line.waiting:
                self._put(batch.gone(home_of(other), other.version), line)
            line.waiting.clear()
        elif inbox is not None and line.first is not None and len(line.waiting) >= inbox:
            raise InboxFull(row.queue, str(row.key), inbox)
        row = row._replace(waiting=line.first is not None, place=0)
        if row.waiting:
            line.waiting.append(row)
            return self._put(_stored(row, line.gone.pop(home_of(row), 0)), line)
        line.first = row
        return self._put(_stored(row, line.top), line)

    async def change(self, subject: str, sequence: int, row: Row) -> str:
        """A task stays where it is; gives that."""
        part = batch.instead(subject, sequence, row.json.encode(), headers_of(row))
        if not row.waiting:
            return self._put(part)
        line = await self._line(row, look=True)
        line.waits(row, sequence)
        line.waiting = [row._replace(version=sequence) if one.id == row.id else one for one in line.waiting]
        return self._put(part, line)

    async def remove(self, row: Row, subject: str, sequence: int) -> None:
        """A task goes, and the next of its key has the token. Those that wait are to be removed first.

        Raises:
            Conflict: another has the token, or it doesn't wait any more.
        """
        if row.dedupe is not None:
            self._put(batch.taken(mark_of(row.queue, row.dedupe), row.id, row.dedupe_for))
        if row.key is None:
            self._put(batch.gone(subject, sequence))
            return
        line = await self._line(row, look=True)
        if row.waiting:
            line.waits(row, sequence)
            line.waiting = [one for one in line.waiting if one.id != row.id]
            self._put(batch.gone(subject, sequence), line)
            return
        if line.token != sequence:
            raise Conflict
        if not line.waiting:
            line.first = None
            self._put(batch.gone(subject, sequence), line)
            return
        after = line.waiting.pop(0)
        line.parts.pop(home_of(after), None)  # it was changed in the same step
        at = after.at if rests(after) and after.at > self._stream.now() else 0
        line.first = after._replace(waiting=False, at=at)
        self._put(batch.removing(_stored(line.first, sequence), [after.version]), line)

    def home(self, row: Row, subject: str) -> str:
        """Where a task is that was put under a subject: since then its turn may have come."""
        line = self._lines.get(line_of(row.queue, row.key)) if row.key is not None else None
        return home_of(line.first) if line and line.first and line.first.id == row.id else subject

    def mark(self, row: Row) -> None:
        """A `dedupe_key` is taken as long as the task is there."""
        if row.dedupe is not None:
            self._put(batch.new(mark_of(row.queue, row.dedupe), row.id.encode(), {}))

    def depend(self, subject: str, sequence: int) -> None:
        """A task must be there as it was seen. Said last: what the step itself changes is expected there."""
        if subject not in self._parts and not any(subject in line.parts for line in self._lines.values()):
            self._put(batch.seen(subject, sequence))

    def _put(self, part: Part, line: Line | None = None) -> str:
        (self._parts if line is None else line.parts)[part.subject] = part
        return part.subject

    async def _line(self, row: Row, *, look: bool) -> Line:
        key = str(row.key)
        name = line_of(row.queue, key)
        known = self._lines.get(name)
        if known is None:
            known = await seen(self._stream, row.queue, key) if look else Line(name)
            self._lines[name] = known
        return known


def _stored(row: Row, sequence: int) -> Part:
    """A task in its place, above the message with this sequence (0: where there is none)."""
    return batch.instead(home_of(row), sequence, row.json.encode(), headers_of(row))
