"""The messages of a step that inserts, changes or removes tasks; the line of a key advances in the same step.

The tasks of a key form a line: the first has the token of the key, and the others wait behind it. Whoever
changes a line gives the sequence of its last message, so that of two concurrent changes one has to read it
again. This is enough, because the last sequence never goes back while the line isn't empty: a removed message
always has another one above it that stays. So the tombstone of a waiting task stays if nothing is above it,
and the next step removes it. The tombstone of a line's last task is removed after everything else.

Handing the token on takes a single message: the next task, with the subject of the token, which names both
the previous task and its own former place as replaced. An atomic batch would take the server ten times as
long.
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
    """The tasks of a key as they will be after the step."""

    name: str
    last: int = 0
    """The sequence of its last message."""
    first: Row | None = None
    """The task that has the token."""
    waiting: list[Row] = field(default_factory=list)
    top: int = 0
    """The sequence of the message with the subject of the token: its task, or a tombstone."""
    gone: dict[str, int] = field(default_factory=dict)
    """The temporary tombstones of removed tasks: subjects and sequences."""
    parts: dict[str, Part] = field(default_factory=dict)
    """The messages that the step stores, on condition that the line has not changed."""

    @property
    def token(self) -> int:
        """The sequence of the task that has the token; 0: there is none."""
        return 0 if self.first is None else self.first.version

    def waits(self, row: Row, sequence: int) -> None:
        """Check that a task still waits there, unchanged.

        Raises:
            Conflict: it doesn't.
        """
        if all(one.id != row.id or one.version != sequence for one in self.waiting):
            raise Conflict

    def stored(self) -> list[Part]:
        """The messages that the step stores, in order: the last one stays until all below it are removed."""
        parts = sorted(self.parts.values(), key=_order)
        above = parts.pop()
        if not is_token(above.subject):
            above = above._replace(ends=False)
        gone = [sequence for sequence in self.gone.values() if sequence not in above.over]
        return [*parts, batch.removing(above, gone)]


def _order(part: Part) -> int:
    """The order of messages: tombstones, the token, waiting tasks; or the tombstone of the last task."""
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
    """A step under construction. For each subject, only its final message is stored."""

    def __init__(self, stream: Stream, *, look: bool, known: Line | None = None) -> None:
        """Begin an empty step.

        Args:
            stream: the stream to store it in.
            look: whether to read the lines first. Otherwise they count as empty, which is faster if they are.
            known: one of the lines, if it was read before. It can't be used again.
        """
        self._parts: dict[str, Part] = {}
        self._stream = stream
        self._look = look
        self._lines = {} if known is None else {known.name: known}

    def parts(self) -> list[Part]:
        """The messages to store, after the conditions about what the step itself changes.

        The condition that a line has not changed covers all of it, so the first message has it in place of
        its own condition. While several servers have yet to store a message, they compare conditions of the
        next ones only by their subjects; so with replicas both conditions are given.
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
        """The sequence of a task's tombstone; None: there is none, or the line wasn't read."""
        return (await self._stream.tombstone(subject))[1] or None if self._look else None

    def insert(self, row: Row, *, instead_of: int | None = None) -> str:
        """Insert a task without a key where there is none, or a tombstone; returns its subject."""
        return self._put(_stored(row, instead_of or 0))

    async def enter(self, row: Row, *, inbox: int | None = None, replace: bool = False) -> str:
        """Append a task to the line of its key; returns its subject.

        Raises:
            InboxFull: the inbox has reached its limit.
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
        """Change a task in its place; returns its subject."""
        part = batch.instead(subject, sequence, row.json.encode(), headers_of(row))
        if not row.waiting:
            return self._put(part)
        line = await self._line(row, look=True)
        line.waits(row, sequence)
        line.waiting = [row._replace(version=sequence) if one.id == row.id else one for one in line.waiting]
        return self._put(part, line)

    async def remove(self, row: Row, subject: str, sequence: int) -> None:
        """Remove a task, and give the token to the next one of its key. Remove waiting tasks first.

        Raises:
            Conflict: another task has the token, or the task no longer waits.
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
        """The present place of a task that was put under a subject: it may have got the token since."""
        line = self._lines.get(line_of(row.queue, row.key)) if row.key is not None else None
        return home_of(line.first) if line and line.first and line.first.id == row.id else subject

    def mark(self, row: Row) -> None:
        """Mark a `dedupe_key` as taken while its task exists."""
        if row.dedupe is not None:
            self._put(batch.new(mark_of(row.queue, row.dedupe), row.id.encode(), {}))

    def depend(self, subject: str, sequence: int) -> None:
        """Require that a task is unchanged. Call this last: the step's own changes replace the condition."""
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
    """A task in its place, above the message with this sequence (0: there is none)."""
    return batch.instead(home_of(row), sequence, row.json.encode(), headers_of(row))
