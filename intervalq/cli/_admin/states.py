"""Queues as a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intervalq import QueueState
from intervalq._show import bare_table, escaped, exact
from intervalq._watch.words import MAX_KEYS, condition, counted, folded

if TYPE_CHECKING:
    from rich.table import Table


def table(states: Sequence[QueueState], most: int | None = MAX_KEYS) -> Table:
    """Several queues, one per line, with at most `most` keys of each, and how many more there are."""
    from rich.text import Text  # noqa: PLC0415 - slow to import, and not needed for JSON

    made = bare_table()
    made.add_column("queue", overflow="fold", min_width=12)
    for name in ("interval", "issued", "waiting", "running"):
        made.add_column(name, justify="right", no_wrap=True)
    if any(state.limits for state in states):
        made.add_column("left")
    made.add_column("state", min_width=10)
    for state, more in folded(states, most):
        running = "-" if state.running is None else f"{state.running}/{state.max_running}"
        left = "\n".join(f"{each.left} of {escaped(each.limit)}" for each in state.limits) or "-"
        made.add_row(
            Text(escaped(state.name)),
            "-"
            if not state.has_pace
            else exact(state.interval) + (" auto" if state.auto is not None else ""),
            str(state.ticket),
            str(state.outstanding),
            running,
            *([Text(left)] if any(state.limits for state in states) else []),
            condition(state),
        )
        if more:
            waiting = str(sum([key.outstanding for key in more]))
            name = f"{escaped(state.name.partition(':')[0])}: {counted(more)} more"
            made.add_row(Text(name), *[""] * 2, waiting, *[""] * (len(made.columns) - 4))
    return made
