"""Output for terminals: durations, tables, progress bars, and text whose control characters are escaped.

Rich is imported when something needs it: it takes a third of the time in which a command starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

from intervalq._spec import parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TextIO

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

# C0 and C1 controls, DEL, and the marks that turn the direction of text around.
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_WIDE: Final = 300


def escaped(text: str, limit: int | None = None) -> str:
    """Text that is safe to print on a terminal, cut to `limit` characters."""
    text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return text if limit is None or len(text) <= limit else text[: limit - 3] + "..."


def seconds(value: float | None) -> str:
    """A duration in seconds, for people, to three or four digits; None: a dash."""
    if value is None:
        return "-"
    if value < 0:
        return f"-{seconds(-value)}"
    micros = value * 1e6
    if micros < 999.5:
        return f"{micros:.0f}us"
    if micros < 999_500:
        return f"{micros / 1e3:.3g}ms"
    if value < 99.95:
        return f"{value:.3g}s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"


def exact(value: float) -> str:
    """A setting in seconds, as a user would type it."""
    return parse.text(round(value * 1e6))


def as_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """One line of JSON in ASCII, with everything else escaped, so it is safe to print on a terminal."""
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")


def can_redraw(stream: TextIO) -> bool:
    """Whether lines can be redrawn: this is a terminal, and not one of the simplest kind (`TERM=dumb`)."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def console(*, stderr: bool = False) -> Console:
    """A console that never interprets markup or emoji.

    Without a terminal, it writes plain text and cuts nothing.
    """
    from rich.console import Console  # noqa: PLC0415 - slow to import, and most commands don't need it

    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = _WIDE
    elif made.is_dumb_terminal:  # Rich takes all of these for 80 columns wide
        made.width = shutil.get_terminal_size().columns
    return made


def bare_table() -> Table:
    """A table without columns and rows, in the style of all tables of the command line."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - as in `console`
    from rich.table import Table  # noqa: PLC0415

    return Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)


_GAP: Final = 3
"""Characters between columns."""


def fitting(
    columns: Iterable[str],
    rows: Iterable[Mapping[str, object]],
    less: Iterable[str],
    least: Mapping[str, int],
    width: int | None = None,
) -> list[str]:
    """The columns of a table for which there is room.

    Args:
        columns: their names.
        rows: what is in them.
        less: those that may be left out, in this order.
        least: the widths down to which columns may be cut or wrapped; others are never.
        width: of the terminal, in characters; None: as it is.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - as in `console`

    left, width = [*columns], console().width if width is None else width
    wide = dict.fromkeys(left, 0)
    for row in [{name: name for name in left}, *rows]:
        for name in left:
            lines = str(row.get(name, "")).split("\n")
            wide[name] = max(wide[name], min(least.get(name, _WIDE), max(map(cell_len, lines))))
    for name in less:
        if sum(wide[each] + _GAP for each in left) - _GAP <= width:
            break
        if name in left:
            left.remove(name)
    return left


def cell(text: str, limit: int | None = None) -> Text:
    """Text for a cell of a table, without control characters, cut to `limit` characters and to its column."""
    from rich.text import Text  # noqa: PLC0415 - as in `console`

    return Text(escaped(text, limit), no_wrap=True, overflow="ellipsis")


def progress_bar() -> Progress:
    """A bar on standard error, which its owner starts, refreshes and stops; it leaves nothing behind."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415 - as in `console`

    columns = SpinnerColumn("line"), BarColumn(24), TextColumn("{task.description}")
    return Progress(*columns, console=console(stderr=True), auto_refresh=False, transient=True)


def print_table(table: Table) -> None:
    """Print a table, as wide as the terminal; without a terminal, nothing is cut."""
    console().print(table)


def warn(message: str) -> None:
    """Write a line on standard error, in the style of errors."""
    sys.stderr.write(f"intervalq: {escaped(message)}\n")
    sys.stderr.flush()
