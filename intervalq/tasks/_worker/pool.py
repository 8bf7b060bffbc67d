"""The workers of one function: they claim, wait for a slot of a queue, run, and settle."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._timing.backends import Waker, is_cancelled, loop_clock, wakers
from intervalq._timing.backoff import backoff
from intervalq.errors import (
    ClaimLost,
    DependencyError,
    IntervalqError,
    QueueClosed,
    StoreUnavailable,
    TransactionConflict,
    plain,
)
from intervalq.tasks._claim.task import Claim, unused
from intervalq.tasks._session.demand import FIRST_POLL
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks._worker.calls import Calls, NoSlotError
from intervalq.tasks._worker.job import Job, changes_of
from intervalq.tasks.store import MAX_ROWS

log: Final = logging.getLogger("intervalq")

AHEAD: Final = 0.02
"""Seconds of work that are claimed before somebody is free to do it: more than a call to the store takes."""

STALE: Final = 1.0
"""Seconds after which what was claimed ahead, and has not begun, is given back for others."""

BREATH: Final = 0.002
"""Seconds that quick functions run for before the event loop has its turn, to tell what was done."""

FIRST: Final = 32
SHARE: Final = 4
"""At most `FIRST` tasks, and one for each `SHARE` that it has done, are claimed ahead.

All of them may have to be done again when the process dies: one that dies again and again is to get ahead.
"""

_NO_SLOT: Final = 1_000_000
"""Microseconds for which a task rests that was given back because its pace couldn't be asked for a slot."""

_SAMPLE: Final = 8
"""Of so many tasks one is timed."""

_MAX_PAUSES: Final = 6
"""How often the pause doubles before a task is done again whose changes could not be made."""


class WorkerPool:
    """Several runners of one function, and the demand that feeds them."""

    def __init__(self, job: Job, session: WorkSession, concurrency: int) -> None:
        self.job = job
        self.queues = job.queues
        self.lease: int | None = None
        self.most: int | None = None
        self.due = 0.0
        self.poll = FIRST_POLL
        self.counts: Counter[str] = Counter()
        """How many tasks were `done`, `failed`, `dead`, `given back` or `lost` here."""
        self._session = session
        self._batcher = session.batcher
        self._concurrency = concurrency
        self._is_in_doubt = session.is_in_doubt if session.may_doubt else None
        self._calls = Calls(job, self._began)
        self._run_alone = session.run_alone
        self._waiting: deque[tuple[float, Claim]] = deque()  # since when each has
        self._suspects: deque[tuple[float, Claim]] = deque()  # likewise; those that are to run alone
        self._is_careful = False  # the last that came were such
        self._proven = 0  # how many it had done when that was so
        self._idle: list[Waker] = []
        self.running = 0
        """How many functions run."""
        self._ahead = 0
        self._sample = -1
        self._usual = math.inf  # seconds that the function takes, on the average of late
        self._stopping = False
        self.error: BaseException | None = None
        """Why it can't go on."""
        self.on_error: Callable[[], None] | None = None
        self._new_waker = wakers()
        self._now = loop_clock()
        self._at = self._now()  # when it was looked last for what is to begin

    # --- the demand ---------------------------------------------------------------------------------

    def room(self) -> int:
        """See `Demand.room`: those who do nothing, and what is claimed ahead for those who are quick.

        Half of that at a time: while one half is done, the store gives the other.
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
            (self._suspects if claim.row.alone else self._waiting).append((now, claim))
        if claims:
            self._is_careful = bool(self._suspects)
            self._proven = self.counts["done"] if self._is_careful else self._proven
        self._wake(len(claims))
        return []

    def _wake(self, count: int) -> None:
        """So many of those who are idle have something to do."""
        for _ in range(min(count, len(self._idle))):
            waker = self._idle.pop()
            if not waker.done():
                waker.set_result(None)

    def _wake_all(self) -> None:
        self._wake(len(self._idle))

    def failed(self, error: IntervalqError) -> None:
        """See `Demand.failed`: workers wait for a store that is away."""
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
        """Work until `stop`, and until what has begun by then has ended; or until `error`."""
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
        """Begin with no more tasks; give back those that were claimed ahead."""
        self._stopping = True
        self._calls.stop()
        self._give_back(self._waiting)
        self._give_back(self._suspects)
        self._wake_all()

    def _give_back(self, waiting: deque[tuple[float, Claim]]) -> None:
        """Don't begin with what was claimed ahead."""
        while waiting:
            claim = waiting.popleft()[1]
            if claim.open:
                self.counts["given back"] += 1
                self._batcher.settle(Settle(claim, unused(claim.row)))

    async def _keep_fresh(self) -> None:
        """Give back what was claimed ahead for somebody who turned out to be slow."""
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
        while True:
            with anyio.CancelScope() as scope:
                cancel = scope.cancel
                while (claim := self._first() or await self._next()) is not None:
                    claim.on_lost = cancel
                    await (self._alone(claim) if claim.row.alone else self._do(claim))
                    if scope.cancel_called:  # the function ended all the same; the next one is not to suffer
                        break
                else:
                    return
            # What it did was lost: the claim is somebody else's now. The next one is not.

    def _first(self) -> Claim | None:
        """What is to begin now; None: see `_next`."""
        self._at = self._now()
        if self._at - self._batcher.breath > BREATH or self._run_alone.closed is not None:
            return None
        while self._waiting or self._suspects:
            claim = (self._waiting or self._suspects).popleft()[1]
            if self._is_in_doubt is not None and self._is_in_doubt(claim):
                self._unused(claim)
            elif claim.open:
                return claim
        return None

    async def _next(self) -> Claim | None:
        """What is to begin, once there is something and others had their turn; None: nothing any more."""
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
        """Run a task that may end the process, beside no other, and with the store knowing of it."""
        key = self._run_alone.close()
        try:
            if self.job.policy.exhausted(claim) is None:
                await self._run_alone.quiet()
            if claim.open and not self._stopping and not claim.row.begun:
                self._batcher.poke()
                await self._batcher.begun.first(claim)
                claim.began = True
            if self._stopping or self._session.is_in_doubt(claim):
                self._unused(claim)
            elif claim.open:
                await self._do(claim)
        except BaseException:
            if claim.open:
                self._unused(claim)
            raise
        finally:
            claim.on_lost = None
            self._run_alone.open(key)

    async def _do(self, claim: Claim) -> None:
        too_often = self.job.policy.exhausted(claim) if claim.row.attempt else None
        if too_often is not None:
            self.counts["dead"] += 1
            log.error(
                "task %s of queue %r is dead: %s", plain(claim.id), claim.queue, plain(too_often.error or "")
            )
            self._batcher.settle(Settle(claim, too_often))
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
                self.counts["done"] += await self._end(claim, result)
        except ClaimLost as error:
            self.counts["lost"] += 1
            log.warning("%s", error)
        except NoSlotError:
            self._unused(claim, None if self._stopping else _NO_SLOT)
        except Exception as error:  # noqa: BLE001 - it is kept with the task
            self._fail(claim, error)
        except BaseException as error:
            if self._interrupted(claim, error):
                raise
        finally:
            claim.on_lost = None
            self.running -= 1
            self._run_alone.running -= 1
            if self._run_alone.closed is not None:
                self._run_alone.ended()
        if begun:
            self._measure(self._now() - begun)

    def _begins_one(self, claim: Claim) -> float:
        """It runs from now on. Gives when that was, if it is one of those that are timed, else 0."""
        self.running += 1
        self._run_alone.running += 1
        if self.job.pace is None and not claim.began:
            self._batcher.began(claim, self._at)
        self._sample += 1
        return 0.0 if self._sample % _SAMPLE else self._now()

    def _began(self, claim: Claim) -> bool:
        if self._stopping or self._session.is_in_doubt(claim):
            return False
        if not claim.began:
            self._batcher.began(claim, self._now())
        return True

    async def _end(self, claim: Claim, result: Any) -> bool:  # noqa: ANN401 - to be looked at
        """Settle a claim by what its function gave; whether the task is done.

        Changes that others were faster with are no failure of the attempt, however often that happens.
        """
        if not claim.open:
            if result is not None:
                log.error(
                    "task %s was settled before its function gave changes: they are lost", plain(claim.id)
                )
            return True
        try:
            await claim.ack(*changes_of(result))
        except DependencyError as error:
            if self.job.on_dependency is not None:
                instead = self.job.on_dependency(claim, error)
                instead = await instead if inspect.isawaitable(instead) else instead
                if instead is not None:
                    await claim.ack(*changes_of(instead))
                    return True
            log.info("task %s of queue %r is to be done again: %s", plain(claim.id), claim.queue, error)
            pause = backoff(min(claim.row.claims, _MAX_PAUSES), self.job.policy.backoff)
            self._unused(claim, round(pause * 1e6))
            return False
        return True

    def _interrupted(self, claim: Claim, error: BaseException) -> bool:
        """Cancelled, or the process is to end: as if it had not begun. Whether to raise that here.

        But not where the function itself raised it, for it would do so each time.
        """
        is_cancellation = isinstance(error, anyio.get_cancelled_exc_class())
        if isinstance(error, SystemExit) or (is_cancellation and not is_cancelled()):
            self._fail(claim, error)
        else:
            self._unused(claim)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._end_with(error)
            return False
        return not is_cancellation or is_cancelled()

    def _unused(self, claim: Claim, delay: int | None = None) -> None:
        if not claim.open:
            self.counts["lost"] += 1
            return
        self.counts["given back"] += 1
        self._batcher.settle(Settle(claim, replace(unused(claim.row), delay=delay)))

    def _fail(self, claim: Claim, error: BaseException) -> None:
        change = self.job.policy.failed(claim, error)
        said = plain(change.error or "")
        if change.queue is not None and change.queue != claim.queue:
            self.counts["dead"] += 1
            log.error("task %s of queue %r is dead: %s", plain(claim.id), claim.queue, said)
        else:
            self.counts["failed"] += 1
            log.warning("task %s of queue %r failed: %s", plain(claim.id), claim.queue, said)
        if claim.open:
            self._batcher.settle(Settle(claim, change))

    def _measure(self, took: float) -> None:
        usual = self._usual
        self._usual = usual = took if usual == math.inf else usual + 0.1 * (took - usual)
        ahead = self._concurrency * AHEAD / max(usual, 1e-6)
        self._ahead = min(int(ahead), 2 * MAX_ROWS)
