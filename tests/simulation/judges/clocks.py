"""Judges of clocks: what processes can know of the store's clock, and the errors of it that shards report."""

from __future__ import annotations

from typing import Final

from simulation.judges.findings import GRAIN, Findings
from simulation.loop import Process
from simulation.observer import Observer

AGEING: Final = 2 / 2_000
"""How fast the estimate of another clock gets worse, in seconds per second: both may be off by 500 ppm."""


class ClockKnowledge:
    """What processes can know of steps of the store's clock from their round trips."""

    def __init__(self, seen: Observer) -> None:
        self._seen = seen
        self._shown: dict[tuple[Process, float], float] = {}

    def shown(self, process: Process, step: float, at: float) -> bool:
        """Whether an answer must have shown a step by an instant, because it contradicts an earlier answer.

        The bounds from two answers overlap if the step is no longer than both bounds together are wide.
        """
        key = process, step
        if key not in self._shown:
            self._shown[key] = self._first_proof(process, step)
        return self._shown[key] < at

    def unseen(self, process: Process, at: float) -> float:
        """By how much a process may be wrong about the clock because it can't tell steps from delays.

        Bounds from before such a step narrow the later ones until they have aged.
        """
        had = self._seen.exchanges[process]
        return sum(
            abs(by)
            for step, by in self._seen.steps
            if step < at
            and any(step < back <= at for _, back in had)
            and any(sent <= step for sent, _ in had)  # an answer under way may be from before it
            and not self.shown(process, step, at)
        )

    def _first_proof(self, process: Process, step: float) -> float:
        had, steps = self._seen.exchanges[process], self._seen.steps
        length = next(abs(by) for at, by in steps if at == step)
        earlier = max((at for at, _ in steps if at < step), default=float("-inf"))
        later = min((at for at, _ in steps if at > step), default=float("inf"))
        old = [(sent, back) for sent, back in had if earlier < sent and back <= step]
        old = old or [(sent, back) for sent, back in had if earlier < sent <= step]
        for sent, back in sorted(had, key=lambda exchange: exchange[1]):
            if sent <= step or back >= later:
                continue
            known = min((one - zero + AGEING * (back - one) for zero, one in old), default=float("inf"))
            if length > known + back - sent + GRAIN:
                return back
        return float("inf")


def candour(seen: Observer) -> Findings:
    """A shard reports an error only if it is too far from the store, and none larger than follows from that.

    A process can't know the clock better than to its shortest round trip, and its knowledge ages. After a
    step of the clock the longest round trip counts, because nobody knows which of them are from before it.
    """
    for (at, record, error, least), (asked, process) in zip(seen.errors, seen.reports, strict=True):
        if process is None:
            continue
        # Bounds are whole microseconds, rounded up each time. An answer may come at the same instant.
        known = 1.5 * max(blur(seen, process, asked, answered=answered) for answered in (True, False))
        if error > known + GRAIN or (error > 0 and known * 3 < least * 2 - GRAIN):
            yield (
                at,
                f"{process.name} reports an error of {error:.6f} s to {record}, not {known:.6f} s",
            )


def blur(seen: Observer, process: Process, at: float, *, answered: bool = True) -> float:
    """The largest error with which a process may know the store's clock, by its round trips so far.

    Args:
        seen: what was observed.
        process: whose error.
        at: the instant.
        answered: whether an answer that arrives at that very instant counts.
    """
    stepped = max((step for step, _ in seen.steps if step <= at), default=None)
    had = [(sent, back) for sent, back in seen.exchanges[process] if back < at or (answered and back == at)]
    blurs = [
        back - sent + 2 * seen.blur + 2e-6 + AGEING * (at - back)
        for sent, back in had
        if stepped is None or sent > stepped
    ]
    if stepped is not None:
        return max(blurs or [back - sent + AGEING * (at - back) for sent, back in had[-8:]], default=0.0)
    return min(blurs, default=0.0)
