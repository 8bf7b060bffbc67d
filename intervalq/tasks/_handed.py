"""What a store has claimed for a session by itself: which of it the session takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from intervalq.tasks._task import Claim
from intervalq.tasks.rules import Row


class Handed:
    """Claims come by notices, and what was claimed is also found by looking: each is taken once."""

    def __init__(self) -> None:
        self.missed = False
        """Whether a notice may have been lost, so that something is claimed which nobody knows of."""
        self._returned: dict[str, int] = {}  # versions

    def give_back(self, rows: Iterable[Row]) -> None:
        """These were found and are given back: what a notice says of them comes too late."""
        self._returned = {row.id: row.version for row in rows}

    def news(self, rows: Iterable[Row], held: Mapping[str, Claim]) -> Iterator[Row]:
        """Those that nobody knows of yet."""
        for row in rows:
            claim = held.get(row.id)
            known = self._returned.get(row.id, -1) if claim is None else claim.row.version
            if row.version > known:
                yield row
