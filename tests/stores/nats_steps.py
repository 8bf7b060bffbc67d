"""Helpers for tests of the log of a queue on NATS."""

from __future__ import annotations

from dataclasses import replace

from intervalq.rules import (
    Advance,
    Settings,
    Slot,
    State,
)

NOW = 1_000_000_000_000_000


SECOND = 1_000_000


def backlog(**changes: object) -> State:
    """A record with ten issued tickets, two of them granted, whose last slot is some seconds away."""
    state = State(
        generation="g",
        settings=Settings(SECOND),
        ticket=10,
        due=NOW + 8 * SECOND,
        current=2,
        current_due=NOW,
        last_now=NOW,
    )
    return replace(state, **changes)  # type: ignore[arg-type]  # whatever a test needs


TAKE = Advance(generation="g", take=1)


ASKED = Advance(generation="g", slots=(Slot(3, NOW),), until=NOW + SECOND, notice=SECOND // 10)
