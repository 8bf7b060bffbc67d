"""Plain tasks claimed in ranges: each is settled by itself, and the store is told when all of one are."""

from __future__ import annotations

from collections.abc import Sequence

from intervalq.tasks._ids import PLAIN, new_id
from intervalq.tasks._task import Claim, unused
from intervalq.tasks.rules import Change, Delete, Failed, Finished, Insert, Range, Row


class OpenRange:
    """A range of plain tasks, of which some have not been settled."""

    def __init__(self, range_: Range, tasks: Sequence[tuple[int, str]], session: str) -> None:
        self.range = range_
        prefix = f"{PLAIN}{range_.part}-"
        queue = range_.queue
        self.rows = [
            Row(f"{prefix}{number}", 0, queue, 0, json, claims=1, attempt=1, session=session)
            for number, json in tasks
        ]
        self._open = len(self.rows)
        self._claims: list[Claim] = []
        self._failed: list[Failed] = []

    def claims(self, claims: list[Claim]) -> None:
        """These stand for its tasks."""
        self._claims = claims

    def settle(self, claim: Claim, part: Delete | Change) -> bool:
        """One of them was done, or not; whether that was the last."""
        if isinstance(part, Change):
            self._failed.append(Failed(int(claim.id.rpartition("-")[2]), _again(claim.row, part)))
        self._open -= 1
        return not self._open

    def finish_now(self) -> None:
        """What has not been settled is given back."""
        for claim in self._claims:
            if claim.open:
                self.settle(claim, unused(claim.row))
                claim.lose()

    def finished(self) -> Finished:
        """What the store is told."""
        return Finished(self.range, tuple(self._failed))


def _again(row: Row, change: Change) -> Insert:
    """A plain task that was not done, as the ordinary task that it becomes."""
    return Insert(
        row.queue if change.queue is None else change.queue,
        row.json,
        new_id(),
        delay=change.delay or 0,
        attempt=row.attempt if change.attempt is None else change.attempt,
        error=change.error or "",
    )
