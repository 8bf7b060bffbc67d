"""Queues in readable form: one queue as a list of facts, several as a table. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from intervalq import QueueState
from intervalq._show import escaped, exact, seconds


def condition(state: QueueState) -> str:
    """What the queue is doing now, in words."""
    if state.held:
        if state.max_running is not None and (state.running or 0) >= state.max_running:
            return "at its limit of running jobs"
        if state.held_until is None:
            return "paused"
        return f"held for another {seconds(max(0.0, state.held_until - state.now))}"
    return "paced" if state.outstanding else "idle"


def facts(state: QueueState) -> list[tuple[str, str]]:
    """One queue as names and values."""
    waits = f"{state.outstanding} outstanding" if state.outstanding else "none outstanding"
    said = [
        ("queue", escaped(state.name)),
        ("state", condition(state)),
        ("interval", f"{exact(state.interval)} ({1 / state.interval:.6g}/s)"),
        ("tickets", f"{state.ticket} issued, {state.current} last begun, {waits}"),
    ]
    if state.burst != 1:
        said.append(("burst", str(state.burst)))
    if state.max_running is not None:
        said.append(("running", f"{state.running} of at most {state.max_running}"))
    if state.next_slot is not None:
        ahead = state.next_slot - state.now
        said.append(("next slot", "free now" if ahead <= 0 else f"in {seconds(ahead)}"))
    return said


def table(states: Sequence[QueueState]) -> Table:
    """Several queues, one per line."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    made.add_column("queue", overflow="fold", min_width=12)
    for name in ("interval", "issued", "waiting", "running"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("state")
    for state in states:
        running = "-" if state.running is None else f"{state.running}/{state.max_running}"
        made.add_row(
            Text(escaped(state.name)),
            exact(state.interval),
            str(state.ticket),
            str(state.outstanding),
            running,
            condition(state),
        )
    return made
