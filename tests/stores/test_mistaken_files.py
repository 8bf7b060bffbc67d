"""A file that another kind of store created is refused with a message that says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends import both_backends
from intervalq import IntervalQueue
from intervalq.errors import CorruptState
from intervalq.tasks import Tasks

anyio_backend = both_backends

pytestmark = pytest.mark.anyio


async def nothing() -> None:
    """A job that does nothing."""


async def test_a_database_of_tasks_is_not_what_queues_keep_at_such_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    async with Tasks(path) as tasks, IntervalQueue("q", interval="1ms", store=path) as queue:
        await tasks.insert("a", 1)
        with pytest.raises(CorruptState, match="a SQLite database: write sqlite:// before its path"):
            await queue.run(nothing)
        async with IntervalQueue("q", interval="1ms", store=f"sqlite://{path}") as right:
            await right.run(nothing)


async def test_what_queues_keep_at_such_a_path_is_no_database_of_tasks(tmp_path: Path) -> None:
    path = str(tmp_path / "state.json")
    async with Tasks(path) as tasks, IntervalQueue("q", interval="1ms", store=path) as queue:
        await queue.run(nothing)
        with pytest.raises(
            CorruptState,
            match="give another path; if queues keep JSON in it, give tasks",
        ):
            await tasks.insert("a", 1)
        await queue.run(nothing)
