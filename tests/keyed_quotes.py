"""Keys under one rate are asked when a job would begin, and get jobs that must begin in time.

Nobody else uses the queue meanwhile, so a job begins when it was quoted; a job that has less time is refused at
once, and one that has more begins.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from intervalq import IntervalQueue, SlotTimeout
from intervalq.testing.virtual import virtual_micros

ROUNDS: Final = 4


class Asking:
    """Asks keys of a queue.

    Args:
        seed: of all choices.
        queue: a handle with a good connection to the store.
        other: another one, as of another process.
        keys: their names.
        allowance: the seconds by which a quote may be wrong.
        units: whether jobs take tokens, too.
    """

    def __init__(
        self, seed: int, queue: IntervalQueue, other: IntervalQueue, keys: list[str], allowance: float, *, units: bool
    ) -> None:
        self.dice = Random(f"{seed}:quotes")
        self.queue, self.other, self.keys = queue, other, [*keys, "new"]
        self.allowance = allowance
        self.units = units
        self.found: list[str] = []
        """The broken promises, in words."""

    async def run(self) -> None:
        """Ask some times."""
        for _ in range(ROUNDS):
            await self._round()

    def _cost(self) -> dict[str, int] | int:
        starts = self.dice.choice((1, 1, 1, 3))
        return {"starts": starts, "tokens": self.dice.choice((0, 10, 40, 100))} if self.units else starts

    async def _round(self) -> None:
        dice, name = self.dice, self.dice.choice(self.keys)
        before, key, cost = dice.choice((self.queue, self.other))[dice.choice(self.keys)], self.queue[name], self._cost()
        async with before.slot(cost=self._cost()):
            pass
        ahead = [await key.add(_nothing, cost=self._cost()) for _ in range(dice.choice((0, 0, 1, 3, 20)))]
        held = dice.choice(("", "", "", "queue", "key"))
        if held:
            await (key if held == "key" else self.queue).cool_down(dice.uniform(0.1, 1))
        quoted, asked = await key.quote(cost), virtual_micros()
        what = f"{name} after {len(ahead)} jobs, at {asked}, of {cost}{held and ', held: '}{held}"
        if quoted is None:
            self.found.append(f"no quote for {what}")
        else:
            within = dice.choice((None, quoted + self.allowance, quoted - self.allowance))
            await self._take(key, cost, within, quoted, what)
        for job in ahead:
            await job

    async def _take(self, key: IntervalQueue, cost: Any, within: float | None, quoted: float, what: str) -> None:
        """Add the job, and compare when it begins, or is refused."""
        since = virtual_micros()
        began: float | None = None
        told: float | None = None
        try:
            timing = {} if within is None else {"timeout": max(0.0, within)}
            async with key.slot(cost=cost, **timing):
                began = (virtual_micros() - since) / 1e6
        except SlotTimeout as refusal:
            told = refusal.retry_after
            took = (virtual_micros() - since) / 1e6
            if within is not None and within > quoted:
                self.found.append(f"quoted {quoted:.6f}, refused within {within:.6f}: {what}")
            elif took > self.allowance:
                self.found.append(f"quoted {quoted:.6f}, refused within {within} only after {took:.6f}: {what}")
            elif told is None or abs(told + took - quoted) > self.allowance:
                self.found.append(f"quoted {quoted:.6f}, and {told} when it was refused: {what}")
        if began is None:
            return
        if within is not None and within < quoted and quoted > 2 * self.allowance:
            self.found.append(f"quoted {quoted:.6f}, began within {within:.6f}: {what}")
        if not quoted - self.allowance <= began <= quoted + self.allowance:
            self.found.append(f"quoted {quoted:.6f}, began after {began:.6f}: {what}")


async def _nothing() -> None:
    """A job."""
