"""The progress of a run on standard error: a bar on a terminal, else a line from time to time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from intervalq._show import progress_bar, seconds
from intervalq.cli._run.tally import Tally

_FRAME: Final = 0.2
"""Seconds between two updates of the bar."""

_LINE: Final = 10.0
"""Seconds between two lines if there is no terminal."""

_RECENT: Final = 50
"""The number of latest starts from which the present rate is computed."""


class Bar:
    """A bar on a terminal."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._bar = progress_bar()
        self._task = self._bar.add_task("", total=None)

    async def show(self) -> None:
        """Show it until this is cancelled."""
        with self._bar:
            while True:
                tally = self._tally
                done, total = tally.done, tally.total
                self._bar.update(self._task, total=total, completed=done, description=summary(tally))
                self._bar.refresh()
                await anyio.sleep(_FRAME)

    @contextmanager
    def away(self) -> Iterator[None]:
        """A context without the bar, in which something else is written to the terminal."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


async def show_lines(tally: Tally) -> None:
    """Print a line from time to time until this is cancelled."""
    while True:
        await anyio.sleep(_LINE)
        sys.stderr.write(f"intervalq: {summary(tally)}\n")
        sys.stderr.flush()


def summary(tally: Tally) -> str:
    """The progress of the run in a few words."""
    total = "" if tally.total is None else f"/{tally.total}"
    words = [f"{tally.done}{total} done"]
    recent = tally.started[-_RECENT:]
    rate = None
    if len(recent) > 1 and (span := max(recent) - min(recent)) > 0:
        rate = (len(recent) - 1) / span
        words.append(f"{rate:.3g}/s" if rate >= 1 else f"one in {seconds(1 / rate)}")
    words.append(f"{tally.failed} failed")
    if rate and tally.total is not None:
        words.append(f"{seconds(max(0, tally.total - len(tally.started)) / rate)} left")
    return ", ".join(words)
