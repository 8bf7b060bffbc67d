"""Outcomes in memory, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from intervalq.rules import FOREVER
from intervalq.tasks.rules import OutcomeRow, Outcomes, day_of


class MemoryOutcomes:
    """The outcomes of a table."""

    def __init__(self) -> None:
        # Plain tuples of texts and numbers: the garbage collector looks at each of them only once, but at
        # named ones again and again.
        self._rows: list[tuple[Any, ...]] = []
        self._first = FOREVER
        """The least `until` of all."""
        self._places: dict[str, tuple[int, ...]] = {}
        """The positions in `_rows` of a task's outcomes."""
        self._placed = 0  # how many rows are in `_places`, which costs nothing until somebody asks by id

    def put(self, fields: tuple[Any, ...]) -> None:
        """Add an outcome."""
        self._rows.append(fields)
        until = fields[-1]
        if until < self._first:  # noqa: PLR1730 - `min` takes twice as long
            self._first = until

    def sweep(self, now: int) -> None:
        """Drop the days that are over."""
        today = day_of(now)
        if day_of(self._first) >= today:
            return
        self._rows = [row for row in self._rows if day_of(row[-1]) >= today]  # the last field is `until`
        self._first = min((row[-1] for row in self._rows), default=FOREVER)
        self._places, self._placed = {}, 0

    def find(self, command: Outcomes, now: int) -> list[OutcomeRow]:
        """See `Table.outcomes`."""
        rows = self._of(dict.fromkeys(command.ids)) if command.ids else reversed(self._rows)
        found = (
            one
            for one in map(OutcomeRow._make, rows)
            if one.until > now and command.queue in (None, one.queue) and command.state in (None, one.state)
        )
        return list(islice(found, command.limit))

    def _of(self, ids: Iterable[str]) -> Iterable[tuple[Any, ...]]:
        """The outcomes of tasks with these ids."""
        places, rows = self._places, self._rows
        for place in range(self._placed, len(rows)):
            id_ = rows[place][0]
            places[id_] = (*places.get(id_, ()), place)
        self._placed = len(rows)
        return [rows[place] for place in sorted(place for id_ in ids for place in places.get(id_, ()))]
