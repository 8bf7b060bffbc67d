from __future__ import annotations

import secrets

import anyio

from intervalq.tasks import Claim, Tasks

EACH = 8


async def test_each_function_gets_the_tasks_of_its_own_queue(nats_url: str) -> None:
    """This includes tasks that came for an idle function while another one asked."""
    word = secrets.token_hex(6)
    names = [f"suite-{word}-{number}" for number in range(3)]
    got: list[tuple[str, str]] = []
    changed = anyio.Event()
    async with Tasks(nats_url) as tasks, Tasks(nats_url) as others:
        for name in names:

            @tasks.worker(name)
            async def work(task: Claim, name: str = name) -> None:
                got.append((name, task.queue))
                changed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(tasks.run)
            for number in range(EACH * len(names)):  # one at a time, so that all are idle before each
                changed = anyio.Event()
                await others.insert(names[number % len(names)], None)
                with anyio.fail_after(60):
                    await changed.wait()
            group.cancel_scope.cancel()
    assert [pair for pair in got if pair[0] != pair[1]] == []
    assert len(got) == EACH * len(names)
