"""The workers of one function: they claim, wait for a slot of a queue, run, and settle."""

from __future__ import annotations

import inspect
import logging
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import anyio
from anyio import to_thread

from intervalq._queue.queue import IntervalQueue
from intervalq._timing.backends import Waker, is_cancelled, loop_clock, wakers
from intervalq.errors import (
    ClaimLost,
    IntervalqError,
    InvalidOption,
    QueueClosed,
    StoreUnavailable,
    TransactionConflict,
    short,
)
from intervalq.tasks._demand import FIRST_POLL
from intervalq.tasks._policy import Policy
from intervalq.tasks._session import WorkSession
from intervalq.tasks._settle import Settle
from intervalq.tasks._task import Claim, unused
from intervalq.tasks.rules import Change, Delete, Depend, Insert
from intervalq.tasks.store import MOST_ROWS

log: Final = logging.getLogger("intervalq")

AHEAD: Final = 0.02
"""Seconds of work that are claimed before somebody is free to do it: more than a call to the store takes."""

STALE: Final = 1.0
"""Seconds after which what was claimed ahead, and has not begun, is given back for others."""

_NO_SLOT: Final = 1_000_000
"""Microseconds for which a task rests that was given back because its pace couldn't be asked for a slot."""

_SAMPLE: Final = 8
"""Of so many tasks one is timed."""

_CONFLICTS: Final = 5
"""How often a function is run again whose transaction met another one."""

Result = None | Insert | Change | Delete | Depend | Sequence[Insert | Change | Delete | Depend]
Run = Callable[[Claim], Awaitable[Any]]
Work = Run | Callable[[Claim], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A function and how it is run. See `Tasks.worker`."""

    function: Work
    queues: tuple[str, ...]
    pace: IntervalQueue | None
    concurrency: int | None
    policy: Policy
    timeout: float | None


class Crew:
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
        self._desk = session.desk
        self._concurrency = concurrency
        self._is_async = inspect.iscoroutinefunction(job.function)
        plain: Run = cast("Run", job.function) if self._is_async else self._in_thread
        self._call: Run = plain if job.timeout is None else self._timed
        self._begin: Run = self._call if job.pace is None else self._paced
        self._waiting: deque[tuple[float, Claim]] = deque()  # since when each has
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
        self._bell = wakers()
        self._now = loop_clock()

    # --- the demand ---------------------------------------------------------------------------------

    def room(self) -> int:
        """See `Demand.room`: those who do nothing, and what is claimed ahead for those who are quick.

        Half of that at a time: while one half is done, the store gives the other.
        """
        if self._stopping:
            return 0
        waiting = len(self._waiting)
        room = self._concurrency + self._ahead - self.running - waiting
        half = self._ahead // 2
        if waiting and room < half:
            return 0
        return min(room, max(half, self._concurrency))

    def asked(self, limit: int) -> None:
        """See `Demand.asked`."""

    def deliver(self, claims: list[Claim]) -> list[Claim]:
        """See `Demand.deliver`."""
        if self._stopping:
            self.counts["given back"] += len(claims)
            return claims
        now = self._now()
        self._waiting.extend((now, claim) for claim in claims)
        for _ in range(min(len(claims), len(self._idle))):
            bell = self._idle.pop()
            if not bell.done():
                bell.set_result(None)
        return []

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
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_fresh)
                async with anyio.create_task_group() as runners:
                    for _ in range(self._concurrency):
                        runners.start_soon(self._runner)
                group.cancel_scope.cancel()
        finally:
            self._desk.drop(self)
            self.stop()

    def stop(self) -> None:
        """Begin with no more tasks; give back those that were claimed ahead."""
        self._stopping = True
        self._give_back()
        idle, self._idle = self._idle, []
        for bell in idle:
            if not bell.done():
                bell.set_result(None)

    def _give_back(self) -> None:
        """Don't begin with what was claimed ahead."""
        waiting, self._waiting = self._waiting, deque()
        for _, claim in waiting:
            if claim.open:
                self.counts["given back"] += 1
                self._desk.settle(Settle(claim, unused(claim.row)))

    async def _keep_fresh(self) -> None:
        """Give back what was claimed ahead for somebody who turned out to be slow."""
        while True:
            await anyio.sleep(STALE / 4)
            if self._waiting and self.job.pace is None and self._now() - self._waiting[0][0] > STALE:
                self._ahead = 0
                self._sample = -1
                self._usual = math.inf
                self._give_back()

    async def _runner(self) -> None:
        while True:
            with anyio.CancelScope() as scope:
                while (claim := await self._next()) is not None:
                    self.running += 1
                    claim.on_lost = scope.cancel
                    try:
                        await self._do(claim)
                    finally:
                        claim.on_lost = None
                        self.running -= 1
                    if scope.cancel_called:  # the function ended all the same; the next one is not to suffer
                        break
                else:
                    return
            # What it did was lost: the claim is somebody else's now. The next one is not.

    async def _next(self) -> Claim | None:
        while True:
            while self._waiting:
                claim = self._waiting.popleft()[1]
                if claim.open:
                    return claim
            if self._stopping:
                return None
            bell = self._bell()
            self._idle.append(bell)
            self._desk.poke()
            try:
                await bell
            finally:
                if bell in self._idle:
                    self._idle.remove(bell)

    async def _do(self, claim: Claim) -> None:
        too_often = self.job.policy.exhausted(claim.row)
        if too_often is not None:
            self.counts["dead"] += 1
            log.error("task %s of queue %r is dead: %s", claim.id, claim.queue, too_often.error)
            self._desk.settle(Settle(claim, too_often))
            return
        self._sample += 1
        begun = 0.0 if self._sample % _SAMPLE else self._now()
        try:
            try:
                result = await self._begin(claim)
            except TransactionConflict:
                result = await self._again(claim)
            if result is not None and claim.open:
                await claim.ack(*_changes(result))
            elif claim.open:
                self._desk.settle(Settle(claim, Delete(claim.row.id, claim.row.version)))
            elif result is not None:
                log.error("task %s was settled before its function gave changes: they are lost", claim.id)
            self.counts["done"] += 1
        except ClaimLost as error:
            self.counts["lost"] += 1
            log.warning("%s", error)
        except _NoSlotError as error:
            log.warning("task %s of queue %r got no slot: %s", claim.id, claim.queue, error.__cause__)
            self._unused(claim, _NO_SLOT)
        except Exception as error:  # noqa: BLE001 - it is kept with the task
            self._fail(claim, error)
        except BaseException as error:
            if self._interrupted(claim, error):
                raise
        if begun:
            self._measure(self._now() - begun)

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
        self._desk.settle(Settle(claim, replace(unused(claim.row), delay=delay)))

    async def _paced(self, claim: Claim) -> Any:  # noqa: ANN401 - what the function gives
        assert self.job.pace is not None
        has_begun = False
        try:
            async with self.job.pace.slot():
                has_begun = True
                return await self._call(claim)
        except IntervalqError as error:
            if has_begun:
                raise
            raise _NoSlotError from error

    async def _again(self, claim: Claim) -> Any:  # noqa: ANN401 - as above
        """Run a function whose transaction met another one, until it doesn't."""
        for turn in range(_CONFLICTS - 1):
            await anyio.sleep(random.uniform(0, 0.01 * 2**turn))  # noqa: S311 - no secret
            try:
                return await self._call(claim)
            except TransactionConflict:
                pass
        return await self._call(claim)

    async def _timed(self, claim: Claim) -> Any:  # noqa: ANN401 - as above
        with anyio.fail_after(self.job.timeout):
            return await (self.job.function(claim) if self._is_async else self._in_thread(claim))

    async def _in_thread(self, claim: Claim) -> Any:  # noqa: ANN401 - as above
        # A limit of its own: there are more runners than threads that all share.
        own = anyio.CapacityLimiter(1)
        result = await to_thread.run_sync(self.job.function, claim, abandon_on_cancel=True, limiter=own)
        return await result if inspect.isawaitable(result) else result

    def _fail(self, claim: Claim, error: BaseException) -> None:
        change = self.job.policy.failed(claim.row, error)
        if change.queue is not None and change.queue != claim.queue:
            self.counts["dead"] += 1
            log.error("task %s of queue %r is dead: %s", claim.id, claim.queue, change.error)
        else:
            self.counts["failed"] += 1
            log.warning("task %s of queue %r failed: %s", claim.id, claim.queue, change.error)
        if claim.open:
            self._desk.settle(Settle(claim, change))

    def _measure(self, took: float) -> None:
        usual = self._usual
        self._usual = usual = took if usual == math.inf else usual + 0.1 * (took - usual)
        ahead = self._concurrency * AHEAD / max(usual, 1e-6)
        self._ahead = min(int(ahead), MOST_ROWS)


class _NoSlotError(Exception):
    """The pace could not be asked for a slot, for the reason that is its cause."""


def _changes(result: Any) -> Sequence[Insert | Change | Delete | Depend]:  # noqa: ANN401 - to be looked at
    """What a function gave, as changes to make with the acknowledgement."""
    parts: Sequence[Any] = [result]
    if isinstance(result, list | tuple) and not isinstance(result, Insert | Delete):  # which are tuples, too
        parts = result
    for part in parts:
        if not isinstance(part, Insert | Change | Delete | Depend):
            raise InvalidOption(
                f"a worker's function gave {short(part)}: give None, or changes such as tasks.new(...) to be "
                "made together with the acknowledgement"
            )
    return parts
