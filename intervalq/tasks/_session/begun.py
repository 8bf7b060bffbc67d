"""Tasks that a session has begun and not yet reported to the store.

An attempt is counted when a task begins. A worker claims many tasks ahead; when it dies, those that had not
begun must not be charged, and the one that killed it must be. Recording each start before it happens would
cost a call to the store per task; recording it with the claim would charge all tasks that were claimed ahead.
So:

- Tasks that begin as soon as they are claimed are marked by the claim itself: those of idle workers, and
  those claimed by hand.
- Other starts are reported later, with the next call, if the tasks are still running then. A task that takes
  less than `REPORTED_AFTER` is hardly ever reported: its end is sent with that call instead. So only starts
  of slow tasks are reported, and that needs no call of its own while there is anything else to send.
- If the worker dies before a start is reported, the task is not charged, although it may have killed the
  worker. So every task that a lost session had claimed runs alone from then on, and the starts of tasks that
  run alone are reported *before* they begin. A task that kills its workers is charged each time except
  perhaps the first; tasks that ran beside it are never charged for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from intervalq._timing.backends import Waker, wakers
from intervalq.tasks._claim.task import Claim

REPORTED_AFTER: Final = 0.005
"""Seconds for which a task has run before its start is reported to the store."""


class Begun:
    """Claims that have begun, in the order of their starts."""

    def __init__(self) -> None:
        self.since: dict[Claim, float] = {}
        """When each has begun. Callers remove ended ones directly, for speed: there are many."""
        self._wakers: dict[Claim, Waker] = {}
        self._chunks: dict[object, tuple[float, list[Claim]]] = {}  # when they have begun, and their claims

    def chunk(self, chunk: object, claims: Sequence[Claim], at: float) -> None:
        """Note that a chunk begins, until `chunk_ended`; see `Batcher.began`."""
        new = [claim for claim in claims if not claim._began]
        for claim in new:
            claim._began = True
        self._chunks[chunk] = at, new

    def ended(self, claims: Sequence[Claim]) -> None:
        """Note that these have ended."""
        for claim in claims if self.since else ():
            self.since.pop(claim, None)

    def chunk_ended(self, chunk: object) -> None:
        """Note that a chunk has ended."""
        self._chunks.pop(chunk, None)

    async def first(self, claim: Claim) -> None:
        """Wait until the start of a task is reported to the store, or can't be."""
        waker = self._wakers[claim] = wakers()()
        await waker

    def due(self) -> float:
        """When to report to the store next, on the session's clock."""
        if self._wakers:
            return 0.0
        first = next(iter(self.since.values()), math.inf), next(iter(self._chunks.values()), (math.inf,))[0]
        return min(first) + REPORTED_AFTER

    def take(self, now: float) -> list[Claim]:
        """The claims to report now."""
        reported = list(self._wakers)
        for claim, since in self.since.items():
            if since + REPORTED_AFTER > now:
                break
            reported.append(claim)
        for chunk, (since, claims) in [*self._chunks.items()]:
            if since + REPORTED_AFTER > now:
                break
            reported += [claim for claim in claims if claim.open]
            del self._chunks[chunk]
        for claim in reported:
            self.since.pop(claim, None)
        return reported

    def back(self, claims: list[Claim]) -> None:
        """Report these claims once more, because the store may not have got them."""
        self.since = {claim: 0.0 for claim in claims if claim.open and claim not in self._wakers} | self.since

    def wake(self, claims: list[Claim]) -> None:
        """Wake those who wait for these claims: the store knows them, or needn't."""
        for claim in claims:
            waker = self._wakers.pop(claim, None)
            if waker is not None and not waker.done():
                waker.set_result(None)

    def clear(self) -> None:
        """Forget all claims, because there is no session to report them."""
        self.since.clear()
        self._chunks.clear()
        self.wake(list(self._wakers))
