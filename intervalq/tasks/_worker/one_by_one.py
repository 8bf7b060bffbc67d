"""A runner that calls a function with one claim at a time, as fast as it can."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from intervalq._observe.telemetry import traced
from intervalq._queue.slot import Slot
from intervalq._timing.backends import loop_clock, wakers
from intervalq.errors import ClaimLost, TransactionConflict
from intervalq.tasks._claim.endings import written
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.calls import Calls, NoSlotError
from intervalq.tasks._worker.intake import Intake
from intervalq.tasks._worker.job import has_changes
from intervalq.tasks._worker.outcomes import NO_SLOT, Outcomes
from intervalq.tasks._worker.suspects import run_suspect, tell

BREATH: Final = 0.002
"""Seconds for which quick functions run before they yield to the event loop, which sends settlements."""

_SAMPLE: Final = 8
"""One of this many tasks is timed."""


class OneByOne:
    """The runners of a function that is called with one claim. `run` is one of them."""

    def __init__(self, session: WorkSession, intake: Intake, outcomes: Outcomes) -> None:
        self._session = session
        self._intake = intake
        self._outcomes = outcomes
        self._batcher = session.batcher
        self._run_alone = session.run_alone
        self._counts = outcomes.counts
        self._waiting, self._suspects = intake.waiting, intake.suspects
        self._is_in_doubt = session.is_in_doubt if session.may_doubt else None
        self._calls = Calls(
            intake.job, traced(intake.job.function), self._slot, self._began, partial(tell, session=session)
        )
        self.stop = self._calls.stop
        """Prevent calls that still wait for a slot from beginning."""
        self._keep_for = intake.job.keep_for
        self._reports = intake.job.pace is None  # whether a start is reported before the call
        self._sample = -1
        self._new_waker = wakers()
        self._now = loop_clock()
        self._at = self._now()  # when the next task was last looked for

    async def run(self) -> None:
        """Work until the intake stops."""
        cancelled = self._batcher.cancelled.known
        while True:  # a claim that is lost ends the scope that it was worked on in, not the next one's
            with anyio.CancelScope() as scope:
                cancel = scope.cancel
                while (claim := self._first() or await self._next()) is not None:
                    claim._on_lost = cancel
                    try:
                        is_usual = claim._range is not None or not claim._row.alone
                        await (self._do(claim) if is_usual else self._alone(claim))
                    finally:
                        claim._on_lost = None  # losing it from now on must not cancel the next function
                        if cancelled:
                            self._outcomes.ended(claim)
                    if scope.cancel_called:  # the function had ended anyway; don't cancel the next one
                        break
                else:
                    return

    def time_next(self) -> None:
        """Time the next task."""
        self._sample = -1

    def _first(self) -> Claim | None:
        """The claim to begin now; None: see `_next`."""
        self._at = self._now()
        if self._at - self._batcher.breath > BREATH or self._run_alone.closed is not None:
            return None
        while self._waiting or self._suspects:
            claim = (self._waiting or self._suspects).popleft()
            if self._is_in_doubt is not None and self._is_in_doubt(claim):
                self._outcomes.unused(claim)
            elif claim.open:
                return claim
        return None

    async def _next(self) -> Claim | None:
        """Wait for the next claim to begin, and yield to others first; None: there are no more."""
        idle = self._intake.idle
        while True:
            if self._at - self._batcher.breath > BREATH:
                await checkpoint()
                self._batcher.breath = self._now()
            claim = self._first()
            if claim is not None:
                return claim
            if self._intake.stopping:
                return None
            waker = self._new_waker()
            idle.append(waker)
            self._batcher.poke()
            try:
                await waker
            finally:
                if waker in idle:
                    idle.remove(waker)
            self._batcher.breath = self._now()

    async def _alone(self, claim: Claim) -> None:
        await run_suspect(claim, self._do, self._session, self._intake, self._outcomes)

    async def _do(self, claim: Claim) -> None:
        if claim._range is None and claim._row.attempt and self._outcomes.is_dead(claim):
            return
        begun = self._begins_one(claim)
        try:
            try:
                result = await self._calls.begin(claim)
            except TransactionConflict:
                result = await self._calls.again(claim)
            if claim.open and (result is None or not has_changes(result)):
                self._batcher.done(claim, written(result, claim._form) if claim._keep_for else "")
                self._counts["done"] += 1
            else:
                await self._outcomes.returned(claim, result)
        except ClaimLost as error:
            self._outcomes.lost(claim, error)
        except NoSlotError:
            self._outcomes.unused(claim, None if self._intake.stopping else NO_SLOT)
        except Exception as error:  # noqa: BLE001 - it is stored with the task
            self._outcomes.failed(claim, error)
        except BaseException as error:
            if self._outcomes.interrupted([claim], error):
                raise
        finally:
            self._intake.running -= 1
            self._run_alone.running -= 1
            if self._run_alone.closed is not None:
                self._run_alone.ended()
        if begun:
            self._intake.measure(self._now() - begun)

    def _begins_one(self, claim: Claim) -> float:
        """Note that a task begins. Returns the time if the task is one of those that are timed, else 0."""
        self._intake.running += 1
        self._run_alone.running += 1
        if self._reports and not claim._began:
            self._batcher.began(claim, self._at)
        if self._keep_for and not claim._keep_for:
            claim._keep_for = self._keep_for
        claim._since = self._at
        self._sample += 1
        return 0.0 if self._sample % _SAMPLE else self._now()

    def _slot(self, claim: Claim) -> AbstractAsyncContextManager[Slot] | None:
        pace = self._intake.job.pace
        return None if pace is None else pace.slot(claim)

    def _began(self, claim: Claim, slot: Slot | None) -> bool:
        """Note that a paced task begins; returns whether it may."""
        if self._intake.stopping or self._session.is_in_doubt(claim):
            return False
        claim._since = now = self._now()
        claim._slot = slot
        if not claim._began:
            self._batcher.began(claim, now)
        return True
