"""The pause before another attempt at a failed job."""

from __future__ import annotations


def backoff(attempt: int, first: float) -> float:
    """Seconds to wait after the given failed attempt (the first is 1).

    Doubles from `first` seconds up to a minute, with full jitter: a random time between 0 and that, so that
    jobs which failed together don't come back together (Brooker, "Exponential Backoff And Jitter", AWS 2015).
    """
    import random  # noqa: PLC0415 - a program begins sooner without it

    return random.uniform(0, min(60.0, first * 2 ** min(attempt - 1, 32)))  # noqa: S311 - no secret
