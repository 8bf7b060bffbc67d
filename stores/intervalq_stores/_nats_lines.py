"""What is stored for tasks that come, change or go: with a key, their line moves on in the same step.

The first of a line has the token of its key; the others wait behind it. Who changes a line says what it has
seen of it, so that of two at the same moment one has to look again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from intervalq.errors import InboxFull
from intervalq.tasks.rules import Row
from intervalq_stores import _nats_batch as batch
from intervalq_stores._nats_batch import Conflict, Part
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import headers_of, home_of, is_gone, line_of, mark_of, rests


@dataclass
class Line:
    """The tasks of a key, as they will be after the step."""

    name: str
    last: int = 0
    """The sequence of what was stored there last."""
    first: Row | None = None
    """Who has the token."""
    waiting: list[Row] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)
    """What takes the place of those that have gone, for a while: subjects, and sequences."""


class Steps:
    """One step that is being put together. Of each subject, only what is there at its end is stored."""

    def __init__(self, stream: Stream, *, look: bool) -> None:
        """Begin with nothing.

        Args:
            stream: where it is stored.
            look: look at the lines first. Else they are taken for empty, which is quick where they are.
        """
        self._parts: dict[str, Part] = {}
        self._guards: dict[str, tuple[str, int]] = {}  # by subject: a line, and what was seen of it
        self._stream = stream
        self._look = look
        self._lines: dict[tuple[str, str], Line] = {}

    def parts(self) -> list[Part]:
        """What is to be stored; who stands for a whole line is first, before the step itself changes it."""
        guarded = [batch.within(self._parts[subject], *guard) for subject, guard in self._guards.items()]
        return guarded + [part for subject, part in self._parts.items() if subject not in self._guards]

    async def tombstone(self, subject: str) -> int | None:
        """The sequence of what says that a task has gone; None: nothing does, or it wasn't looked."""
        if not self._look:
            return None
        sequence, message = await self._stream.last(subject)
        return sequence if message is not None and is_gone(message) else None

    def insert(self, row: Row, *, instead_of: int | None = None) -> str:
        """A task where there is none, or the tombstone of one; gives its subject."""
        subject, data, headers = home_of(row), row.json.encode(), headers_of(row)
        return self._put(
            batch.new(subject, data, headers)
            if instead_of is None
            else batch.instead(subject, instead_of, data, headers)
        )

    async def enter(self, row: Row, *, inbox: int | None = None, replace: bool = False) -> str:
        """A task with a key goes to the end of its line; gives its subject.

        Raises:
            InboxFull: so many wait there.
        """
        line = await self._line(row, look=self._look)
        if replace:
            for other in line.waiting:
                self._put(batch.gone(home_of(other), other.version))
            line.waiting.clear()
        elif inbox is not None and line.first is not None and len(line.waiting) >= inbox:
            raise InboxFull(row.queue, str(row.key), inbox)
        row = row._replace(waiting=line.first is not None, place=0)
        subject = home_of(row)
        if row.waiting:
            line.waiting.append(row)
            self.insert(row, instead_of=line.gone.get(subject))
        else:
            line.first = row
            self._put(Part(subject, row.json.encode(), headers_of(row)))
        if line.name not in {name for name, _ in self._guards.values()}:
            self._guards[subject] = (line.name, line.last)
        return subject

    async def change(self, subject: str, sequence: int, row: Row) -> str:
        """A task stays where it is; gives that."""
        if row.waiting:
            line = await self._line(row, look=True)
            line.waiting = [
                row._replace(version=sequence) if one.id == row.id else one for one in line.waiting
            ]
        return self._put(batch.instead(subject, sequence, row.json.encode(), headers_of(row)))

    async def remove(self, row: Row, subject: str, sequence: int) -> None:
        """A task goes, and the next of its key has the token. Those that wait are to be removed first.

        Raises:
            Conflict: another has the token.
        """
        if row.dedupe is not None:
            self._put(batch.taken(mark_of(row.queue, row.dedupe), row.id, row.dedupe_for))
        self._put(batch.gone(subject, sequence))
        if row.key is None:
            return
        line = await self._line(row, look=True)
        if row.waiting:
            line.waiting = [one for one in line.waiting if one.id != row.id]
        elif not line.waiting:
            if (
                line.first is None or line.first.version != sequence
            ):  # the line is all that is looked at below
                raise Conflict
            line.first = None
            self._guards[subject] = (line.name, line.last)
        else:
            after = line.waiting.pop(0)
            at = after.at if rests(after) and after.at > self._stream.now() else 0
            line.first = after._replace(waiting=False, at=at)
            self._put(batch.instead(subject, sequence, after.json.encode(), headers_of(line.first)))
            self._put(batch.gone(home_of(after), after.version))

    def home(self, row: Row, subject: str) -> str:
        """Where a task is that was put under a subject: since then its turn may have come."""
        line = self._lines.get((row.queue, str(row.key))) if row.key is not None else None
        return home_of(line.first) if line and line.first and line.first.id == row.id else subject

    def mark(self, row: Row) -> None:
        """A `dedupe_key` is taken as long as the task is there."""
        if row.dedupe is not None:
            self._put(batch.new(mark_of(row.queue, row.dedupe), row.id.encode(), {}))

    def depend(self, subject: str, sequence: int) -> None:
        """A task must be there as it was seen. Said last: what the step itself changes is expected there."""
        if subject not in self._parts:
            self._put(batch.seen(subject, sequence))

    def _put(self, part: Part) -> str:
        self._parts[part.subject] = part
        return part.subject

    async def _line(self, row: Row, *, look: bool) -> Line:
        name = (row.queue, str(row.key))
        known = self._lines.get(name)
        if known is None:
            known = self._lines[name] = Line(line_of(*name))
            if look:
                known.last, rows, known.gone = await self._stream.line(known.name)
                known.waiting = sorted((one for one in rows if one.waiting), key=lambda one: one.place)
                known.first = next((one for one in rows if not one.waiting), None)
        return known
