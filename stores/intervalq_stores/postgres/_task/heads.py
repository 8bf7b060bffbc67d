"""Where the last claims of tasks in Postgres ended, so that the next ones can begin there."""

from __future__ import annotations

from typing import Final, NamedTuple


class Head(NamedTuple):
    """Where the last claim of a queue ended: nearly everything before it is claimed, or dead rows."""

    ready: int
    id: str
    uses: int = 0


class Heads:
    """Where the claims of each queue begin, so that they needn't scan all dead rows each time.

    From time to time, and whenever a claim gets too few tasks, it begins at the start, where tasks are that
    were given back, or inserted with a time in the past.
    """

    _max_queues: Final = 10_000
    _max_uses: Final = 16

    def __init__(self) -> None:
        self._of: dict[str, Head] = {}

    def take(self, queue: str) -> Head | None:
        """Where to begin; this counts as one use."""
        head = self._of.get(queue)
        if head is None or head.uses >= self._max_uses:
            return None
        self._of[queue] = head._replace(uses=head.uses + 1)
        return head

    def put(self, queue: str, ready: int, uuid: str) -> None:
        """Remember where a claim ended."""
        before = self._of.get(queue)
        if len(self._of) >= self._max_queues:
            self._of.clear()
        uses = 0 if before is None or before.uses >= self._max_uses else before.uses
        self._of[queue] = Head(ready, uuid, uses)
