"""The workers of one function: they claim tasks, wait for a slot of a queue, run the function, and settle."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._timing.backends import Waker, is_cancelled, loop_clock, wakers
from intervalq.errors import (
    ClaimLost,
    IntervalqError,
    QueueClosed,
    StoreUnavailable,
    TransactionConflict,
)
from intervalq.tasks._claim.settlement import Settle
from intervalq.tasks._claim.task import Claim, unused
from intervalq.tasks._session.demand import FIRST_POLL
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.calls import Calls, NoSlotError
from intervalq.tasks._worker.job import Job
from intervalq.tasks._worker.outcomes import Outcomes
from intervalq.tasks.store import MAX_ROWS

log: Final = logging.getLogger("intervalq")

AHEAD: Final = 0.02
"""Seconds of work to claim before a runner is free for it: more than a call to the store takes."""

STALE: Final = 1.0
"""Seconds after which a task that was claimed ahead and has not begun is given back."""

BREATH: Final = 0.002
"""Seconds for which quick functions run before they yield to the event loop, which sends settlements."""

FIRST: Final = 32
SHARE: Final = 4
"""At most `FIRST` tasks are claimed ahead, plus one for each `SHARE` that the pool has done.

All of them may have to be repeated if the process dies: a process that keeps dying must still make progress.
"""

_NO_SLOT: Final = 1_000_000
"""Microseconds for which a task rests that was given back because its queue gave no slot."""

_SAMPLE: Final = 8
"""One of this many tasks is timed."""


class WorkerPool:
    """Several runners of one function, and the demand that feeds them."""

    def __init__(self, job: Job, session: WorkSession, concurrency: int) -> None:
        self.job = job
        self.queues = job.queues
        self.lease: int | None = None
        self.most: int | None = None
        self.due = 0.0
        self.poll = FIRST_POLL
        self._session = session
        self._batcher = session.batcher
        self._outcomes = Outcomes(job, session.batcher)
        self.counts = self._outcomes.counts
        self._concurrency = concurrency
        self._is_in_doubt = session.is_in_doubt if session.may_doubt else None
        self._calls = Calls(job, self._began)
        self._run_alone = session.run_alone
        self._waiting: deque[tuple[float, Claim]] = deque()  # with the time since which each has waited
        self._suspects: deque[tuple[float, Claim]] = deque()  # likewise, for tasks that are to run alone
        self._is_careful = False  # whether the last tasks to arrive were such
        self._proven = 0  # how many tasks were done at that time
        self._idle: list[Waker] = []
        self.running = 0
        """How many functions run."""
        self._ahead = 0
        self._sample = -1
        self._usual = math.inf  # the recent average duration of the function, in seconds
        self._stopping = False
        self.error: BaseException | None = None
        """The error that ended it."""
        self.on_error: Callable[[], None] | None = None
        self._new_waker = wakers()
        self._now = loop_clock()
        self._at = self._now()  # when the next task was last looked for

    # --- the demand ---------------------------------------------------------------------------------

    def room(self) -> int:
        """See `Demand.room`: one task for each idle runner, and those to claim ahead for quick functions.

        Half of the latter at a time: while one half is being done, the store delivers the other.
        """
        if self._stopping or self._suspects:
            return 0
        waiting = len(self._waiting)
        if self._is_careful:
            return int(not waiting and self._run_alone.closed is None and self.running < self._concurrency)
        ahead = min(self._ahead, FIRST + (self.counts["done"] - self._proven) // SHARE)
        room = self._concurrency + ahead - self.running - waiting
        half = ahead // 2
        if waiting and room < half:
            return 0
        return min(room, max(half, self._concurrency))

    def begins(self, limit: int) -> int:
        """See `Demand.begins`."""
        if self._is_careful:
            return 0 if self._run_alone.running else 2
        return int(limit <= len(self._idle) and self.job.pace is None and self._run_alone.closed is None)

    def asked(self, limit: int) -> None:
        """See `Demand.asked`."""

    def deliver(self, claims: list[Claim]) -> list[Claim]:
        """See `Demand.deliver`."""
        if self._stopping:
            self.counts["given back"] += len(claims)
            return claims
        now = self._now()
        for claim in claims:
            (self._suspects if claim._row.alone else self._waiting).append((now, claim))
        if claims:
            self._is_careful = bool(self._suspects)
            self._proven = self.counts["done"] if self._is_careful else self._proven
        self._wake(len(claims))
        return []

    def _wake(self, count: int) -> None:
        """Wake `count` idle runners."""
        for _ in range(min(count, len(self._idle))):
            waker = self._idle.pop()
            if not waker.done():
                waker.set_result(None)

    def _wake_all(self) -> None:
        self._wake(len(self._idle))

    def failed(self, error: IntervalqError) -> None:
        """See `Demand.failed`: workers wait for an unreachable store."""
        if isinstance(error, QueueClosed):
            self.stop()
        elif not isinstance(error, StoreUnavailable):
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        self.error = self.error or error
        self.stop()
        if self.on_error is not None:
            self.on_error()

    # --- the runners --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`, and until all begun tasks have ended; or until `error`."""
        self._session.add(self)
        self._run_alone.on_open.append(self._wake_all)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_fresh)
                async with anyio.create_task_group() as runners:
                    for _ in range(self._concurrency):
                        runners.start_soon(self._runner)
                group.cancel_scope.cancel()
        finally:
            self._batcher.drop(self)
            self._run_alone.on_open.remove(self._wake_all)
            self.stop()

    def stop(self) -> None:
        """Begin no more tasks; give back those that were claimed ahead."""
        self._stopping = True
        self._calls.stop()
        self._give_back(self._waiting)
        self._give_back(self._suspects)
        self._wake_all()

    def _give_back(self, waiting: deque[tuple[float, Claim]]) -> None:
        """Give back tasks that were claimed ahead."""
        while waiting:
            claim = waiting.popleft()[1]
            if claim.open:
                self.counts["given back"] += 1
                self._batcher.settle(Settle(claim, unused(claim._row)))

    async def _keep_fresh(self) -> None:
        """Give back tasks that were claimed ahead if the function turns out to be slow."""
        while True:
            await anyio.sleep(STALE / 4)
            self._run_alone.tire()
            if self._suspects and self._now() - self._suspects[0][0] > STALE:
                self._give_back(self._suspects)
            if self._waiting and self.job.pace is None and self._now() - self._waiting[0][0] > STALE:
                self._ahead = 0
                self._sample = -1
                self._usual = math.inf
                self._give_back(self._waiting)

    async def _runner(self) -> None:
        cancelled = self._batcher.cancelled.known
        while True:  # a claim that is lost ends the scope that it was worked on in, not the next one's
            with anyio.CancelScope() as scope:
                cancel = scope.cancel
                while (claim := self._first() or await self._next()) is not None:
                    claim._on_lost = cancel
                    try:
                        await (self._alone(claim) if claim._row.alone else self._do(claim))
                    finally:
                        claim._on_lost = None  # losing it from now on must not cancel the next function
                        if cancelled:
                            self._outcomes.ended(claim)
                    if scope.cancel_called:  # the function had ended anyway; don't cancel the next one
                        break
                else:
                    return

    def _first(self) -> Claim | None:
        """The claim to begin now; None: see `_next`."""
        self._at = self._now()
        if self._at - self._batcher.breath > BREATH or self._run_alone.closed is not None:
            return None
        while self._waiting or self._suspects:
            claim = (self._waiting or self._suspects).popleft()[1]
            if self._is_in_doubt is not None and self._is_in_doubt(claim):
                self._outcomes.unused(claim)
            elif claim.open:
                return claim
        return None

    async def _next(self) -> Claim | None:
        """Wait for the next claim to begin, and yield to others first; None: there are no more."""
        while True:
            if self._at - self._batcher.breath > BREATH:
                await checkpoint()
                self._batcher.breath = self._now()
            claim = self._first()
            if claim is not None:
                return claim
            if self._stopping:
                return None
            waker = self._new_waker()
            self._idle.append(waker)
            self._batcher.poke()
            try:
                await waker
            finally:
                if waker in self._idle:
                    self._idle.remove(waker)
            self._batcher.breath = self._now()

    async def _alone(self, claim: Claim) -> None:
        """Run a task that may kill the process: alone, and after its start was reported to the store."""
        key = self._run_alone.close()
        try:
            if self.job.policy.exhausted(claim) is None:
                await self._run_alone.quiet()
            if claim.open and not self._stopping and not claim._row.begun:
                self._batcher.poke()
                await self._batcher.begun.first(claim)
                claim._began = True
            if self._stopping or self._session.is_in_doubt(claim):
                self._outcomes.unused(claim)
            elif claim.open:
                await self._do(claim)
        except BaseException:
            if claim.open:
                self._outcomes.unused(claim)
            raise
        finally:
            self._run_alone.open(key)

    async def _do(self, claim: Claim) -> None:
        if claim._row.attempt and self._outcomes.is_dead(claim):
            return
        begun = self._begins_one(claim)
        try:
            try:
                result = await self._calls.begin(claim)
            except TransactionConflict:
                result = await self._calls.again(claim)
            if result is None and claim.open:
                self._batcher.done(claim)
                self.counts["done"] += 1
            else:
                await self._outcomes.returned(claim, result)
        except ClaimLost as error:
            self._outcomes.lost(claim, error)
        except NoSlotError:
            self._outcomes.unused(claim, None if self._stopping else _NO_SLOT)
        except Exception as error:  # noqa: BLE001 - it is stored with the task
            self._outcomes.failed(claim, error)
        except BaseException as error:
            if self._interrupted(claim, error):
                raise
        finally:
            self.running -= 1
            self._run_alone.running -= 1
            if self._run_alone.closed is not None:
                self._run_alone.ended()
        if begun:
            self._measure(self._now() - begun)

    def _begins_one(self, claim: Claim) -> float:
        """Note that a task begins. Returns the time if the task is one of those that are timed, else 0."""
        self.running += 1
        self._run_alone.running += 1
        if self.job.pace is None and not claim._began:
            self._batcher.began(claim, self._at)
        self._sample += 1
        return 0.0 if self._sample % _SAMPLE else self._now()

    def _began(self, claim: Claim) -> bool:
        if self._stopping or self._session.is_in_doubt(claim):
            return False
        if not claim._began:
            self._batcher.began(claim, self._now())
        return True

    def _interrupted(self, claim: Claim, error: BaseException) -> bool:
        """Give a task back that was cancelled, or whose process ends. Returns whether to raise the error.

        If the function itself raised the error, the attempt counts, because it would do so each time.
        """
        is_cancellation = isinstance(error, anyio.get_cancelled_exc_class())
        if isinstance(error, SystemExit) or (is_cancellation and not is_cancelled()):
            self._outcomes.failed(claim, error)
        else:
            self._outcomes.unused(claim)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._end_with(error)
            return False
        return not is_cancellation or is_cancelled()

    def _measure(self, took: float) -> None:
        usual = self._usual
        self._usual = usual = took if usual == math.inf else usual + 0.1 * (took - usual)
        ahead = self._concurrency * AHEAD / max(usual, 1e-6)
        self._ahead = min(int(ahead), 2 * MAX_ROWS)
