"""Demands: what a session is asked to claim, and to whom its claims are delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import anyio

from intervalq._timing.backends import Waker
from intervalq.errors import IntervalqError
from intervalq.tasks._claim.task import Claim

FIRST_POLL: Final = 0.05
LAST_POLL: Final = 0.5
"""The longest polling interval, in seconds, for stores without wake-ups; the interval grows up to it."""
CHECK: Final = 5.0
"""The polling interval for stores with wake-ups, in case one is lost. A wake-up is also sent for tasks that
become ready within this time."""


class Demand(Protocol):
    """A demand for tasks of the same queues on the same terms."""

    queues: tuple[str, ...]
    lease: int | None
    most: int | None
    due: float
    """When to ask for tasks, in seconds on the session's clock; earlier if there is something to settle."""
    poll: float

    def room(self) -> int:
        """How many tasks it would take now."""
        ...

    def begins(self, limit: int) -> int:
        """Which of `limit` tasks begin at once. See `Work.begins`."""
        ...

    def asked(self, limit: int) -> None:
        """Note that the store is being asked for `limit` tasks; 0: that request has failed."""
        ...

    def deliver(self, claims: list[Claim]) -> list[Claim]:
        """Take claims, possibly none, and return those that nobody wants any more."""
        ...

    def failed(self, error: IntervalqError) -> None:
        """Note that the store can't be asked, permanently or for a minute."""
        ...


def offer(claim: Claim, demands: Iterable[Demand]) -> bool:
    """Give an unrequested claim to a demand whose terms it meets; returns whether one took it."""
    row = claim._row
    for demand in demands:
        fits = row.queue in demand.queues and (demand.lease is None) == (row.until is None)
        if fits and demand.most is None and demand.room() > 0 and not demand.deliver([claim]):
            return True
    return False


class Together:
    """Unmet demands on the same terms, requested together, because a store wakes a session as a whole.

    The store knows only the queues of a session's last request. No more is requested than any one of
    the demands could take alone.
    """

    def __init__(self, demands: Sequence[Demand]) -> None:
        self.queues = tuple(dict.fromkeys(queue for demand in demands for queue in demand.queues))
        self.lease, self.most = demands[0].lease, demands[0].most
        self.due = min(demand.due for demand in demands)
        self.poll = min(demand.poll for demand in demands)
        self._demands = demands

    def room(self) -> int:
        """See `Demand.room`."""
        return min(demand.room() for demand in self._demands)

    def begins(self, limit: int) -> int:
        """See `Demand.begins`: the demand that gets a task reports its start."""
        del limit
        return 0

    def asked(self, limit: int) -> None:
        """See `Demand.asked`."""
        for demand in self._demands:
            demand.asked(limit)

    def deliver(self, claims: list[Claim]) -> list[Claim]:
        """See `Demand.deliver`. All demands also get the time and interval of the next poll."""
        for demand in self._demands:
            demand.due, demand.poll = self.due, self.poll
            mine = [claim for claim in claims if claim._row.queue in demand.queues]
            back = demand.deliver(mine)
            claims = back + [claim for claim in claims if claim not in mine]
        return claims

    def failed(self, error: IntervalqError) -> None:
        """See `Demand.failed`."""
        for demand in self._demands:
            demand.failed(error)


def together(demand: Demand, demands: Iterable[Demand]) -> Demand:
    """The demand itself; or, if its last request found nothing, all such demands together."""
    some = [
        other
        for other in demands
        if (other.lease, other.most) == (demand.lease, demand.most)
        and other.poll > FIRST_POLL
        and other.room() > 0
    ]
    return Together(some) if len(some) > 1 and demand in some else demand


class Request:
    """One call that waits for tasks."""

    __slots__ = ("asked", "claims", "count", "error", "is_over", "once", "waker", "was_asked")

    def __init__(self, count: int, waker: Waker, *, once: bool) -> None:
        self.count = count
        self.waker = waker
        self.once = once
        """Whether it ends with nothing once the store was asked."""
        self.asked = False
        """Whether a call to the store for it is in flight."""
        self.was_asked = False
        """Whether a call was ever made for it."""
        self.is_over = False
        """Whether its time is up, so that it only takes what that call brings."""
        self.claims: list[Claim] = []
        self.error: IntervalqError | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it has tasks, or an error."""
        return bool(self.claims) or self.error is not None

    def wake(self) -> None:
        """Wake it, because it has what it waited for."""
        if not self.waker.done():
            self.waker.set_result(None)


class WaitingCalls:
    """Calls of `claim` and `fetch` for the same queues: first come, first served."""

    def __init__(
        self,
        queues: tuple[str, ...],
        lease: int | None,
        most: int | None,
        empty: Callable[[WaitingCalls], None],
    ) -> None:
        self.queues = queues
        self.lease = lease
        self.most = most
        self.due = 0.0
        self.poll = FIRST_POLL
        self.requests: deque[Request] = deque()
        self._is_new = False  # whether a request came after the store was asked last
        self._empty = empty

    def room(self) -> int:
        """See `Demand.room`."""
        return sum(request.count for request in self.requests if not request.is_over)

    def begins(self, limit: int) -> int:
        """See `Demand.begins`: every task that is given to a caller has begun."""
        del limit
        return 2

    def asked(self, limit: int) -> None:
        """See `Demand.asked`."""
        self._is_new = self._is_new and limit == 0
        for request in self.requests:
            request.asked = limit > 0
            request.was_asked = request.was_asked or request.asked
            if not request.is_over:
                limit -= request.count

    def join(self, request: Request) -> None:
        """Wait. If nothing waits, the store is asked at once."""
        self.requests.append(request)
        self._is_new = True
        self.due, self.poll = 0.0, FIRST_POLL

    def leave(self, request: Request) -> None:
        """Stop waiting."""
        if request in self.requests:
            self.requests.remove(request)
            self._end_if_empty()

    def deliver(self, claims: list[Claim]) -> list[Claim]:
        """See `Demand.deliver`. Calls that came after the request don't end with an empty answer."""
        for claim in claims:
            claim._began, claim._lease = True, self.lease
            claim._since = anyio.current_time() if claim._keep_for else None
        for request in list(self.requests):
            request.claims, claims = claims[: request.count], claims[request.count :]
            if request.claims or (request.asked and request.once):
                self.requests.remove(request)
                request.wake()
            request.asked = False
        if self._is_new:
            self.due = 0.0
        self._end_if_empty()
        return claims

    def failed(self, error: IntervalqError) -> None:
        """See `Demand.failed`."""
        for request in self.requests:
            request.error = error
            request.asked = False
            request.wake()
        self.requests.clear()
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if not self.requests:
            self._empty(self)
