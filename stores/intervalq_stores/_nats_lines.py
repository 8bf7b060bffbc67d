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
from intervalq_stores._nats_task import TOKEN, headers_of, home_of, line_of, mark_of, rests, token_of


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


class Steps:
    """One step that is being put together. Of each subject, only what is there at its end is stored."""

    def __init__(self, stream: Stream, *, look: bool) -> None:
        """Begin with nothing.

        Args:
            stream: where it is stored.
            look: look at the lines first. Else they are taken for empty, which is quick where they are.
        """
        self._parts: dict[str, Part] = {}
        self._guards: dict[str, int] = {}  # lines, and the sequences of what was stored there last
        self._tokens: dict[str, int] = {}  # their subjects, and the sequences of what is there
        self._stream = stream
        self._look = look
        self._lines: dict[tuple[str, str], Line] = {}

    def parts(self) -> list[Part]:
        """What is to be stored; before it the conditions, which are about what the step itself changes.

        What was stored last doesn't say enough of a line: what came after it may have gone again. So a task
        that waits says which token it waits for, and the end of a token says which it is.
        """
        parts = dict(self._parts)
        first: list[Part] = []
        for name, last in self._guards.items():
            if last:
                first.append(batch.seen(name, last))
            else:  # of what is empty that is all there is to say
                first.append(batch.within(parts.pop(name[:-2] + TOKEN), name, last))
        first += [batch.seen(*token) for token in self._tokens.items() if token[0] not in self._parts]
        return first + list(parts.values())

    async def tombstone(self, subject: str) -> int | None:
        """The sequence of what says that a task has gone; None: nothing does, or it wasn't looked."""
        return (await self._stream.tombstone(subject))[1] or None if self._look else None

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
            self._tokens[token_of(row.queue, str(row.key))] = line.top
        else:
            line.first = row
            self._put(batch.instead(subject, line.top, row.json.encode(), headers_of(row)))
        self._guards[line.name] = line.last
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
            self._guards[line.name] = line.last
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
                known.top = known.first.version if known.first else known.gone.get(token_of(*name), 0)
        return known
