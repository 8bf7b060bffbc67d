"""The commands that show the outcomes of kept tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cli import tasks_shown
from cli.tasks_shown import lines, looked
from intervalq.tasks import Tasks

tasks = tasks_shown.tasks


async def _end(handle: Tasks) -> None:
    """Task 1 is done at the second attempt, and 2 fails at it."""

    @handle.worker("q", max_attempts=2, backoff=0)
    async def work(task: Any) -> object:
        if task.value == 2 or task.attempt == 1:
            raise ValueError(f"no\n{task.value}")
        return {"of": task.value}

    await handle.run(concurrency=1, until_empty=True)


def test_outcomes_are_listed_and_shown(tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", "--keep", "7d", stdin="1\n2\n")
    looked(tasks, _end)
    (done,) = lines(tasks("list", "q", "--done", "--json"))
    assert (done["value"], done["result"], done["attempts"]) == (1, {"of": 1}, 2)
    assert [(one["attempt"], one["error"]) for one in done["errors"]] == [(1, "ValueError: no\n1")]
    failed = tasks("list", "--failed").stdout
    assert "ValueError: no\\n2" in failed
    assert tasks("list", "--cancelled").stdout == f"no cancelled tasks in {tasks.url}\n"  # type: ignore[attr-defined]

    both = lines(tasks("list", "--done", "--failed", "--json"))
    assert {one["state"] for one in both} == {"done", "failed"}
    assert [one["ended"] for one in both] == sorted((one["ended"] for one in both), reverse=True)
    assert lines(tasks("list", "--done", "--failed", "--limit", "1", "--json")) == both[:1]
    none = tasks("list", "r", "--done", "--failed").stdout
    assert none == f"no done or failed tasks of queue 'r' in {tasks.url}\n"  # type: ignore[attr-defined]

    shown = tasks("show", done["id"]).stdout
    for line in ("state  done", "attempt 1  failed 20", '"of": 1', "kept until  20", f"by  {done['host']}:"):
        assert line in shown, shown
    dead = tasks("show", failed.splitlines()[2].split()[0]).stdout  # it is still there
    for line in ("queue  q.dead", "kept for  168h", "attempt 1  failed 20", "attempt 2  failed 20"):
        assert line in dead, dead
    assert f"in {tasks.url}, nor its outcome" in tasks("show", "unknown", code=1).stderr  # type: ignore[attr-defined]
