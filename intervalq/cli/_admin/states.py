"""Queues as a table for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from intervalq import QueueState
from intervalq._show import bare_table, escaped, exact, fitting
from intervalq._watch.words import MAX_KEYS, condition, counted, folded

if TYPE_CHECKING:
    from rich.table import Table


_COLUMNS: Final = ("queue", "interval", "issued", "waiting", "running", "left", "state")
_LESS: Final = ("issued", "running", "left", "interval", "waiting")
"""The columns that are left out where there is no room for all, in this order."""
_LEAST: Final = {"queue": 12, "left": 12, "state": 10}
"""The widths from which columns may wrap."""


def table(states: Sequence[QueueState], most: int | None = MAX_KEYS) -> Table:
    """Several queues, one per line, with at most `most` keys of each, and how many more there are."""
    from rich.text import Text  # noqa: PLC0415 - slow to import, and not needed for JSON

    rows = list[Mapping[str, str]]()
    for state, more in folded(states, most):
        rows.append(_cells(state))
        if more:
            waiting = str(sum([key.outstanding for key in more]))
            name = f"{escaped(state.name.partition(':')[0])}: {counted(more)} more"
            rows.append({"queue": name, "waiting": waiting})
    columns = [each for each in _COLUMNS if each != "left" or any(state.limits for state in states)]
    columns = fitting(columns, rows, _LESS, _LEAST)
    made = bare_table()
    for name in columns:
        if name in _LEAST:
            made.add_column(name, overflow="fold", min_width=_LEAST[name])
        else:
            made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(row.get(name, "")) for name in columns))
    return made


def _cells(state: QueueState) -> dict[str, str]:
    interval = exact(state.interval) + (" auto" if state.auto is not None else "")
    return {
        "queue": escaped(state.name),
        "interval": interval if state.has_pace else "-",
        "issued": str(state.ticket),
        "waiting": str(state.outstanding),
        "running": "-" if state.running is None else f"{state.running}/{state.max_running}",
        "left": "\n".join(f"{each.left} of {escaped(each.limit)}" for each in state.limits) or "-",
        "state": condition(state),
    }
