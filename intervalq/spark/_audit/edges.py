"""The second step at edges of blocks: compares the last row of one with the first of the next. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from intervalq.spark._audit.scan.order import FIRST_SLOT, FIRST_START, LAST_SLOT, LAST_START, REST
from intervalq.spark._audit.scan.rows import ROUNDING


@dataclass(frozen=True, slots=True)
class Edge:
    """A row at the edge of a block."""

    bin: int
    at: float
    due: float | None
    ticket: int | None


@dataclass(slots=True)
class Joined:
    """The gap between two blocks, which belongs to the first row of the later one."""

    row: Edge
    kinds: list[str] = field(default_factory=list)
    gap: float | None = None
    unused: int = 0


class Edges:
    """Collects the edges of all blocks, and joins them."""

    def __init__(self) -> None:
        self._rows: dict[int, defaultdict[int, dict[int, Edge]]] = {
            mark: defaultdict(dict) for mark in (FIRST_START, LAST_START, FIRST_SLOT, LAST_SLOT)
        }

    def add(self, group: dict[str, Any]) -> None:
        """Add a group if its marks say that it is a row at an edge."""
        for mark, of_queue in self._rows.items():
            if group["flags"] & mark:
                edge = Edge(group["bin"], group["at"], group["due"], group["ticket"])
                of_queue[group["q"]][group["block"]] = edge

    def join(
        self, intervals: dict[int, float], *, burst: int, tolerance: float | None
    ) -> Iterator[tuple[int, Joined]]:
        """The findings at a queue's edges, for each queue's number.

        Args:
            intervals: by the queue's number, seconds.
            burst: starts that may come at once; without one, slots have to be an interval apart, less the
                tolerance.
            tolerance: seconds; None: a tenth of each interval.
        """
        for queue, interval in intervals.items():
            slack = interval * burst if burst > 1 else 0.0  # those that come at once have no order
            for before, row in self._pairs(queue, FIRST_START, LAST_START):
                joined = Joined(row, gap=row.at - before.at)
                if before.due is not None and row.due is not None and before.due > row.due + slack + ROUNDING:
                    joined.kinds.append("order_inverted")
                yield queue, joined
            for before, row in self._pairs(queue, FIRST_SLOT, LAST_SLOT):
                late = interval / 10 if tolerance is None else tolerance
                yield queue, _slots(before, row, interval - late if burst == 1 else 0.0)

    def _pairs(self, queue: int, first: int, last: int) -> Iterator[tuple[Edge, Edge]]:
        firsts, lasts = self._rows[first][queue], self._rows[last][queue]
        before: Edge | None = None
        for block in sorted(firsts.keys() | lasts.keys()):
            row = firsts.get(block)
            if before is not None and row is not None:  # those with a halo are checked
                yield before, row
            before = lasts.get(block, before)


def _slots(before: Edge, row: Edge, least: float) -> Joined:
    """The checks of slots, as within a block. Two slots at one instant are never in two blocks."""
    joined = Joined(row)
    assert before.due is not None and row.due is not None  # noqa: PT018 - both have slots
    step = row.due - before.due
    if step < least - 1e-6 - ROUNDING:
        joined.kinds.append("slots_close")
    if before.ticket is None or row.ticket is None:
        return joined
    skipped = row.ticket - before.ticket
    if skipped == 0:
        joined.kinds.append("ticket_twice")
    elif skipped < 0:
        joined.kinds.append("queue_restarted" if step >= REST or row.ticket == 1 else "slot_order")
    joined.unused = max(0, skipped - 1)
    return joined
