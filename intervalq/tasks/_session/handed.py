"""What a store has claimed for a session by itself: which of it the session takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from intervalq.tasks._claim.task import Claim, unused
from intervalq.tasks.rules import Row, Select, Work
from intervalq.tasks.store import TaskStore


class Handed:
    """Claims come by notices, and what was claimed is also found by looking: each is taken once."""

    def __init__(self) -> None:
        self.missed = False
        """Whether a notice may have been lost, so that something is claimed which nobody knows of."""
        self._returned: dict[str, int] = {}  # versions

    async def recover(self, store: TaskStore, session: str, held: Mapping[str, Claim]) -> None:
        """Give back what is claimed and nobody knows of: what a notice says of it comes too late."""
        self.missed = False
        try:
            rows = await store.apply(Select(session=session, values=False))
            found = [row for row in rows if _is_unknown(row, held.get(row.id))]
            self._returned = {row.id: row.version for row in found}
            if found:
                await store.apply(Work(session, tuple(map(unused, found))))
        except BaseException:
            self.missed = True
            raise

    def news(self, rows: Iterable[Row], held: Mapping[str, Claim]) -> Iterator[Row]:
        """Those that nobody knows of yet."""
        for row in rows:
            claim = held.get(row.id)
            known = self._returned.get(row.id, -1) if claim is None else claim.row.version
            if row.version > known:
                yield row


def _is_unknown(row: Row, claim: Claim | None) -> bool:
    """A renewal whose answer was lost is one version ahead; what was given back and came again is two."""
    return claim is None or row.version > claim.row.version + 1
