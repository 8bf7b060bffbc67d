"""Claims that wait for the runners of one function, and the demand that asks for more of them."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from intervalq._timing.backends import Waker, loop_clock
from intervalq.errors import IntervalqError, QueueClosed, StoreUnavailable
from intervalq.tasks._claim.endings import unused
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.demand import FIRST_POLL
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks._worker.job import Job
from intervalq.tasks.store import MAX_ROWS

AHEAD: Final = 0.02
"""Seconds of work to claim before a runner is free for it: more than a call to the store takes."""

STALE: Final = 1.0
"""Seconds after which a task that was claimed ahead and has not begun is given back."""

FIRST: Final = 32
SHARE: Final = 4
"""At most `FIRST` tasks are claimed ahead, plus one for each `SHARE` that the pool has done.

All of them may have to be repeated if the process dies: a process that keeps dying must still make progress.
"""


class Intake:
    """The demand of a pool (see `Demand`), and the claims that it got and has not begun."""

    def __init__(self, job: Job, session: WorkSession, concurrency: int, counts: Counter[str]) -> None:
        self.job = job
        self.queues = job.queues
        self.lease: int | None = None
        self.most: int | None = None
        self.due = 0.0
        self.poll = FIRST_POLL
        self.waiting: deque[Claim] = deque()
        """Claims in the order of their arrival."""
        self.suspects: deque[Claim] = deque()
        """Those of tasks that must run alone."""
        self.idle: list[Waker] = []
        """Wakes runners that have nothing to do."""
        self.running = 0
        """How many functions run."""
        self.stopping = False
        self.end: Callable[[IntervalqError | None], None] = lambda _error: None
        """Ends the pool; because of an error, if there is one."""
        self._counts = counts
        self._batcher = session.batcher
        self._run_alone = session.run_alone
        self._concurrency = concurrency
        self._size = job.batch or 1
        self._is_careful = False  # whether the last tasks to arrive must run alone
        self._proven = 0  # how many tasks were done at that time
        self._ahead = 0
        self._usual = math.inf  # the recent average duration of the function, in seconds
        self._now = loop_clock()

    # --- the demand ---------------------------------------------------------------------------------

    def room(self) -> int:
        """See `Demand.room`: what idle runners can take, and what to claim ahead for quick functions.

        Half of the latter at a time: while one half is being done, the store delivers the other.
        """
        if self.stopping or self.suspects:
            return 0
        waiting = len(self.waiting)
        if self._is_careful:
            return int(not waiting and self._run_alone.closed is None and self.running < self._concurrency)
        ahead = min(self._ahead, FIRST + (self._counts["done"] - self._proven) // SHARE)
        room = (self._concurrency - self.running) * self._size + ahead - waiting
        half = ahead // 2
        if waiting and room < half:
            return 0
        return min(room, max(half, self._concurrency * self._size))

    def begins(self, limit: int) -> int:
        """See `Demand.begins`. Paced tasks wait for slots, those of a chunk for others."""
        if self.job.pace is not None:
            return 0
        if self._is_careful:
            return 0 if self._run_alone.running else 2
        if self.job.batch is not None:
            return 0
        return int(limit <= len(self.idle) and self._run_alone.closed is None)

    def asked(self, limit: int) -> None:
        """See `Demand.asked`."""

    def deliver(self, claims: list[Claim]) -> list[Claim]:
        """See `Demand.deliver`."""
        back = claims if self.stopping else self._untimely(claims)
        self._counts["given back"] += len(back)
        if back:
            claims = [claim for claim in claims if claim not in back]
        now = self._now()
        for claim in claims:  # a pair of both in the queues would be one more object to collect
            claim._arrived = now
        usual = [claim for claim in claims if claim._range is not None or not claim._row.alone]
        self.waiting.extend(usual)
        if len(usual) < len(claims):
            self.suspects.extend([claim for claim in claims if claim._row.alone])
        if claims:
            self._is_careful = bool(self.suspects)
            self._proven = self._counts["done"] if self._is_careful else self._proven
            if self.job.within and self._batcher.hears:
                self.due = 0.0  # the store reports further tasks only after an answer without any
        self.wake(len(claims))
        return back

    def _untimely(self, claims: list[Claim]) -> list[Claim]:
        """Those that count as begun although they may not begin: a task that runs alone came in between.

        They would be charged if the process died while they wait.
        """
        return [] if self._run_alone.closed is None else [claim for claim in claims if claim._row.begun]

    def failed(self, error: IntervalqError) -> None:
        """See `Demand.failed`: workers wait for an unreachable store."""
        if isinstance(error, QueueClosed):
            self.end(None)
        elif not isinstance(error, StoreUnavailable):
            self.end(error)

    # --- its runners --------------------------------------------------------------------------------

    def wake(self, count: int) -> None:
        """Wake `count` idle runners."""
        for _ in range(min(count, len(self.idle))):
            waker = self.idle.pop()
            if not waker.done():
                waker.set_result(None)

    def wake_all(self) -> None:
        """Wake all idle runners."""
        self.wake(len(self.idle))

    def measure(self, took: float) -> None:
        """Note for how many seconds a function ran."""
        usual = self._usual
        self._usual = usual = took if usual == math.inf else usual + 0.1 * (took - usual)
        ahead = self._concurrency * self._size * AHEAD / max(usual, 1e-6)
        self._ahead = min(int(ahead), 2 * MAX_ROWS)

    def stop(self) -> None:
        """Take no more, and give everything back."""
        self.stopping = True
        self._give_back(self.waiting)
        self._give_back(self.suspects)
        self.wake_all()

    def refresh(self) -> bool:
        """Give back what has waited for too long; returns whether the function turned out to be slow."""
        if self.suspects and self._now() - self.suspects[0]._arrived > STALE:
            self._give_back(self.suspects)
        stale = STALE + self.job.within
        if not self.waiting or self.job.pace is not None or self._now() - self.waiting[0]._arrived <= stale:
            return False
        self._ahead = 0
        self._usual = math.inf
        self._give_back(self.waiting)
        return True

    def _give_back(self, waiting: deque[Claim]) -> None:
        while waiting:
            claim = waiting.popleft()
            if claim.open:
                self._counts["given back"] += 1
                self._batcher.settle(Settle(claim, unused(claim._row)))
