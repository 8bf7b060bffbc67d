"""What schedules cost a store: requests for an occurrence, and none between occurrences."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from faults.proxy import proxied
from intervalq.schedules import Occurrence, Schedules
from schedules.world import MINUTE, Declare, World, run
from stores.kinds import url_of

PROCESSES = 3
ENOUGH = 8
EVERY = 0.06


@pytest.mark.parametrize("overlap", ["skip", "wait", "allow"])
def test_each_process_asks_once_for_an_occurrence_and_once_a_minute(overlap: str) -> None:
    """No process is told of anything. The one that runs the function says once more that it has ended."""

    async def main() -> None:
        world, minutes = World(), 20

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            schedules.every("10s", name="s", overlap=overlap)(note)  # type: ignore[arg-type] # of a list

        async with anyio.create_task_group() as group:
            for _ in range(PROCESSES):
                await group.start(_live, world, declare)
            await anyio.sleep(25)
            before = len(world.fired)
            for line in world.lines:
                line.calls.clear()
            await anyio.sleep(minutes * MINUTE)
            group.cancel_scope.cancel()
        occurrences = len(world.fired) - before
        assert occurrences == minutes * 6
        calls = sum(line.calls.total() for line in world.lines)
        assert calls <= minutes * PROCESSES + occurrences * (PROCESSES + 1)

    run(main)


@pytest.mark.parametrize("overlap", ["skip", "wait", "allow"])
@pytest.mark.parametrize("dies", [True, False])
def test_they_ask_once_also_if_the_process_that_ran_the_last_one_is_dead_or_late(
    overlap: str, dies: bool
) -> None:
    async def main() -> None:
        world = World()

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            async def run_(occurrence: Occurrence) -> None:
                await anyio.sleep(0.5)
                await note(occurrence)  # type: ignore[misc] # a coroutine

            schedules.every("10s", name="s", overlap=overlap)(run_)  # type: ignore[arg-type] # of a list

        async with anyio.create_task_group() as group:
            scopes = [await group.start(_live, world, declare) for _ in range(PROCESSES)]
            await anyio.sleep(14)
            for _ in range(PROCESSES - 1):
                last, count = world.fired[-1][0], len(world.fired)
                for line in world.lines:
                    line.calls.clear()
                if dies:
                    scopes[last].cancel()
                world.lines[last].is_cut = not dies
                await anyio.sleep(10)
                world.lines[last].is_cut = False
                assert len(world.fired) == count + 1
                winner = world.fired[-1][0]
                assert winner != last
                for number in {*range(PROCESSES)} - {last}:
                    assert world.lines[number].calls["swap"] <= 1 + (number == winner)
            group.cancel_scope.cancel()

    run(main)


async def _live(
    world: World, declare: Declare, *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]
) -> None:
    with anyio.CancelScope() as scope:
        async with world.process(declare, silent=True):
            task_status.started(scope)
            await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("redis", 1),
        ("postgres", 1),
        ("nats", 3),  # it reads the clock and the message first: no request compares both
    ],
)
def test_as_many_requests_are_on_the_wire(
    kind: str, requests: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Beside a schedule that is due all the time, there is one that never is."""
    name, url = secrets.token_hex(6), url_of(kind, request, tmp_path)
    fired = list[tuple[float, int]]()

    async def main() -> None:
        enough = anyio.Event()
        async with proxied(url) as proxy, anyio.create_task_group() as group:

            async def note(occurrence: Occurrence) -> None:
                fired.append((occurrence.scheduled.timestamp(), len(proxy.passed)))
                if len(fired) == ENOUGH:
                    enough.set()

            processes = [Schedules(proxy.url) for _ in range(PROCESSES)]
            for schedules in processes:
                schedules.every("365d", name=f"rare-{name}")(note)
                schedules.every(EVERY, name=f"often-{name}")(note)
                group.start_soon(schedules.run)
            await enough.wait()
            group.cancel_scope.cancel()
        async with Schedules(url) as cleaner:
            for what in ("rare", "often"):
                await cleaner.drop(f"{what}-{name}")
        for schedules in processes:
            await schedules.aclose()

    anyio.run(main)
    (begin, before), (end, after) = fired[2], fired[-1]  # the first ones meet those who still connect
    occurrences = round((end - begin) / EVERY)
    # On a busy machine, those who wake late ask twice.
    assert after - before <= requests * (2 * PROCESSES + 1) * (occurrences + 1)
