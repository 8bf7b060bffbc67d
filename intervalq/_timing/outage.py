"""Retries while the store doesn't answer, at growing intervals and for a limited time."""

from __future__ import annotations

import random
from typing import Final

import anyio

OUTAGE: Final = 60_000_000
"""Callers wait this long, in microseconds, for an unreachable store; then they fail with its error."""

_FIRST: Final = 50_000
_MAX_WAIT: Final = 5_000_000


class Outage:
    """The present outage, if there is one. All instants are microseconds on the caller's own clock."""

    def __init__(self, longest: int = _MAX_WAIT) -> None:
        """`longest`: the pauses between two attempts double up to this."""
        self._since: int | None = None
        self._next = 0
        self._pause = _FIRST
        self._longest = longest

    def __bool__(self) -> bool:
        return self._since is not None

    def ended(self) -> None:
        """Note that the store answered."""
        self._since = None
        self._pause = _FIRST

    def began(self, now: int) -> bool:
        """Note that the store didn't answer; returns whether an outage begins with that."""
        if self._since is not None:
            return False
        self._since = now
        return True

    def rested(self, now: int) -> None:
        """Forget an outage during which nothing was sent for longer than the longest pause."""
        if now > self._next + self._longest:
            self.ended()

    def is_over(self, now: int) -> bool:
        """Whether the outage has lasted too long to go on waiting."""
        return self._since is not None and now - self._since >= OUTAGE

    def again(self, now: int) -> int:
        """When to try again."""
        self._next = now + random.randint(0, self.longer())  # noqa: S311 - no secret
        return self._next

    def longer(self) -> int:
        """The limit of the next pause: a random one below it keeps processes from returning all at once."""
        limit = self._pause
        self._pause = min(2 * limit, self._longest)
        return limit


class LoopOutage:
    """An outage on the event loop's clock, for callers that sleep between attempts. Times are in seconds."""

    def __init__(self, longest: float = 1.0) -> None:
        """See `Outage`."""
        self._outage = Outage(round(longest * 1e6))

    def __bool__(self) -> bool:
        return bool(self._outage)

    def ended(self) -> None:
        """Note that the store answered."""
        self._outage.ended()

    def failed(self) -> bool:
        """Note a failed attempt; returns whether the outage has lasted too long to go on waiting."""
        now = round(anyio.current_time() * 1e6)
        self._outage.began(now)
        return self._outage.is_over(now)

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await anyio.sleep(random.uniform(0, self._outage.longer() / 1e6))  # noqa: S311 - no secret
