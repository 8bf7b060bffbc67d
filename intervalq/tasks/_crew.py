"""The workers of one function: they claim, wait for a slot of a queue, run, and settle."""

from __future__ import annotations

import inspect
import logging
import math
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
from anyio import to_thread

from intervalq._backend import Bell, bells, loop_clock
from intervalq._queue import IntervalQueue
from intervalq.errors import (
    ClaimLost,
    IntervalqError,
    InvalidOption,
    StoreUnavailable,
    TransactionConflict,
    short,
)
from intervalq.tasks._demand import FIRST_POLL
from intervalq.tasks._desk import Settle
from intervalq.tasks._policy import Policy
from intervalq.tasks._session import WorkSession
from intervalq.tasks._task import Claim, unused
from intervalq.tasks.rules import Change, Delete, Depend, Insert
from intervalq.tasks.store import MOST_ROWS

log: Final = logging.getLogger("intervalq")

AHEAD: Final = 0.02
"""Seconds of work that are claimed before somebody is free to do it: more than a call to the store takes."""

STALE: Final = 1.0
"""Seconds after which what was claimed ahead, and has not begun, is given back for others."""

_CONFLICTS: Final = 5
"""How often a function is run again whose transaction met another one."""

Result = None | Insert | Change | Delete | Depend | Sequence[Insert | Change | Delete | Depend]
Work = Callable[[Claim], Awaitable[Any]] | Callable[[Claim], Any]


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
        self._waiting: deque[Claim] = deque()
        self._since = 0.0  # when the first of them came
        self._idle: list[Bell] = []
        self.running = 0
        """How many functions run."""
        self._ahead = 0
        self._usual = math.inf  # seconds that the function takes, on the average of late
        self._stopping = False
        self._error: IntervalqError | None = None
        self._bell = bells()
        self._now = loop_clock()

    # --- the demand ---------------------------------------------------------------------------------

    def room(self) -> int:
        """See `Demand.room`: those who do nothing, and what is claimed ahead for those who are quick."""
        if self._stopping:
            return 0
        return self._concurrency + self._ahead - self.running - len(self._waiting)

    def deliver(self, claims: list[Claim]) -> None:
        """See `Demand.deliver`."""
        if claims and self._stopping:
            self._give_back(claims)
            return
        if not self._waiting:
            self._since = self._now()
        self._waiting.extend(claims)
        for _ in range(min(len(claims), len(self._idle))):
            bell = self._idle.pop()
            if not bell.done():
                bell.set_result(None)

    def failed(self, error: IntervalqError) -> None:
        """See `Demand.failed`: workers wait for a store that is away."""
        if not isinstance(error, StoreUnavailable):
            self._error = error
            self.stop()

    # --- the runners --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`, and until what has begun by then has ended.

        Raises:
            StoreError: the store can't be worked with.
        """
        self._session.add(self)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_fresh, group.cancel_scope)
                for _ in range(self._concurrency):
                    group.start_soon(self._runner)
        finally:
            self._desk.drop(self)
            self._give_back(list(self._waiting))
            self._waiting.clear()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Begin with no more tasks; give back those that were claimed ahead."""
        self._stopping = True
        self._give_back(list(self._waiting))
        self._waiting.clear()
        idle, self._idle = self._idle, []
        for bell in idle:
            if not bell.done():
                bell.set_result(None)

    def _give_back(self, claims: list[Claim]) -> None:
        for claim in claims:
            if claim.open:
                self._desk.settle(Settle(claim, unused(claim.row)))

    async def _keep_fresh(self, scope: anyio.CancelScope) -> None:
        """Give back what was claimed ahead for somebody who turned out to be slow."""
        while not (self._stopping and not self.running):
            await anyio.sleep(STALE / 4)
            if self._waiting and self.job.pace is None and self._now() - self._since > STALE:
                self._ahead = 0
                self._usual = math.inf
                stale = list(self._waiting)
                self._waiting.clear()
                self._give_back(stale)
        del scope

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
                return
            # What it did was lost: the claim is somebody else's now. The next one is not.

    async def _next(self) -> Claim | None:
        while not self._waiting:
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
        claim = self._waiting.popleft()
        if not claim.open:
            return await self._next()
        return claim

    async def _do(self, claim: Claim) -> None:
        too_often = self.job.policy.exhausted(claim.row)
        if too_often is not None:
            self.counts["dead"] += 1
            self._desk.settle(Settle(claim, too_often))
            return
        begun = self._now()
        try:
            if self.job.pace is None:
                result = await self._call(claim)
            else:
                async with self.job.pace.slot():
                    result = await self._call(claim)
            if result is not None and claim.open:
                await claim.ack(*_changes(result))
            elif claim.open:
                self._desk.settle(Settle(claim, Delete(claim.row.id, claim.row.version)))
            self.counts["done"] += 1
        except ClaimLost as error:
            self.counts["lost"] += 1
            log.warning("%s", error)
        except Exception as error:  # noqa: BLE001 - it is kept with the task
            self._fail(claim, error)
        except BaseException:
            if claim.open:  # it was cancelled, not because it was lost: as if it had not begun
                self.counts["given back"] += 1
                self._desk.settle(Settle(claim, unused(claim.row)))
            else:
                self.counts["lost"] += 1
            raise
        self._measure(self._now() - begun)

    async def _call(self, claim: Claim) -> Any:  # noqa: ANN401 - what the function gives
        job = self.job
        for turn in range(_CONFLICTS + 1):
            try:
                if job.timeout is not None:
                    with anyio.fail_after(job.timeout):
                        return await self._invoke(claim)
                if self._is_async:
                    return await job.function(claim)
                return await self._invoke(claim)
            except TransactionConflict:
                if turn == _CONFLICTS:
                    raise
                await anyio.sleep(random.uniform(0, 0.01 * 2**turn))  # noqa: S311 - no secret
        raise AssertionError

    async def _invoke(self, claim: Claim) -> Any:  # noqa: ANN401 - as above
        if self._is_async:
            return await self.job.function(claim)
        result = await to_thread.run_sync(self.job.function, claim, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result

    def _fail(self, claim: Claim, error: Exception) -> None:
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


def _changes(result: Any) -> Sequence[Insert | Change | Delete | Depend]:  # noqa: ANN401 - to be looked at
    """What a function gave, as changes to make with the acknowledgement."""
    parts = result if isinstance(result, list | tuple) else [result]
    for part in parts:
        if not isinstance(part, Insert | Change | Delete | Depend):
            raise InvalidOption(
                f"a worker's function gave {short(part)}: give None, or changes such as tasks.new(...) to be "
                "made together with the acknowledgement"
            )
    return parts
