"""Tables and details on the screens of `intervalq top`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text
from textual.widgets import DataTable

from intervalq._watch.rows import NUMBERS, Row

LABEL: Final = 12
"""The width of the names of details."""


def fill(table: DataTable[Text], columns: Sequence[str], found: Iterable[Row]) -> None:
    """Fill a table anew; the cursor stays on its row."""
    before = None
    if table.is_valid_row_index(table.cursor_row):
        before = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
    scroll = table.scroll_y
    with table.app.batch_update():
        table.clear()
        keys = list[str]()
        for row in found:
            cells = zip(columns, row.cells, strict=True)
            table.add_row(
                *(Text(cell, justify="right" if name in NUMBERS else "left") for name, cell in cells),
                key=row.key,
            )
            keys.append(row.key)
        if before in keys:
            table.move_cursor(row=keys.index(before), scroll=False)
        table.scroll_to(y=scroll, animate=False)


def details(facts: Iterable[tuple[str, str]]) -> str:
    """Names and values, one a line."""
    return "\n".join(f"{name:>{LABEL}}  {value}" for name, value in facts) or "nothing here"
