"""The commands that cancel tasks, and show what was reported of their work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cli import tasks_shown
from cli.command_line import CommandLine
from cli.tasks_shown import claimed, lines

tasks = tasks_shown.tasks


async def test_waiting_and_running_tasks_are_cancelled(
    intervalq: CommandLine, tasks: Callable[..., Any]
) -> None:
    tasks("insert", "q", stdin="1\n2\n3\n")
    async with claimed(intervalq, "q") as claim:
        ids = [task["id"] for task in lines(tasks("list", "q", "--json"))]
        waiting = [id_ for id_ in ids if id_ != claim.id]
        ran = tasks("cancel", waiting[0], claim.id, claim.id)
        assert ran.stdout == "1 task removed, 1 being stopped\n"
        assert "cancelled, ending" in tasks("show", claim.id).stdout
        assert [task["cancelled"] for task in lines(tasks("list", "q", "--json"))].count(True) == 1
        ran = tasks("cancel", waiting[0], waiting[1], claim.id, "--json", code=1)
        assert lines(ran) == [{"removed": [waiting[1]], "stopping": [claim.id], "missing": [waiting[0]]}]
    assert lines(tasks("list", "q", "--json")) == []
    ran = tasks("cancel", claim.id, code=1)
    assert ran.stdout == "0 tasks removed, 0 being stopped\n"
    assert f"task {claim.id} does not exist: it is done, or was removed" in ran.stderr
    assert "Missing argument" in tasks("cancel", code=2).stderr


async def test_reports_are_shown(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", "1")
    async with claimed(intervalq, "q") as claim:
        assert "progress  " not in tasks("show", claim.id).stdout
        await claim.in_progress(progress=0.4, note="row 40\nof 100", checkpoint={"row": 40})
        shown = tasks("show", claim.id).stdout
        assert '    progress  40%: row 40\n              of 100\n  checkpoint  {"row": 40}\n' in shown
        assert "40%: row 40\\nof 100" in tasks("list", "q").stdout
        (task,) = lines(tasks("list", "q", "--json"))
        assert (task["progress"], task["note"], task["checkpoint"]) == (0.4, "row 40\nof 100", {"row": 40})
