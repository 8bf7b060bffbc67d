"""What `window_oracle` counts: starts, and when a window begins that ends at one of them."""

from __future__ import annotations

from dataclasses import dataclass

from intervalq.rules import FOREVER, Limit


@dataclass
class Start:
    """A job that began, in real time, and what it really took of each limit."""

    at: int
    ticket: int
    units: dict[str, int]
    behind: int
    """How far the store's clock had been set back."""


@dataclass
class Era:
    """A limit while it was in force."""

    limit: Limit
    since: int
    """The last ticket that was issued before."""
    known: int
    """From when on starts are counted, in real time."""
    counts: int = 0
    """Tickets up to this one aren't counted: there was no limit of the unit when they were issued."""
    through: int = FOREVER
    """The last ticket that was issued while it was in force."""


def beginning(limit: Limit, at: int, behind: int) -> int:
    """The beginning of the window that ends at an instant, or of the fixed one that contains it.

    Starts after that count in it.
    """
    if limit.edge is None:
        return at - limit.window - limit.jitter
    return at - (at - behind - limit.edge) % limit.window - limit.jitter - 1
