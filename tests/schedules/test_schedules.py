from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._watch.rows import missed
from intervalq.errors import InvalidName, InvalidOption, ScheduleNotFound, UnsupportedOperation
from intervalq.schedules import Schedules
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from schedules.world import BEGIN, HOUR, MINUTE, Line, Silent, World, hourly, run


@pytest.mark.parametrize(
    ("misfire", "fired", "missed"),
    [
        ("skip", [2, 3, 8], [[], [], [4, 5, 6, 7]]),
        ("once", [2, 3, 7, 8], [[], [], [4, 5, 6], []]),
        ("all", [2, 3, 4, 5, 6, 7, 8], [[]] * 7),
    ],
)
def test_occurrences_that_come_too_late(misfire: str, fired: list[int], missed: list[list[int]]) -> None:
    """No process runs from 03:46 to 07:46: 4, 5, 6 and 7 o'clock are missed."""

    async def main() -> None:
        world = World()
        overlap = "wait" if misfire == "all" else "skip"
        declare = partial(hourly, misfire=misfire, overlap=overlap)
        async with world.process(declare):
            await anyio.sleep(2 * HOUR)
        await anyio.sleep(4 * HOUR)
        async with world.process(declare):
            await anyio.sleep(HOUR)
        assert world.hours == fired
        hours = [[round((time - BEGIN).total_seconds() // HOUR) for time in o.missed] for _, o in world.fired]
        assert hours == missed
        assert [o.fence for _, o in world.fired] == [*range(1, len(fired) + 1)]

    run(main)


@pytest.mark.parametrize("late", [False, True])
def test_within_its_grace_an_occurrence_fires_late(late: bool) -> None:
    async def main() -> None:
        world = World()
        async with world.process(partial(hourly, grace="10m")):
            await anyio.sleep(HOUR)
        await anyio.sleep(24 * MINUTE if late else 22 * MINUTE)  # 03:10:40 or 03:08:40
        async with world.process(partial(hourly, grace="10m")):
            await anyio.sleep(1)
        assert world.hours == ([2] if late else [2, 3])

    run(main)


@pytest.mark.parametrize(
    ("overlap", "begun"),
    [("skip", [2, 5]), ("wait", [2, 4.5, 7]), ("allow", [2, 3, 4, 5, 6, 7])],
)
def test_runs_that_would_overlap(overlap: str, begun: list[float]) -> None:
    """The function takes two hours and a half. With `wait`, only the last of those that wait fires."""

    async def main() -> None:
        world, starts = World(), []

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            async def slow() -> None:
                starts.append(virtual_micros())
                await anyio.sleep(2.5 * HOUR)

            hourly(schedules, slow, overlap=overlap, grace="1s")

        async with world.process(declare), world.process(declare):
            await anyio.sleep(5.5 * HOUR)
        hours = [(start / 1e6 - BEGIN.timestamp()) / HOUR for start in starts]
        assert [round(hour, 2) for hour in hours] == begun

    run(main)


def test_pause_resume_and_drop() -> None:
    async def main() -> None:
        world = World()
        control = Schedules(world.store)
        async with world.process(hourly), world.process(hourly):
            await anyio.sleep(HOUR)  # 02:46
            await control.pause("hourly")
            await anyio.sleep(2 * HOUR)
            info = await control.inspect("hourly", upcoming=2)
            assert info.paused
            assert [time.hour for time in info.upcoming] == [5, 6]
            await control.resume("hourly")
            await anyio.sleep(HOUR)  # 05:46
            await control.drop("hourly")
            await anyio.sleep(HOUR)  # created again by those that run it
        assert world.hours == [2, 5, 6]
        assert [o.missed for _, o in world.fired] == [(), (), ()]
        assert [o.fence for _, o in world.fired] == [1, 2, 1]
        assert [info.name for info in await control.inspect_all()] == ["hourly"]
        await control.drop("hourly")
        for call in (control.pause, control.resume, control.drop, control.inspect):
            with pytest.raises(ScheduleNotFound, match="hourly"):
                await call("hourly")

    run(main)


def test_what_did_not_fire_is_listed_by_reason() -> None:
    """The function runs for two and a half hours; later, no process is there for three, and then a pause."""

    async def main() -> None:
        world = World()
        control = Schedules(world.store)

        async def long() -> None:
            await anyio.sleep(2.5 * HOUR)

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            hourly(schedules, long)

        async def look() -> tuple[list[int], list[int], str]:
            info = await control.inspect("hourly")
            skipped, overdue = ([time.hour for time in some] for some in (info.skipped, info.overdue))
            return skipped, overdue, missed(info)

        async with world.process(declare):
            await anyio.sleep(HOUR)  # 02:46
            assert await look() == ([], [], "-")
            await anyio.sleep(2 * HOUR)  # 04:46, the run of 02:00 has ended
            assert await look() == ([3, 4], [], "2 skipped")
            await anyio.sleep(1.5 * HOUR)  # 06:16, that of 05:00 goes on
            assert await look() == ([6], [], "1 skipped")
        await anyio.sleep(3 * HOUR)  # 09:16
        assert await look() == ([6], [7, 8, 9], "1 skipped, 3 overdue")
        await control.pause("hourly")
        await anyio.sleep(HOUR)
        assert await look() == ([6], [], "1 skipped")
        await control.resume("hourly")
        assert await look() == ([], [], "-")
        await anyio.sleep(200 * HOUR)
        assert (await look())[2] == "100+ overdue"

    run(main)


def test_what_occurs_after_a_resume_fires_in_time_in_processes_that_nobody_tells() -> None:
    async def main() -> None:
        world, starts = World(), []

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            async def start() -> None:
                starts.append(virtual_micros() / 1e6 - BEGIN.timestamp())

            hourly(schedules, start)
            schedules.every("10s", name="often")(note)

        control = Schedules(world.store)
        async with world.process(declare, silent=True) as line:
            await anyio.sleep(10 * MINUTE)  # 01:56:40
            for name in ("hourly", "often"):
                await control.pause(name)
            await anyio.sleep(MINUTE)
            world.fired.clear()
            line.calls.clear()
            await anyio.sleep(2 * HOUR + 2 * MINUTE + 18)  # 03:59:58
            assert world.fired == []
            assert line.calls == {"read": 122 + 734 + 2}  # each minute, each 10 seconds and each hour
            for name in ("hourly", "often"):
                await control.resume(name)
            await anyio.sleep(MINUTE)
        assert [round(start / HOUR, 4) for start in starts] == [4]
        assert [round(time.timestamp() % HOUR) for time in world.times] == [0, 10, 20, 30, 40, 50]

    run(main)


def test_a_resume_by_the_handle_that_runs_a_schedule_is_noticed_at_once() -> None:
    async def main() -> None:
        schedules, starts = Schedules(Silent(Line(World().store))), []

        @schedules.every("10ms", name="s")
        async def start() -> None:
            starts.append(virtual_micros())

        async with anyio.create_task_group() as group:
            group.start_soon(schedules.run)
            await anyio.sleep(0.1)
            await schedules.pause("s")
            await anyio.sleep(5.5)
            starts.clear()
            await schedules.resume("s")
            await anyio.sleep(0.055)
            group.cancel_scope.cancel()
        assert len(starts) == 5

    run(main)


def test_the_process_that_starts_last_changes_when_it_occurs_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of the past counts under the new plan, and the fencing numbers go on."""

    async def main() -> None:
        world = World()

        def often(schedules: Schedules, note: Callable[..., object]) -> None:
            schedules.every("20m", name="hourly")(note)

        async with world.process(hourly):
            await anyio.sleep(HOUR)
            async with world.process(often) as line:
                line.failing_swaps = 3
                await anyio.sleep(10)
            await anyio.sleep(HOUR)
        assert [f"{time:%H:%M}" for time in world.times] == ["02:00", "03:00", "03:20", "03:40"]
        assert [number for number, _ in world.fired] == [0] * 4
        assert [o.missed for _, o in world.fired] == [()] * 4
        assert [o.fence for _, o in world.fired] == [1, 2, 3, 4]

    with caplog.at_level(logging.INFO, "intervalq"):
        run(main)
    for who in ("this program has changed", "another program has changed"):
        assert caplog.text.count(f"schedule 'hourly': {who} it to: every 20m") == 1


def test_a_queue_paces_what_is_made_up_for() -> None:
    async def main() -> None:
        world, starts = World(), []

        def declare(schedules: Schedules, _: object) -> None:
            async def note() -> None:
                starts.append(virtual_micros())

            queue = IntervalQueue("q", interval="10s", store=MemoryStore(clock=virtual_micros))
            hourly(schedules, note, misfire="all", overlap="allow", queue=queue)

        async with world.process(declare):
            await anyio.sleep(1)
        await anyio.sleep(5 * HOUR)
        async with world.process(declare):
            await anyio.sleep(2 * MINUTE)
        assert len(starts) == 5
        gaps = [round((later - sooner) / 1e6) for sooner, later in pairwise(starts)]
        assert gaps == [10] * 4

    run(main)


def test_what_is_wrong_with_a_declaration_is_said_at_once() -> None:
    schedules = Schedules("memory://")
    for options, why in (
        ({"misfire": "later"}, "skip, once, all"),
        ({"overlap": "no"}, "skip, wait, allow"),
        ({"misfire": "all"}, "contradict"),
    ):
        with pytest.raises(InvalidOption, match=why):
            schedules.every("1h", **options)  # type: ignore[arg-type] # wrong on purpose

    async def two(one: object, other: object) -> None: ...

    for declare in (schedules.every, schedules.cron):
        with pytest.raises(InvalidOption, match=rf"in parentheses: @schedules.{declare.__name__}\('"):
            declare(two)  # type: ignore[arg-type] # wrong on purpose
    for function, why in ((two, "^two must .*only argument"), (5, "not a function")):
        with pytest.raises(InvalidOption, match=why):
            schedules.every("1h", name="s")(function)  # type: ignore[type-var] # wrong on purpose
    with pytest.raises(InvalidName, match="name of a schedule"):
        schedules.every("1h")(lambda: None)
    schedules.every("1h", name="s")(print)
    with pytest.raises(InvalidOption, match="already"):
        schedules.every("1h", name="s")(print)
    with pytest.raises(InvalidOption, match="no schedule to run"):
        anyio.run(Schedules("memory://").run)


def test_the_first_example_of_the_page_declares_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It runs until it is stopped, so no other test runs it."""
    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    runs: list[object] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anyio, "run", runs.append)
    exec(code, found := dict[str, Any](__name__="example"))
    assert runs == [found["schedules"].run]
    assert [*found["schedules"]._tasks] == ["report", "clean_up"]


def test_a_store_without_schedules_says_so() -> None:
    class Plain:
        url = "plain://"

        async def apply(self) -> None: ...
        async def names(self) -> None: ...
        async def aclose(self) -> None: ...

    with pytest.raises(UnsupportedOperation, match="keeps no schedules"):
        Schedules(Plain())  # type: ignore[arg-type] # a store of another package


def test_what_was_skipped_does_not_fire_in_a_process_that_starts_within_the_grace() -> None:
    async def main() -> None:
        world = World()

        async def slow() -> None:
            await anyio.sleep(HOUR + 30)  # from 02:00:00 to 03:00:30

        async with world.process(lambda schedules, _: hourly(schedules, slow)):
            await anyio.sleep(74 * MINUTE)  # 03:00:40
            async with world.process(hourly):
                await anyio.sleep(MINUTE)
        assert world.fired == []

    run(main)
