"""What a session has begun and the store doesn't know of yet.

An attempt is a task that began. A worker claims up to a thousand tasks ahead; when it dies, those that it
had not begun must not be charged with that, and the one that killed it must be. To write down each
beginning before it happens would cost a call to the store for each task; to write it with the claim would
charge all that were claimed ahead. So:

- What begins at once by being claimed is marked by the claim itself: tasks of idle workers, and those
  claimed by hand.
- Of others the store is told later, with the next call, if they are still running by then. A task that
  takes less than `TOLD_AFTER` is nearly never told of: its end goes with that call instead. So what is told
  of is a share of slow tasks, and costs no call of its own while there is anything else to say.
- Before it is told, a task whose worker dies is charged with nothing, although it may have been what killed
  it. So every task that a lost session had claimed runs alone from then on, and of those that run alone the
  store is told *before* they begin. Whatever kills its workers is charged for each time but perhaps the
  first; who was with it, never.
"""

from __future__ import annotations

import math
from typing import Final

from intervalq._timing.backends import Waker, wakers
from intervalq.tasks._claim.task import Claim

TOLD_AFTER: Final = 0.005
"""Seconds that a task has run for when the store is told that it began."""


class Begun:
    """Claims that have begun, in that order."""

    def __init__(self) -> None:
        self.since: dict[Claim, float] = {}
        """When each has begun. Those that end are taken out here, by whoever sees it: there are many."""
        self._wakers: dict[Claim, Waker] = {}

    async def first(self, claim: Claim) -> None:
        """Return when the store has been told that it begins, or can't be."""
        waker = self._wakers[claim] = wakers()()
        await waker

    def due(self) -> float:
        """When the store is to be told something, on the session's clock."""
        if self._wakers:
            return 0.0
        for since in self.since.values():
            return since + TOLD_AFTER
        return math.inf

    def take(self, now: float) -> list[Claim]:
        """What the store is to be told by now."""
        told = list(self._wakers)
        for claim, since in self.since.items():
            if since + TOLD_AFTER > now:
                break
            told.append(claim)
        for claim in told:
            self.since.pop(claim, None)
        return told

    def back(self, claims: list[Claim]) -> None:
        """They are to be told once more: the store may not have heard."""
        self.since = {claim: 0.0 for claim in claims if claim.open and claim not in self._wakers} | self.since

    def wake(self, claims: list[Claim]) -> None:
        """The store knows of these, or needn't."""
        for claim in claims:
            waker = self._wakers.pop(claim, None)
            if waker is not None and not waker.done():
                waker.set_result(None)

    def clear(self) -> None:
        """There is nobody to be told."""
        self.since.clear()
        self.wake(list(self._wakers))
