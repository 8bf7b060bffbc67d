"""The jobs of one shard that wait for a slot, in the order in which they will begin."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from intervalq._link import Go

_numbers: Final = count()


class Waiter:
    """One job's place in the line. It is handed a slot, and answers whether it began in time."""

    __slots__ = ("_event", "again", "cost", "early", "entered", "error", "gone", "heard", "order", "slot")

    def __init__(
        self,
        *,
        priority: int = 0,
        cost: int = 1,
        early: int = 0,
        order: tuple[int, int] | None = None,
        again: bool = False,
    ) -> None:
        self.order = order or (-priority, next(_numbers))
        """Sorts the line: higher priorities first, then first come, first served."""
        self.cost = cost
        self.early = early
        """How long before its slot it is handed over, in microseconds: it waits for the rest by itself."""
        self.again = again
        """Of a job that was in line before: it may still enter while the queue drains."""
        self.slot: Go | None = None
        """The slot that is being handed over; None: none at the moment."""
        self.error: Exception | None = None
        """Why this job won't get a slot any more."""
        self.entered = False
        """Was put in line."""
        self.gone = False
        """Began, was given up by its caller, or failed: no longer in the line."""
        self.heard: anyio.Event | None = None
        """Set when the job has answered the hand-over."""
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Until a slot is handed over or an error is set."""
        if self.slot is None and self.error is None:
            self._event = anyio.Event()
            await self._event.wait()

    def wake(self) -> None:
        """Let the job look at its slot or its error."""
        if self._event is not None:
            self._event.set()
            self._event = None

    def answer(self) -> None:
        """The hand-over is over, with whatever outcome."""
        self.slot = None
        if self.heard is not None:
            self.heard.set()
            self.heard = None


class Line:
    """Waiters by priority and order of arrival. A waiter that leaves is dropped when it comes up."""

    def __init__(self) -> None:
        # The number is for a job that comes again, to the place of one that left and is not dropped yet.
        self._heap: list[tuple[tuple[int, int], int, Waiter]] = []
        self._waiting = 0
        self.cost = 0
        """How many slots all the waiting jobs need together."""

    def __len__(self) -> int:
        return self._waiting

    def add(self, waiter: Waiter) -> None:
        """To the place that its order gives it."""
        heapq.heappush(self._heap, (waiter.order, next(_numbers), waiter))
        self._waiting += 1
        self.cost += waiter.cost

    def remove(self, waiter: Waiter) -> None:
        """The waiter leaves, for whatever reason; leaving twice is leaving once."""
        if not waiter.gone:
            waiter.gone = True
            self._waiting -= 1
            self.cost -= waiter.cost
            if len(self._heap) > 64 and self._waiting < len(self._heap) // 2:
                self._heap = [entry for entry in self._heap if not entry[-1].gone]
                heapq.heapify(self._heap)

    def first(self) -> Waiter | None:
        """Who is next; None: nobody waits."""
        while self._heap and self._heap[0][-1].gone:
            heapq.heappop(self._heap)
        return self._heap[0][-1] if self._heap else None

    def in_order(self) -> list[Waiter]:
        """Everybody who waits, the next one first."""
        return [waiter for _, _, waiter in sorted(self._heap) if not waiter.gone]

    def slots_before(self, waiter: Waiter, most: int) -> int | None:
        """How many slots those before a waiter need; None: `most` or more, or it is not in line."""
        slots = 0
        for other in [] if waiter.gone else self.in_order():
            if slots >= most:
                break
            if other is waiter:
                return slots
            slots += other.cost
        return None
