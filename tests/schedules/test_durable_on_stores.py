"""Durable schedules on every store of tasks, in real time."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq.errors import UnsupportedOperation
from intervalq.tasks import Claim, Tasks
from intervalq.tasks._schedule.record import QUEUE
from intervalq.tasks.sync import Tasks as BlockingTasks
from stores.kinds import url_of

KINDS = ("memory", "sqlite", "redis", "valkey", "redis_cluster", "postgres", "pgbouncer", "nats")
ENOUGH = 10


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.mark.parametrize("url", KINDS, indirect=True)
def test_two_processes_insert_each_task_once(url: str) -> None:
    name, queue = f"s-{secrets.token_hex(6)}", f"q-{secrets.token_hex(6)}"
    seen = list[tuple[str, int, object]]()

    async def main() -> None:
        async with Tasks(url) as one, Tasks(url) as two, anyio.create_task_group() as group:
            enough = anyio.Event()

            async def note(task: Claim) -> None:
                seen.append((task.id, round(task.created * 1e6), task.value))
                if len(seen) >= ENOUGH:
                    enough.set()

            await one.schedule(name, queue, {"a": 1}, every="50ms", key="k")
            await one.schedule(name, queue, {"a": 2}, every="50ms", key="k")
            for tasks in (one, two):
                tasks.worker(queue)(note)
                group.start_soon(tasks.run)
            await enough.wait()
            await one.schedules.pause(name)
            while not (info := await two.schedules.inspect(name, upcoming=1)).paused:
                await anyio.sleep(0.01)  # on NATS, what others have changed is seen a little later
            assert (info.plan, info.queue) == ("every 50ms", queue)
            await two.schedules.resume(name)
            made = await one.schedules.fire(name)
            while made not in [id_ for id_, _, _ in seen]:
                await anyio.sleep(0.01)
            await one.schedules.drop(name)
            one.stop()
            two.stop()

    anyio.run(main)
    assert len({id_ for id_, _, _ in seen}) == len({(id_, created) for id_, created, _ in seen})
    assert {value["a"] for _, _, value in seen} == {2}  # type: ignore[index] # a dict
    times = sorted(datetime.fromisoformat(id_.partition("/")[2]) for id_, _, _ in seen[:ENOUGH])
    every = [times[0] + timedelta(milliseconds=50 * number) for number in range(ENOUGH)]
    assert times == every, "none is left out"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_blocking_code_has_the_same(url: str) -> None:
    with BlockingTasks(url) as tasks:
        tasks.schedule("nightly", "reports", cron="0 3 * * *", timezone="Europe/Berlin")
        tasks.schedules.pause("nightly")
        assert [info.paused for info in tasks.schedules.inspect_all()] == [True]
        tasks.schedules.resume("nightly")
        upcoming = tasks.schedules.inspect("nightly").upcoming
        assert [time.hour for time in upcoming] == [3] * 10
        assert upcoming[0].astimezone(UTC) > datetime.now(UTC)
        made = tasks.schedules.fire("nightly")
        assert [task.id for task in tasks.tasks("reports")] == [made]
        tasks.schedules.drop("nightly")
        assert tasks.schedules.inspect_all() == []


@pytest.mark.parametrize("url", ["nats"], indirect=True)
def test_what_a_store_does_not_have_is_refused_when_it_is_declared(url: str) -> None:
    async def main() -> None:
        async with Tasks(url) as tasks:
            refused: list[dict[str, Any]] = [{"priority": 1}, {"keep": "1d"}]
            for options in refused:
                with pytest.raises(UnsupportedOperation):
                    await tasks.schedule("refused", "q", every="1h", **options)
            assert "refused" not in [info.name for info in await tasks.schedules.inspect_all()]

    anyio.run(main)


@pytest.mark.parametrize("url", ["nats"], indirect=True)
def test_a_process_that_has_claimed_a_schedule_resumes_what_another_one_has_paused(url: str) -> None:
    """It reads the row as it claimed it, which does not say that it is paused."""
    name = f"s-{secrets.token_hex(6)}"

    async def main() -> None:
        async with Tasks(url) as one, Tasks(url) as two:
            await one.schedule(name, "q", every="1h")
            await two._session().claims((QUEUE,), 1_000)
            await one.schedules.pause(name)
            await two.schedules.resume(name)
            assert not (await one.schedules.inspect(name)).paused
            await two._session().claims((QUEUE,), 1_000)
            await one.schedule(name, "q", "new", every="1h")
            made = await two.schedules.fire(name)
            assert [task.value for task in await one.tasks(ids=[made])] == ["new"]
            await one.schedules.drop(name)

    anyio.run(main)
