"""Tasks that a store has claimed for an idle session: makes sure that the session takes each only once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from intervalq.tasks._claim.endings import unused
from intervalq.tasks._claim.task import Claim
from intervalq.tasks.rules import Row, Select, Work
from intervalq.tasks.store import TaskStore


class Handed:
    """Claims arrive by notices, and are also found by queries: each is taken once."""

    def __init__(self) -> None:
        self.missed = False
        """Whether a notice may have been lost, so that there may be unknown claims."""
        self._returned: dict[str, int] = {}  # versions

    async def recover(self, store: TaskStore, session: str, held: Mapping[str, Claim]) -> None:
        """Give back unknown claims; later notices about these are ignored."""
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
        """The rows that are not known yet."""
        for row in rows:
            claim = held.get(row.id)
            known = self._returned.get(row.id, -1) if claim is None else claim._row.version
            if row.version > known:
                yield row


def _is_unknown(row: Row, claim: Claim | None) -> bool:
    """After a renewal with a lost answer, a row is one version ahead; given back and claimed again, two.

    A cancelled one is known by other ways, and its function may still be running.
    """
    if row.cancelled:
        return False
    return claim is None or row.version > claim._row.version + 1
