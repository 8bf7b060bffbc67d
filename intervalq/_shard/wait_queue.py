"""The waiting jobs of one shard, in the order in which they will begin."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from intervalq._shard.grants import GrantRange
    from intervalq._shard.store_time import StoreTime
    from intervalq._timing.backends import Waker
    from intervalq.rules import Slot, State, Units


_numbers: Final = count()
_order: Final = attrgetter("order")

_ENOUGH: Final = 3
"""How many times in a row a caller must come back before a ticket is taken ahead for it: an unsteady caller
wastes one slot in this many."""


class Waiter:
    """One job's place in the queue of its shard."""

    # Every job needs one of these, so attributes that few of them set have their defaults in the class.

    cost = 1
    """How many consecutive slots it takes: it begins at the first, and the others stay empty."""
    units: Units = ()
    """What it takes of the queue's limits; empty: its cost of those that count starts."""
    early = 0
    """How long before its slot the job is started, in microseconds: it then waits for the slot itself."""
    in_thread = False
    """Whether it begins in a thread, at an instant that the shard doesn't see."""
    handed_at = 0
    """When it got its slot in a thread, on the process's own clock."""
    again = False
    """Whether the job waited before, so that it may still enter while the queue drains."""
    was_late = False
    """Whether its thread came too late for the slot before."""
    error: Exception | None = None
    """Why this job won't get a slot any more."""
    entered = False
    """Whether it was added to the wait queue."""
    gone = False
    """Whether it has left the wait queue: it began, was given up by its caller, or failed."""
    start: Callable[[], object] | None = None
    """Starts the job's task once its slot may have come; None: it already has a task."""
    since: int | None = None
    """When it began to wait, if somebody observes that."""
    within: int | None = None
    """The microseconds in which the job must begin; it is refused once it is known to be late. None: any."""
    latest: int | None = None
    """The end of that time, on the process's own clock."""
    _waker: Waker | None = None

    def __init__(
        self,
        priority: int = 0,
        cost: int = 1,
        early: int = 0,
        *,
        in_thread: bool = False,
        order: tuple[int, int] | None = None,
        again: bool = False,
        units: Units = (),
    ) -> None:
        self.order = order or (-priority, next(_numbers))
        """Sorts the wait queue: higher priorities first, then first come, first served."""
        if cost > 1:
            self.cost = cost
        if early:
            self.early = early
        if in_thread:
            self.in_thread = True
        if again:
            self.again = again
        if units:
            self.units = units

    def fits(self, slot: Slot | GrantRange) -> bool:
        """Whether a slot has room for the job."""
        if slot.cost < self.cost:
            return False
        return not self.units or (
            bool(slot.units) and all(has >= takes for has, takes in zip(slot.units, self.units, strict=False))
        )

    @property
    def may_take_ready(self) -> bool:
        """Whether it may take any ready slot: it doesn't wait yet, begins in its task, and needs one."""
        return not self.entered and self.cost == 1 and not self.in_thread and not self.units

    def wait(self, waker: Waker) -> Waker:
        """What to await until the next check is due: a slot may have come, or there is an error."""
        self._waker = waker
        return waker

    def wake(self) -> None:
        """Let the job check whether its slot has come."""
        waker, self._waker = self._waker, None
        if waker is not None:
            if not waker.done():
                waker.set_result(None)
        elif self.start is not None:
            start, self.start = self.start, None
            start()


class WaitQueue:
    """Waiters by priority and order of arrival. A waiter that has left is dropped when its turn comes."""

    def __init__(self) -> None:
        self._ranks: dict[int, deque[Waiter]] = {}
        self._in_order: list[deque[Waiter]] = []  # the ranks, the most urgent first
        self.waiting = 0
        """How many jobs wait."""
        self.mixed = False
        """Whether any job ever needed more than one slot, or units of its own."""
        self.has_deadlines = False
        """Whether any job ever had a time in which to begin."""

    def __len__(self) -> int:
        return self.waiting

    def add(self, waiter: Waiter) -> None:
        """Insert a waiter at the place that its order gives it."""
        priority = waiter.order[0]
        rank = self._ranks.get(priority)
        if rank is None:
            rank = self._ranks[priority] = deque()
            self._in_order = [self._ranks[key] for key in sorted(self._ranks)]
        if not rank or rank[-1].order < waiter.order:
            rank.append(waiter)
        else:  # it waited before, or others overtook it while the store was asked about its deadline
            rank.insert(bisect_left(rank, waiter.order, key=_order), waiter)
        self.waiting += 1
        self.mixed = self.mixed or waiter.cost > 1 or bool(waiter.units)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, for whatever reason; a second call has no effect."""
        if not waiter.gone:
            waiter.gone = True
            self.waiting -= 1
            kept = sum(map(len, self._in_order))
            if kept > 64 and self.waiting < kept // 2:
                self._sweep()

    def first(self) -> Waiter | None:
        """The next waiter; None: nobody waits."""
        for rank in self._in_order:
            while rank and rank[0].gone:
                rank.popleft()
            if rank:
                return rank[0]
        return None

    def in_order(self) -> Iterator[Waiter]:
        """All waiters, the next one first."""
        for rank in self._in_order:
            for waiter in rank:
                if not waiter.gone:
                    yield waiter

    def has_behind(self, order: tuple[int, int]) -> bool:
        """Whether jobs behind a place in the wait queue wait, or waited recently."""
        own = self._ranks.get(order[0])
        return bool(own and own[-1].order > order) or any(rank > order[0] for rank in self._ranks)

    def _sweep(self) -> None:
        """Forget waiters that have left."""
        left = list(self.in_order())
        self._ranks.clear()
        for waiter in left:
            self._ranks.setdefault(waiter.order[0], deque()).append(waiter)
        self._in_order = [self._ranks[key] for key in sorted(self._ranks)]


class Returning:
    """Whether a shard's only caller comes back in time for a ticket that was taken ahead for it.

    A shard with one caller that comes again and again would send two requests per job: for a ticket, and for
    the grant of its slot. If others keep the queue busy, and the caller has been back before the slot of the
    next ticket came near, that ticket is taken with the request for the previous grant: one request per job.
    If the caller stays away, the slot stays empty.
    """

    def __init__(self) -> None:
        self.ticket = 0
        """The ticket that was taken ahead and is still unused; 0: none."""
        self._times = 0

    @property
    def is_likely(self) -> bool:
        """Whether to take the next ticket before anybody wants it."""
        return self._times >= _ENOUGH

    def came(self, time: StoreTime, state: State | None, at: int) -> None:
        """Note that a caller came while nobody waited: in time for the next ticket's slot, or not."""
        if state is not None:
            in_time = time.clock.surely(state.due + state.held_total) - at > time.together(state)
            self._times = self._times + 1 if in_time else 0
            self.ticket = 0

    def took(self, ticket: int) -> None:
        """Note that a ticket was taken ahead."""
        self.ticket = ticket

    def stayed_away(self) -> None:
        """Note that nobody came before the grant of its slot had to be requested."""
        self._times = self.ticket = 0
