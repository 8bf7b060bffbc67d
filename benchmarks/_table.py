"""Tables as aligned plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Column(NamedTuple):
    """A column: its heading, the name of its figure, and its format."""

    heading: str
    name: str
    form: str = "{:.2f}"
    factor: float = 1.0


def cell(value: object, column: Column) -> str:
    """A figure as text; `-` where it isn't known."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, int | float):
        if math.isinf(value):
            return "inf"
        return column.form.format(value * column.factor)
    return str(value)


def table(columns: Sequence[Column], rows: Sequence[dict[str, object]]) -> str:
    """All rows under their headings; the first column is text, aligned left."""
    texts = [[column.heading for column in columns]]
    texts += [[cell(row.get(column.name), column) for column in columns] for row in rows]
    widths = [max(len(text[at]) for text in texts) for at in range(len(columns))]
    return "\n".join(
        "  ".join(
            word.ljust(width) if at == 0 else word.rjust(width)
            for at, (word, width) in enumerate(zip(text, widths, strict=True))
        ).rstrip()
        for text in texts
    )
