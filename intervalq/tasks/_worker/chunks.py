"""Runners that call a function with several claims at once.

Each claim of a chunk is settled by itself: what the function has not settled is acknowledged when it returns,
and has failed when it raises. A claim that is lost meanwhile is the function's to notice; the function is
cancelled when nothing is left that it could settle.

What may be one task's fault must not end others. So a task runs in a chunk of its own if it may have killed a
process, and for its last attempt, unless that is also the first one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._observe.telemetry import traced
from intervalq._queue.slot import Slot
from intervalq._timing.backends import loop_clock, wakers
from intervalq.errors import ClaimLost, DependencyError, TransactionConflict
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.commit import ack_with
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.calls import Calls, NoSlotError
from intervalq.tasks._worker.intake import Intake
from intervalq.tasks._worker.job import changes_of, has_changes
from intervalq.tasks._worker.outcomes import NO_SLOT, Outcomes
from intervalq.tasks._worker.suspects import run_suspect, tell

log: Final = logging.getLogger("intervalq")


class Chunk:
    """The claims of one call."""

    def __init__(self, holds: Callable[[Claim], bool], *claims: Claim) -> None:
        """Create one of these claims; `holds` tells whether its session still has a claim."""
        self._holds = holds
        self.claims = [*claims]
        self.lost = 0
        """How many of them are known to be lost; some of these were cancelled."""
        self.is_coming = False
        """Whether it is to be filled when its slot comes."""
        self.begun: float | None = None
        """When it began; None: it has not."""
        self.runs = True
        """Whether its function has not returned."""
        self.scope = anyio.CancelScope()

    def open(self) -> list[Claim]:
        """The claims that can still be settled."""
        return [claim for claim in self.claims if claim.open]

    def one_lost(self) -> None:
        """Note that one of the claims is lost."""
        self.lost += 1
        # A claim that is being settled isn't open, but still held: the function waits for the answer.
        # If all of them are lost, that is noted in their order: from the end, the search is short.
        if self.runs and not any(claim.open or self._holds(claim) for claim in reversed(self.claims)):
            self.scope.cancel()


class Chunks:
    """The runners of a function that is called with a list of claims. `run` is one of them."""

    def __init__(self, session: WorkSession, intake: Intake, outcomes: Outcomes) -> None:
        job, function = intake.job, traced(intake.job.function)
        self._session = session
        self._intake = intake
        self._outcomes = outcomes
        self._batcher = session.batcher
        self._run_alone = session.run_alone
        self._counts = outcomes.counts
        self._policy = job.policy
        self._size, self._within = job.batch or 1, job.within
        self._calls: Calls[Chunk] = Calls(
            job, lambda chunk: function(chunk.open()), self._slot, self._began, self._tell
        )
        self.stop = self._calls.stop
        """Prevent calls that still wait for a slot from beginning."""
        self._is_in_doubt = session.is_in_doubt if session.may_doubt else None
        self._is_paced = job.pace is not None
        self._coming = 0  # how many chunks wait for their slots
        self._new_waker = wakers()
        self._now = loop_clock()

    async def run(self) -> None:
        """Work until the intake stops."""
        intake = self._intake
        while await self._ready():
            if intake.waiting:
                await self._do(Chunk(self._session.holds))
            else:
                claim = intake.suspects.popleft()
                await run_suspect(claim, self._do_one, self._session, intake, self._outcomes)

    def time_next(self) -> None:
        """Every chunk is timed."""

    # --- when a chunk begins --------------------------------------------------------------------------

    async def _ready(self) -> bool:
        """Wait until one more chunk may begin, or wait for its slot; False: no more will."""
        intake = self._intake
        while True:
            await checkpoint()
            if intake.stopping:
                return False
            self._batcher.breath = now = self._now()
            until = math.inf
            if self._run_alone.closed is None:
                self._skip_settled()
                ahead = self._coming * self._size  # these are for others
                left = len(intake.waiting) - ahead
                if left > 0:
                    first = intake.waiting[ahead]
                    until = first._arrived + (0 if first._row.begun else self._within)  # else it is charged
                if left >= self._size or until <= now or (intake.suspects and not intake.waiting):
                    return True
            await self._rest(until - now)

    def _skip_settled(self) -> None:
        waiting = self._intake.waiting
        while waiting and not waiting[0].open:
            waiting.popleft()

    async def _rest(self, seconds: float) -> None:
        waker = self._new_waker()
        self._intake.idle.append(waker)
        self._batcher.poke()
        try:
            with anyio.move_on_after(seconds):
                await waker
        finally:
            if waker in self._intake.idle:
                self._intake.idle.remove(waker)

    def _fill(self, chunk: Chunk) -> bool:
        """Take the claims of a chunk from those that wait; returns whether there are any."""
        waiting, claims, size = self._intake.waiting, chunk.claims, self._size
        append, take, may_doubt = claims.append, waiting.popleft, self._is_in_doubt is not None
        while waiting and len(claims) < size:
            claim = waiting[0]
            is_new = claim._range is not None or not claim._row.attempt
            if is_new and claim.open and not may_doubt:  # most are
                append(take())
                continue
            is_last = claim._row.attempt > 0 and self._policy.is_last(claim)
            if is_last and claims:
                break
            waiting.popleft()
            if claim._row.attempt > 0 and claim.open and self._outcomes.is_dead(claim):
                continue
            if self._is_in_doubt is not None and self._is_in_doubt(claim):
                self._outcomes.unused(claim)
            elif claim.open:
                claims.append(claim)
                if is_last:
                    break
        if waiting:
            self._intake.wake(1)
        return bool(claims)

    # --- one chunk ------------------------------------------------------------------------------------

    async def _do_one(self, claim: Claim) -> None:
        if not (claim._row.attempt and self._outcomes.is_dead(claim)):
            await self._do(Chunk(self._session.holds, claim))

    async def _do(self, chunk: Chunk) -> None:
        """Call the function with a chunk, which is filled just before, and settle its claims."""
        if self._is_paced:
            chunk.is_coming = not chunk.claims
            self._coming += chunk.is_coming
        elif not self._begins(chunk):
            return
        self._run_alone.running += 1
        try:
            with chunk.scope:
                await self._call(chunk)
        finally:
            self._arrived(chunk)
            self._run_alone.running -= 1
            if self._run_alone.closed is not None:
                self._run_alone.ended()
            self._end(chunk)

    def _arrived(self, chunk: Chunk) -> None:
        """Note that a chunk doesn't wait for its slot any more."""
        self._coming -= chunk.is_coming
        chunk.is_coming = False

    def _slot(self, _chunk: Chunk) -> AbstractAsyncContextManager[Slot] | None:
        pace = self._intake.job.pace
        return None if pace is None else pace.slot(None)

    async def _tell(self, chunk: Chunk) -> bool:
        return any([await tell(claim, self._session) for claim in chunk.claims])

    def _began(self, chunk: Chunk, slot: Slot | None) -> bool:
        """Fill a chunk whose slot has come; returns whether it may begin."""
        self._arrived(chunk)
        if self._intake.stopping or any(self._session.is_in_doubt(claim) for claim in chunk.claims):
            return False
        if chunk.claims and not chunk.open():  # lost while it waited for its slot
            return False
        begins = chunk.begun is not None or self._begins(chunk)  # it may be called again
        for claim in chunk.claims:
            claim._slot = slot
        return begins

    def _begins(self, chunk: Chunk) -> bool:
        """Note that a chunk begins, once it is filled; returns whether it has any claims."""
        if not chunk.claims and not self._fill(chunk):
            return False
        chunk.begun = self._now()
        self._intake.running += 1
        on_lost, keep_for, begun = chunk.one_lost, self._intake.job.keep_for, chunk.begun
        for claim in chunk.claims:
            claim._on_lost = on_lost
            claim._since = begun
            if keep_for and not claim._keep_for:
                claim._keep_for = keep_for
        self._batcher.begun.chunk(chunk, chunk.claims, begun)
        self._batcher.poke()
        return True

    async def _call(self, chunk: Chunk) -> None:
        try:
            try:
                result = await self._result(chunk)
            finally:  # what is settled, and isn't lost, was settled by the function
                chunk.runs = False
                left = chunk.open()
                self._counts["done"] += len(chunk.claims) - len(left) - chunk.lost
            await self._returned(chunk, left, result)
        except NoSlotError:
            self._without_slot(chunk)
        except ClaimLost as error:
            self._give_back(chunk, error)
        except Exception as error:  # noqa: BLE001 - it is stored with the tasks
            for claim in chunk.open():
                self._outcomes.failed(claim, error)
        except BaseException as error:
            if self._outcomes.interrupted(chunk.open(), error):
                raise

    async def _result(self, chunk: Chunk) -> Any:  # noqa: ANN401 - the function's result
        try:
            return await self._calls.begin(chunk)
        except TransactionConflict:
            return await self._calls.again(chunk)

    async def _returned(self, chunk: Chunk, left: list[Claim], result: Any) -> None:  # noqa: ANN401 - as above
        """Settle the claims that the function has left, by its result.

        Returned changes may be those of a task that somebody else does by now. Then none of them are made.
        """
        if result is None or not has_changes(result):
            self._batcher.all_done(left)
        elif chunk.lost:
            self._give_back(
                chunk, "some of its tasks were lost, so the changes that it returned are not made"
            )
            return
        elif not left:
            log.error("a chunk was settled before its function returned changes: they are lost")
        else:
            try:
                await ack_with(self._session, left, changes_of(result))
            except DependencyError as error:
                instead = await self._outcomes.instead(left, error)
                if instead is None:
                    for claim in chunk.open():
                        self._outcomes.repeated(claim, error)
                    return
                await ack_with(self._session, left, changes_of(instead))
        self._counts["done"] += len(left)

    def _give_back(self, chunk: Chunk, why: object) -> None:
        left = chunk.open()
        if left:
            log.warning("%d tasks of a chunk of queue %r will be repeated: %s", len(left), left[0].queue, why)
        for claim in left:
            self._outcomes.unused(claim)

    def _without_slot(self, chunk: Chunk) -> None:
        self._arrived(chunk)
        if not (chunk.claims or self._intake.stopping):
            self._fill(chunk)
        for claim in chunk.open():
            self._outcomes.unused(claim, None if self._intake.stopping else NO_SLOT)

    def _end(self, chunk: Chunk) -> None:
        """Note that a chunk has ended: losing its claims from now on must not cancel anything."""
        if chunk.begun is not None:
            self._batcher.begun.chunk_ended(chunk)
            self._intake.running -= 1
            self._intake.measure(self._now() - chunk.begun)
        for claim in chunk.claims:
            claim._on_lost = None
        if chunk.lost:
            cancelled = [claim for claim in chunk.claims if self._outcomes.is_cancelled(claim)]
            self._counts["lost"] += chunk.lost - len(cancelled)
            for claim in cancelled:
                self._outcomes.ended(claim)
