"""Keys under one rate are asked when a job would begin, and get jobs that must begin in time.

Only one key has jobs meanwhile. So a job doesn't begin before the time that was quoted; a job that has less
time is refused at once, and one that has more begins. Where jobs of the key wait before it, it may begin
later, because tickets of a key have no common slots until they are about to come. So nothing is
compared if these take units of common limits; nor in holds, in which units come back.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import anyio

from intervalq import IntervalQueue, SlotTimeout
from intervalq.testing.virtual import virtual_micros

ROUNDS: Final = 4

MAX_HOLD: Final = 1.0
"""The longest hold, in seconds."""


class Asking:
    """Asks keys of a queue.

    Args:
        seed: of all choices.
        handles: two handles with good connections to the store.
        keys: the names of keys.
        allowance: the seconds by which a quote may be wrong.
        units: whether jobs take tokens, too.
    """

    def __init__(
        self, seed: int, handles: list[IntervalQueue], keys: list[str], allowance: float, *, units: bool
    ) -> None:
        self.dice = Random(f"{seed}:quotes")
        self.handles, self.keys, self.allowance, self.units = handles, keys, allowance, units
        self.found: list[str] = []
        """The broken promises, in words."""

    async def run(self) -> None:
        """Ask some times."""
        dice = self.dice
        for _ in range(ROUNDS):
            async with dice.choice(self.handles)[dice.choice(self.keys)].slot(cost=self._cost()):
                pass
            queue, name = self.handles[0], dice.choice([*self.keys, "new"])
            ahead = [
                await queue[name].add(_nothing, cost=self._cost()) for _ in range(dice.choice((0, 0, 1, 3)))
            ]
            held = dice.choice(("", "", "", "queue", "key"))
            if held:
                await (queue[name] if held == "key" else queue).cool_down(dice.uniform(0.1, MAX_HOLD))
            await self._ask(
                queue[name], f"{name}, {len(ahead)} ahead, held: {held}", is_first=not ahead, held=held
            )
            for job in ahead:
                await job
            await anyio.sleep(MAX_HOLD if held else 0)

    def _cost(self) -> Any:
        starts = self.dice.choice((1, 1, 1, 3))
        return {"starts": starts, "tokens": self.dice.choice((0, 10, 40, 100))} if self.units else starts

    async def _ask(self, key: IntervalQueue, what: str, *, is_first: bool, held: str) -> None:
        cost, since = self._cost(), virtual_micros()
        quoted = await key.quote(cost)
        what = f"{what}, cost {cost}, at {since}: quoted {quoted}"
        if quoted is None:
            self.found.append(what)
            return
        is_exact, least = not self.units or (is_first and not held), quoted - self.allowance
        within = self.dice.choice((None, quoted + self.allowance, max(0.0, least)))
        began, told, took = await self._take(key, cost, within)
        what = f"{what}, {within=}, {began=}, {told=}, {took=}"
        if began is not None:
            is_late = is_first and began > quoted + self.allowance
            if is_exact and (began < least or is_late):
                self.found.append(f"began at another time: {what}")
        elif is_first and took > self.allowance:
            self.found.append(f"was refused late: {what}")
        elif (
            is_exact
            and took <= self.allowance
            and (told is None or abs(told + took - quoted) > self.allowance)
        ):
            self.found.append(f"was told something else: {what}")
        elif within is not None and within > quoted and is_first and is_exact:
            self.found.append(f"was refused: {what}")

    async def _take(
        self, key: IntervalQueue, cost: Any, within: float | None
    ) -> tuple[float | None, float | None, float]:
        """When a job begins; or what it is told, and when. In seconds from now."""
        since = virtual_micros()
        timing: dict[str, Any] = {} if within is None else {"timeout": within}
        began = told = None
        try:
            async with key.slot(cost=cost, **timing):
                began = (virtual_micros() - since) / 1e6
        except SlotTimeout as refusal:
            told = refusal.retry_after
        return began, told, (virtual_micros() - since) / 1e6


async def _nothing() -> None:
    """A job."""
