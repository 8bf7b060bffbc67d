"""The progress of a pipeline, on standard error, and its outcome."""

from __future__ import annotations

import time
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

import click

from intervalq._show import console, escaped, progress_bar, seconds, warn
from intervalq.pipeline import Look, Outcome, Watch

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE: Final = 10.0
"""Seconds between two lines if there is no terminal."""


class Lines(Watch):
    """Prints a line for each step, and from time to time one about the calls."""

    def __init__(self) -> None:
        self._next = 0.0

    def note(self, text: str) -> None:
        """See `Watch.note`."""
        warn(text)

    def looked(self, look: Look) -> None:
        """See `Watch.looked`."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE
            warn(words(look))


class Bar(Watch):
    """Shows a progress bar while there are calls, and a line for each step."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID  # of the bar, once there is one

    def note(self, text: str) -> None:
        """See `Watch.note`."""
        (console(stderr=True) if self._bar is None else self._bar.console).print(
            f"intervalq: {escaped(text)}"
        )

    def looked(self, look: Look) -> None:
        """See `Watch.looked`."""
        if self._bar is None:
            self._bar = progress_bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=look.rows)
        self._bar.update(self._task, completed=look.done + look.failed, description=words(look))
        self._bar.refresh()

    def called(self) -> None:
        """See `Watch.called`."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def words(look: Look) -> str:
    """The progress of the calls, in one line."""
    parts = [f"{look.done:,}/{look.rows:,} done", f"{look.rate:.3g}/s"]
    if look.possible:
        parts.append(f"{look.used:,} of {look.possible:,} slots used")
    parts += [f"{look.in_flight + look.waiting:,} waiting", _errors(look)]
    if look.is_held:
        parts.append("the queue is held")
    elif look.left is not None:
        parts.append(f"{seconds(look.left)} left")
    return ", ".join(parts)


def _errors(look: Look) -> str:
    reason = f" (most: {shorten(escaped(look.reason), 80)})" if look.reason else ""
    return f"{look.failed:,} errors{reason}"


def show(outcome: Outcome, spec: str) -> None:
    """Print the outcome of a run on standard output."""
    for one in outcome.passes:
        pace = "" if one.rate is None else f", {one.rate:,.1f}/s"
        ledger = f", {one.replayed:,} from the ledger" if one.replayed else ""
        click.echo(f"pass {one.id}: {one.calls:,} calls{pace}{ledger}")
        click.echo(f"  {one.results:,} results, {one.failed:,} failed")
        for why in one.reasons:
            click.echo(f"  {why['rows']:,} failed: {escaped(why['reason'])}")
            click.echo(f"    for example row {escaped(repr(why['key']))}: {escaped(why['error'])}")
        for reason, count in one.rejected.items():
            click.echo(f"  {count:,} rejected: {escaped(reason)}")
    if outcome.stopped:
        click.echo(f"stopped; to go on: intervalq pipeline run {escaped(spec)}")
        return
    if not outcome.passes:
        click.echo(f"nothing to call: {outcome.before:,} of {outcome.rows:,} rows have results")
    if outcome.audit is not None:
        verdict(outcome.audit, outcome.report)


def verdict(audit: dict[str, Any], page: str | None) -> None:
    """Print the findings of an audit in a few lines."""
    for name, found in audit["violations"].items():
        click.echo(f"violation: {name}, {found['count']:,} times: {found['meaning']}")
    if audit["ok"]:
        click.echo(f"audit: {audit['starts']:,} starts, no violations")
    if page is not None:
        click.echo(f"report: {page}")
