"""Retries while the store doesn't answer: less and less often, and given up in the end."""

from __future__ import annotations

import random
from typing import Final

OUTAGE: Final = 60_000_000
"""Jobs wait this long, in microseconds, for an unreachable store; then they fail with its error."""

_FIRST: Final = 50_000
_MAX_WAIT: Final = 5_000_000


class Outage:
    """The present outage, if there is one. All instants are on the shard's own clock."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._pause = _FIRST

    def __bool__(self) -> bool:
        return self._since is not None

    def ended(self) -> None:
        """Note that the store answered."""
        self._since = None
        self._pause = _FIRST

    def began(self, now: int) -> bool:
        """Note that the store didn't answer; returns whether it did the last time."""
        if self._since is not None:
            return False
        self._since = now
        return True

    def is_over(self, now: int) -> bool:
        """Whether the outage has lasted too long to go on waiting."""
        return self._since is not None and now - self._since >= OUTAGE

    def again(self, now: int) -> int:
        """When to try again: with full jitter, so that shards don't come back all at once."""
        at = now + random.randint(0, self._pause)  # noqa: S311
        self._pause = min(2 * self._pause, _MAX_WAIT)
        return at
