"""The order of one handle's jobs when the store is first asked whether a job can begin in time."""

from __future__ import annotations

import anyio

from virtual_store import FarStore, in_virtual_time, queue_on


@in_virtual_time
async def test_who_came_during_the_look_is_behind_the_job_that_is_looked_for() -> None:
    """The job could begin in time; jobs that came later would make it late if they counted."""
    queue, began = queue_on(FarStore(delay=0.05), interval=0.2), list[str]()
    async with queue.slot():
        pass
    await anyio.sleep(0.6)

    async def job(name: str, timeout: float | None) -> None:
        async with queue.slot(timeout=timeout):
            began.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(job, "first", 0.3)
        await anyio.sleep(0.01)
        for _ in range(6):
            group.start_soon(job, "later", None)
    assert began == ["first", *["later"] * 6]
