"""`intervalq tasks top` shows what is being worked on, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from cli import tasks_shown
from cli.command_line import CommandLine
from cli.tasks_shown import lines, url
from intervalq.cli._tasks.top import bar, running, running_table
from intervalq.tasks import Tasks

tasks = tasks_shown.tasks
Run = Callable[..., Any]


async def test_running_tasks_with_their_progress(intervalq: CommandLine, tasks: Run) -> None:
    assert "no running tasks in sqlite:" in tasks("top").stdout
    async with Tasks(url(intervalq)) as handle:
        waiting = await handle.insert("waits", 1)
        claims = []
        for queue, progress, note in (("b", 0.5, "page \x1b[31m3"), ("a", None, ""), ("b", 0.999, "")):
            await handle.insert(queue, 1, key="car1" if progress is None else None)
            claims.append(claim := await handle.claim(queue))
            if progress is not None:
                await claim.in_progress(progress=progress, note=note)
        shown = tasks("top").stdout
        rows = [line for line in shown.splitlines() if any(claim.id in line for claim in claims)]
        assert [claim.id for line in rows for claim in claims if claim.id in line] == [
            claims[1].id, claims[0].id, claims[2].id,
        ]  # fmt: skip
        assert waiting not in shown
        assert "car1" in rows[0]
        assert "%" not in rows[0]
        assert "█████░░░░░  50%" in rows[1]
        assert "\x1b" not in rows[1]
        assert "page" in rows[1]
        assert " 99%" in rows[2]
        assert str((await handle.sessions())[0].pid) in rows[1]
        found = lines(tasks("top", "b", "--json"))
        assert [(task["queue"], task["progress"]) for task in found] == [("b", 0.5), ("b", 0.999)]
        assert "no running tasks of queue 'c'" in tasks("top", "c", "--once").stdout


async def test_a_narrow_terminal_shows_what_matters_most() -> None:
    async with Tasks("memory://") as handle:
        await handle.insert("reports", 1, key="car1")
        claim = await handle.claim("reports")
        await claim.in_progress(progress=0.5, note="page 3 of 700, and a long story")
        found = await running(handle, None, 10)
    for width, columns in ((80, 4), (110, 6), (140, 8)):
        stream = StringIO()
        table = running_table(*found, width)
        Console(file=stream, width=width).print(table)
        shown = stream.getvalue()
        assert len(table.columns) == columns
        assert claim.id in shown
        assert "50%   page 3" in shown


@pytest.mark.parametrize(
    ("done", "shown"),
    [(None, ""), (0, "░" * 10 + "   0%"), (1, "█" * 10 + " 100%"), (0.999, "█" * 9 + "░  99%")],
)
def test_a_bar_is_full_only_at_the_end(done: float | None, shown: str) -> None:
    assert bar(done) == shown


def test_wrong_use(tasks: Run) -> None:
    assert "--every" in tasks("top", "--every", "nan", code=2).stderr
    assert "--every" in tasks("top", "--every", "0", code=2).stderr
    assert "name" in tasks("top", "", code=2).stderr
