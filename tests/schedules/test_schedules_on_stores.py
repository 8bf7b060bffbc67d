"""Schedules on every store, in real time."""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from intervalq.errors import CorruptState, VersionMismatch
from intervalq.schedules import Occurrence, Schedules
from intervalq.store import open_store, scheduling
from stores.kinds import url_of

KINDS = ("memory", "json", "sqlite", "redis", "valkey", "redis_cluster", "postgres", "pgbouncer", "nats")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    return f"file://{tmp_path}/state.json" if kind == "json" else url_of(kind, request, tmp_path)


@pytest.mark.parametrize("url", KINDS, indirect=True)
@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_two_processes_fire_each_occurrence_once(url: str, overlap: str) -> None:
    """Until ten have fired, a plain function in a thread for one and an async one for the other."""
    name, fired, enough = f"s-{secrets.token_hex(6)}", [], threading.Event()

    def note(occurrence: Occurrence) -> None:
        fired.append(occurrence)
        if len(fired) >= 10:
            enough.set()

    async def note_too(occurrence: Occurrence) -> None:
        note(occurrence)

    async def main() -> None:
        async with Schedules(url) as one, Schedules(url) as two, anyio.create_task_group() as group:
            for schedules, function in ((one, note), (two, note_too)):
                schedules.every("20ms", name=name, overlap=overlap)(function)  # type: ignore[arg-type]
                group.start_soon(schedules.run)
            await anyio.to_thread.run_sync(enough.wait)
            await one.pause(name)
            info = await two.inspect(name)
            assert info.paused
            assert info.plan == "every 20ms"
            group.cancel_scope.cancel()
        async with Schedules(url) as again:
            assert name in [info.name for info in await again.inspect_all()]
            await again.drop(name)
            assert name not in [info.name for info in await again.inspect_all()]

    anyio.run(main)
    times = [occurrence.scheduled for occurrence in fired]
    assert len(times) == len({*times})
    fences = sorted(occurrence.fence for occurrence in fired)
    assert fences == [*range(fences[0], fences[0] + len(fences))]
    if overlap == "skip":  # else one may be taken before it is known that the one before has begun
        assert not [occurrence for occurrence in fired if occurrence.abandoned]


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
def test_under_trio(url: str) -> None:
    done = threading.Event()

    async def main() -> None:
        async with Schedules(url) as schedules, anyio.create_task_group() as group:
            schedules.every("10ms", name="s")(done.set)
            group.start_soon(schedules.run)
            await anyio.to_thread.run_sync(done.wait)
            group.cancel_scope.cancel()

    anyio.run(main, backend="trio")


def test_plain_functions_that_take_long_hold_up_no_other_schedule() -> None:
    """More of them than threads that anyio has."""
    all_run, many = threading.Event(), 45
    together = threading.Barrier(many, action=all_run.set)

    def long() -> None:
        with suppress(threading.BrokenBarrierError):  # in a later run
            together.wait(5)

    async def main() -> None:
        schedules = Schedules("memory://long")
        for number in range(many):
            schedules.every("50ms", name=f"s{number}")(long)
        async with anyio.create_task_group() as group:
            group.start_soon(schedules.run)
            assert await anyio.to_thread.run_sync(all_run.wait, 20)
            together.abort()
            group.cancel_scope.cancel()

    anyio.run(main)


def test_a_broken_record_ends_the_run_with_an_error_and_can_be_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        store = open_store(str(tmp_path / "state.db"))
        async with Schedules(store) as schedules:
            schedules.every("1h", name="s")(print)
            for text in ("{}", '{"version":3}'):
                await scheduling(store).swap_schedule("s", None, text)
                with pytest.raises(CorruptState if text == "{}" else VersionMismatch, match="schedule 's'"):
                    await schedules.run()
                await schedules.drop("s")
            assert await schedules.inspect_all() == []
        await store.aclose()

    anyio.run(main)
