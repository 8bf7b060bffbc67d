"""Settles claimed tasks by how their functions ended, and counts the outcomes."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from anyio import get_cancelled_exc_class

from intervalq._observe.telemetry import telemetry
from intervalq._timing.backends import is_cancelled
from intervalq._timing.backoff import backoff
from intervalq.errors import ClaimLost, DependencyError, plain
from intervalq.tasks._claim.endings import snoozed, unused
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.batcher import Batcher
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks._worker.job import Job, changes_of, has_changes
from intervalq.tasks._worker.policy import Snooze

log: Final = logging.getLogger("intervalq")

NO_SLOT: Final = 1_000_000
"""How long a task that was given back because its queue had no slot rests, in microseconds."""

_MAX_PAUSES: Final = 6
"""How many times the pause doubles before a task is repeated whose changes could not be made."""


class Outcomes:
    """Settles the claims of one function when it has ended."""

    def __init__(self, job: Job, batcher: Batcher, end_with: Callable[[BaseException], None]) -> None:
        """Prepare for a job; `end_with` ends its pool because of an error."""
        found = telemetry()
        self.counts: Counter[str] = Counter() if found is None else found.counts(", ".join(job.queues))
        """How many tasks were `done`, `failed`, `dead`, `given back`, `snoozed`, `cancelled` or `lost`."""
        self._job = job
        self._batcher = batcher
        self._end_with = end_with

    def is_dead(self, claim: Claim) -> bool:
        """Whether the attempts of a task are used up; then it goes to the dead-letter queue."""
        too_often = self._job.policy.exhausted(claim)
        if too_often is None:
            return False
        self.counts["dead"] += 1
        claim._keep_for = claim._keep_for or self._job.keep_for
        log.error(
            "task %s of queue %r is dead: %s", plain(claim.id), claim.queue, plain(too_often.error or "")
        )
        self._batcher.settle(Settle(claim, replace(too_often, kept=claim._kept())))
        return True

    async def returned(self, claim: Claim, result: Any) -> None:  # noqa: ANN401 - checked by `changes_of`
        """Settle a claim by its function's result.

        If the changes conflict with those of others, the attempt hasn't failed, however often that happens.
        """
        if not claim.open:
            if self.is_cancelled(claim):
                return
            if result is not None and (claim._keep_for or has_changes(result)):
                log.error(
                    "task %s was settled before its function returned: what it returned is lost",
                    plain(claim.id),
                )
            self.counts["done"] += 1
            return
        try:
            await claim.ack(*changes_of(result))
        except DependencyError as error:
            instead = await self.instead(claim, error)
            if instead is None:
                self.repeated(claim, error)
                return
            await claim.ack(*changes_of(instead))
        self.counts["done"] += 1

    async def instead(self, given: Claim | list[Claim], error: DependencyError) -> Any:  # noqa: ANN401 - as above
        """What the user wants instead of changes that can't be made; None: nothing."""
        if self._job.on_dependency is None:
            return None
        instead = self._job.on_dependency(given, error)
        return await instead if inspect.isawaitable(instead) else instead

    def repeated(self, claim: Claim, error: DependencyError) -> None:
        """Give a task back, after a pause, because its changes could not be made."""
        log.info("task %s of queue %r will be repeated: %s", plain(claim.id), claim.queue, error)
        pause = backoff(min(claim._row.claims, _MAX_PAUSES), self._job.policy.backoff)
        self.unused(claim, round(pause * 1e6))

    def ended(self, claim: Claim) -> None:
        """Note that a function has ended, while some of the session's tasks are cancelled."""
        if self.is_cancelled(claim):
            self.counts["cancelled"] += 1
            log.info("task %s of queue %r was cancelled", plain(claim.id), claim.queue)
            self._batcher.cancelled.ended(claim)

    def is_cancelled(self, claim: Claim) -> bool:
        """Whether the task of a claim was cancelled."""
        return self._batcher.cancelled.has(claim)

    def lost(self, claim: Claim, error: ClaimLost) -> None:
        """Count a lost claim, of which the function has learned."""
        if not self.is_cancelled(claim):
            self.counts["lost"] += 1
            log.warning("%s", error)

    def unused(self, claim: Claim, delay: int | None = None) -> None:
        """Give a task back, which counts no attempt; after `delay` microseconds it can be claimed again."""
        if not claim.open:
            self.counts["lost"] += not self.is_cancelled(claim)
            return
        self.counts["given back"] += 1
        self._batcher.settle(Settle(claim, replace(unused(claim._row), delay=delay)))

    def interrupted(self, claims: Sequence[Claim], error: BaseException) -> bool:
        """Settle claims whose function was cancelled, or whose process ends; returns whether to raise.

        The tasks are given back; but if the function itself raised the error, the attempt counts, because it
        would do so each time.
        """
        is_cancellation = isinstance(error, get_cancelled_exc_class())
        by_itself = isinstance(error, SystemExit) or (is_cancellation and not is_cancelled())
        for claim in claims:
            if by_itself:
                self.failed(claim, error)
            else:
                self.unused(claim)
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._end_with(error)
            return False
        return not is_cancellation or is_cancelled()

    def failed(self, claim: Claim, error: BaseException) -> None:
        """Settle a claim whose function raised: it is tried again, snoozed or dead."""
        if self.is_cancelled(claim):
            return
        if isinstance(error, Snooze):
            self.counts["snoozed"] += 1
            if claim.open:
                self._batcher.settle(Settle(claim, snoozed(claim._row, error.delay)))
            return
        change = self._job.policy.failed(claim, error)
        reason = plain(change.error or "")
        if change.queue is not None and change.queue != claim.queue:
            self.counts["dead"] += 1
            log.error("task %s of queue %r is dead: %s", plain(claim.id), claim.queue, reason)
        else:
            self.counts["failed"] += 1
            log.warning("task %s of queue %r failed: %s", plain(claim.id), claim.queue, reason)
        if claim.open:
            self._batcher.settle(Settle(claim, replace(change, kept=claim._kept())))
