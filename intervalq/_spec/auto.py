"""The interval that finds a server's limit: where it is on its curve, and how far a refusal takes it back.

After a cut, the rate returns to that of the refused start along the cubic of CUBIC (RFC 9438, section 4.2),
stays near it for a while, and then rises faster and faster. Before the first cut it only rises. So the rate
is a pure function of the time since the cut, and a start that succeeds has nothing to report. Unlike CUBIC's
window, the rate is a share of the one that was refused, and the time to return is counted in starts if these
are rare: the share of refused starts is then the same at any rate.

That time is on the queue's clock, without the times in which nobody took a slot: a queue without jobs learns
nothing, so its rate doesn't rise.

Everything is in whole numbers below 2**53, so that Lua's doubles and SQL's integers give the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_INTERVAL: Final = 86_400_000_000
"""The longest interval, and the longest time to return, in microseconds: a day."""

_RETURN: Final = 32_000_000
"""The minimum time in which the rate returns to the one that was refused, in microseconds."""

_RETURN_STARTS: Final = 320
"""The minimum of that time, in starts at the refused rate."""

_FASTER: Final = 4
"""The factor by which the return from a deep cut is faster, and by which the time to double is shorter."""

_FIRST: Final = 2_000_000
"""The time in which the rate doubles before the first cut, in microseconds; at least two starts."""

_EARLY: Final = 16
"""A refusal within this fraction (1/16) of the time to return shows that the limit is much lower."""

SETTLED: Final = 1_000_000
"""After such a refusal the queue is held for this long, in microseconds, or longer if the server says so.

The requests that the server counted have piled up: it would refuse any request, which says nothing about the
limit."""

_SCALE: Final = 65_536
_STEPS: Final = 1_024
_FAR: Final = 64
"""The resolution of rates, that of times, and the end of the curve, as a multiple of its time unit."""


class Auto(NamedTuple):
    """The bounds of an automatic interval, in microseconds."""

    slowest: int
    fastest: int


class Pace(NamedTuple):
    """The last cut of an automatic interval, from which its curve begins."""

    peak: int
    """The interval that it returns to first; 0: nothing was refused yet."""
    base: int
    """The interval right after the cut, or at first."""
    cut_at: int
    """The queue's clock at the cut, plus the time since then in which nobody took a slot."""
    cut_ticket: int
    """The last ticket that had been issued. A refusal of this or an earlier one is part of the same event."""


class Refusal(NamedTuple):
    """A start that a server refused."""

    ticket: int
    due: int
    """Its slot, on the queue's clock."""


def interval_at(auto: Auto, pace: Pace, due: int) -> int:
    """The interval for slots about `due`, on the queue's clock."""
    elapsed = max(0, due - pace.cut_at)
    usual = _time_to_return(pace.peak)
    back = usual if pace.base * 3 <= pace.peak * 4 else usual // _FASTER
    if elapsed < back:
        left = (back - elapsed) * _STEPS // back
        lost = _SCALE - _SCALE * pace.peak // pace.base
        interval = _SCALE * pace.peak // (_SCALE - lost * left**3 // _STEPS**3)
    else:
        unit = usual // _FASTER if pace.peak else min(max(_FIRST, 2 * pace.base), MAX_INTERVAL)
        beyond = min(elapsed - back, _FAR * unit) * _STEPS // unit
        interval = _SCALE * (pace.peak or pace.base) // (_SCALE + beyond**3 // (_STEPS**3 // _SCALE))
    return max(auto.fastest, min(auto.slowest, interval))


def cut(auto: Auto, pace: Pace, interval: int, refusal: Refusal) -> tuple[int, int]:
    """The peak and the base of the pace after a refusal.

    A cut lowers the rate by a twelfth. The first cut, and one soon after another, halves it: the rate was far
    above the limit then, and must not return to it. The refused rate is that of a second before, because
    servers count requests over time: a fast rising rate passes the limit before the first refusal.

    Args:
        auto: the bounds.
        pace: the pace before the refusal.
        interval: the interval of the latest slots, which is the shortest so far.
        refusal: the start that was refused.
    """
    refused = max(interval, interval_at(auto, pace, refusal.due - SETTLED))
    if is_early(pace, refusal):
        peak, base = refused * 4 // 3, refused * 2
    else:
        peak, base = refused, refused + (refused + 10) // 11
    return min(peak, auto.slowest), min(base, auto.slowest)


def is_early(pace: Pace, refusal: Refusal) -> bool:
    """Whether a start was refused soon after a cut, or before the first one."""
    return not pace.peak or refusal.due - pace.cut_at < _time_to_return(pace.peak) // _EARLY


def _time_to_return(peak: int) -> int:
    return min(max(_RETURN, _RETURN_STARTS * peak), MAX_INTERVAL) if peak else 0


def are_sound(numbers: tuple[int, ...], ticket: int) -> bool:
    """Whether these are the numbers of an `Auto` and a `Pace` that these functions may have made."""
    if len(numbers) != len(Auto._fields) + len(Pace._fields):
        return False
    slowest, fastest, peak, base, _, cut_ticket = numbers
    return (
        1 <= fastest <= slowest <= MAX_INTERVAL
        and 1 <= base <= MAX_INTERVAL
        and (peak == 0 or peak <= base <= 2 * peak)
        and 0 <= cut_ticket <= ticket
    )
