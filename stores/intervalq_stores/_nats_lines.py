"""What is stored for a task that comes, changes or goes: with a key, its line moves on in the same step.

The first of a line has the token of its key; the others wait behind it. Who changes a line says what it has
seen of it, so that of two at the same moment one has to look again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from intervalq.errors import InboxFull
from intervalq.tasks.rules import Row
from intervalq_stores import _nats_batch as batch
from intervalq_stores._nats_batch import Part
from intervalq_stores._nats_stream import Stream
from intervalq_stores._nats_task import headers_of, home_of, line_of, mark_of, place_of, token_of


@dataclass
class Line:
    """The tasks of a key."""

    name: str
    last: int = 0
    """The sequence of what was stored there last."""
    first: Row | None = None
    """Who has the token."""
    waiting: list[Row] = field(default_factory=list)
    seen: bool = False
    """What follows in the same step needn't say again what was seen."""


class Steps:
    """One step that is being put together."""

    def __init__(self, stream: Stream, *, look: bool) -> None:
        """Begin with nothing.

        Args:
            stream: where it is stored.
            look: look at the lines first. Else they are taken for empty, which is quick where they are.
        """
        self.parts: list[Part] = []
        self._stream = stream
        self._look = look
        self._lines: dict[tuple[str, str], Line] = {}

    def insert(self, row: Row, *, instead_of: int | None = None) -> int:
        """A task without a key; which part it is. In the place of a tombstone, if there is one."""
        if instead_of is None:
            return self._add(batch.new(home_of(row), row.json.encode(), headers_of(row)))
        return self._add(batch.instead(home_of(row), instead_of, row.json.encode(), headers_of(row)))

    async def enter(self, row: Row, *, inbox: int | None = None, replace: bool = False) -> int:
        """A task with a key goes to the end of its line; which part it is.

        Raises:
            InboxFull: so many wait there.
        """
        assert row.key is not None
        line = await self._line(row.queue, row.key)
        if replace:
            for other in line.waiting:
                self._add(batch.gone(place_of(other.queue, row.key, other.id), other.version))
            line.waiting.clear()
        waits = line.first is not None
        if inbox is not None and not replace and len(line.waiting) + waits > inbox:
            raise InboxFull(row.queue, row.key, inbox)
        row = row._replace(waiting=waits)
        part = Part(home_of(row), row.json.encode(), headers_of(row))
        if not waits:
            part = part._replace(headers=part.headers | {"Nats-Rollup": "sub"})
            line.first = row
        else:
            line.waiting.append(row)
        return self._add(self._guarded(part, line))

    def change(self, subject: str, sequence: int, row: Row) -> int:
        """A task stays where it is; which part it is."""
        return self._add(batch.instead(subject, sequence, row.json.encode(), headers_of(row)))

    async def remove(self, row: Row, subject: str, sequence: int) -> None:
        """A task goes, and the next of its key has the token."""
        if row.dedupe is not None:
            self.parts.append(_taken(row))
        if row.key is None or row.waiting:
            self._add(batch.gone(subject, sequence))
            return
        line = await self._line(row.queue, row.key, look=True)
        if not line.waiting:
            line.first = None
            self._add(self._guarded(batch.gone(subject, sequence), line))
            return
        after = line.waiting.pop(0)
        line.first = after._replace(waiting=False)
        self._add(
            batch.instead(token_of(row.queue, row.key), sequence, after.json.encode(), headers_of(line.first))
        )
        self._add(batch.gone(place_of(row.queue, row.key, after.id), after.version))

    def mark(self, row: Row) -> None:
        """A `dedupe_key` is taken as long as the task is there."""
        assert row.dedupe is not None
        self.parts.append(batch.new(mark_of(row.queue, row.dedupe), row.id.encode(), {}))

    def _add(self, part: Part) -> int:
        self.parts.append(part)
        return len(self.parts) - 1

    def _guarded(self, part: Part, line: Line) -> Part:
        if line.seen:
            return part
        line.seen = True
        return batch.within(part, line.name, line.last)

    async def _line(self, queue: str, key: str, *, look: bool = False) -> Line:
        known = self._lines.get((queue, key))
        if known is None:
            known = self._lines[queue, key] = Line(line_of(queue, key))
            if self._look or look:
                known.last, rows = await self._stream.line(known.name)
                known.waiting = [row for row in rows if row.waiting]
                known.first = next((row for row in rows if not row.waiting), None)
        return known


def _taken(row: Row) -> Part:
    """For a while after the task, its dedupe key is taken."""
    assert row.dedupe is not None
    seconds = max(1, -(-row.dedupe_for // 1_000_000))  # the server counts whole ones
    return Part(
        mark_of(row.queue, row.dedupe), row.id.encode(), {"Nats-Rollup": "sub", "Nats-TTL": f"{seconds}s"}
    )
