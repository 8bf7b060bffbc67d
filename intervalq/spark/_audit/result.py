"""The result of `audit`: its outcome, and its display as tables on a terminal or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from intervalq._page.html import save
from intervalq.spark._audit.outcome import Outcome

if TYPE_CHECKING:
    from rich.console import Console


class Audit(Outcome):
    """The outcome of `audit`. It holds figures only: the log is not needed any more."""

    def show(self, console: Console | None = None) -> None:
        """Print it as tables, in colour on a terminal. `console`: one of rich; None: standard output."""
        from intervalq.spark._audit.report.text import tables  # noqa: PLC0415 - needs rich, an extra

        tables(self, console)

    def write(self, path: str | Path) -> Path:
        """Write it as one HTML page with embedded charts; the folder must exist. Returns the path.

        Raises:
            MissingExtra: matplotlib isn't installed.
        """
        from intervalq.spark._audit.report.page import page  # noqa: PLC0415 - needs matplotlib, an extra

        path = Path(path)
        save(path, page(self).encode())
        return path
