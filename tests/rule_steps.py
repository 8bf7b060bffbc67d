"""Steps of the rules, for tests of them."""

from __future__ import annotations

from intervalq import rules
from intervalq.rules import Answer, Command, State


def do(state: State | None, command: Command, now: int) -> tuple[State, Answer]:
    """Apply a command that leaves a record."""
    after, answer = rules.apply(state, command, now)
    assert after is not None
    return after, answer
