"""`intervalq ledger export`: the rows of a ledger as JSON lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import click

from intervalq._show import as_json, warn
from intervalq._watch.task import many
from intervalq.cli._ledger.command import ledger_store_option, on_ledger, state_options, states_of
from intervalq.cli._options import examples
from intervalq.cli._tasks.batch import Bar
from intervalq.ledger import Ledger, LedgerRow

_STEP = 500
"""Rows between two updates of the progress bar."""


@click.command(
    epilog=examples(
        "intervalq ledger export filings-2026 --output filings.jsonl",
        "intervalq ledger export filings-2026 --failed",
    )
)
@click.argument("name")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write to FILE, which appears once it is complete. Default: standard output.",
)
@state_options("done", "failed", "unknown", "free", "claimed", "started")
@ledger_store_option
def export(name: str, output: Path | None, store: str | None, **states: bool) -> None:
    """Write the rows of a ledger as JSON lines.

    Each line has key, state, attempt, value (the result or error that is kept), and at (seconds since 1970).
    Flags select states; without flags, all rows are written. Rows are in no particular order, and a row that
    changes during the export may appear twice.
    """
    shown = states_of(states)

    async def do(one: Ledger) -> int:
        info = await one.info()
        total = info.done + info.failed + info.claimed + info.started + info.unknown
        written = 0
        with _writer(output) as write, Bar("rows", total if shown is None else None) as bar:
            async with aclosing(one.rows(shown)) as rows:
                async for row in rows:
                    write(_line(row))
                    written += 1
                    if not written % _STEP:
                        bar.advance(_STEP)
        return written

    written = on_ledger(name, store, do)
    if output is not None:
        warn(f"{many(written, 'row')} written to {output}")


def _line(row: LedgerRow) -> str:
    made: dict[str, Any] = {"key": row.key, "state": row.state, "attempt": row.attempt}
    made["value"] = row.json.strip('"')  # the stored text, if a codec wrote it or it is damaged
    with contextlib.suppress(ValueError, RecursionError):
        return as_json({**made, "value": row.value, "at": row.at})
    return as_json({**made, "at": row.at})


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def _writer(output: Path | None) -> Iterator[Callable[[str], None]]:
    """A function that writes a line; a file gets its final name once all lines are on the disk."""
    if output is None:
        yield click.echo
        return
    temporary = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    file = open(temporary, "x", encoding="utf-8", opener=_private)  # noqa: SIM115 - it is closed below
    try:
        with file:
            yield lambda line: print(line, file=file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
