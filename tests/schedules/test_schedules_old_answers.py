"""Answers of the store that are old when they arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import anyio
import pytest

from intervalq.schedules import Schedules
from intervalq.schedules._records import Records
from intervalq.schedules.rules import declare, fire, pause
from schedules.world import HOUR, MINUTE, Line, World, hourly, run


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize(("looks", "repeats"), [(11, 0), (11, 25), (1, 25)])
def test_an_answer_from_before_an_occurrence_does_not_fire_another_one_again(
    overlap: str, looks: float, repeats: float
) -> None:
    async def main() -> None:
        world = World()

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            schedules.every("10s", name="s", overlap=overlap)(note)  # type: ignore[arg-type] # of a list

        async with world.process(declare) as line, world.process(hourly):
            await anyio.sleep(15)
            line.slow_looks, line.slow_repeats = looks, repeats
            await anyio.sleep(10 * MINUTE)
        times = Counter(occurrence.scheduled for _, occurrence in world.fired)
        assert max(times.values()) == 1
        assert len(times) >= 30

    run(main)


def test_an_old_answer_neither_cancels_a_run_nor_keeps_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    """The reads of the process come from a replica that knows nothing of the run."""

    async def main() -> None:
        world, ended = World(), []

        def declare(schedules: Schedules, _: object) -> None:
            async def long() -> None:
                await anyio.sleep(2 * MINUTE)
                ended.append(True)

            hourly(schedules, long)
            schedules.every("7s", name="often")(anyio.lowlevel.checkpoint)

        async with world.process(declare) as line:
            await anyio.sleep(10)
            line.replica = (await line.read_schedules()).texts
            await anyio.sleep(HOUR)
        assert ended == [True]
        assert not (await Schedules(world.store).inspect("hourly")).running

    run(main)
    assert "lost its lease" not in caplog.text


def test_what_is_known_is_never_replaced_by_what_may_be_older() -> None:
    async def main() -> None:
        line = Line(World().store)
        records, others = Records(line, line.url), Records(line, line.url)
        first = declare(None, "p", 10)
        second = fire(first, 20, 20, 20, "a", grace=None, lease=0).record
        assert await records.swap("s", first)
        line.slow_looks = 5
        async with anyio.create_task_group() as group:
            group.start_soon(records.look, ["s"])
            await anyio.sleep(1)
            assert await records.swap("s", second)  # while the answer is under way
        assert records.get("s") == second
        async with anyio.create_task_group() as group:
            group.start_soon(records.look, ["s"])
            await anyio.sleep(1)
            assert await records.swap("s", pause(second))
        assert records.get("s") == pause(second)
        assert await records.swap("s", second)
        line.slow_looks = 0
        line.replica = {"s": first.to_text()}
        assert not await records.look(["s"])
        assert records.get("s") == second
        line.replica = {"s": pause(second).to_text()}
        await others.look(["s"])
        await others.change("s", lambda record, _: record and pause(record))  # which seems to change nothing
        line.replica = None
        assert await records.look(["s"]) == {"s"}
        assert records.get("s") == pause(second)
        await others.look(["s"])
        await others.drop("s")
        assert await others.swap("s", first)  # a store that was put back to an older state
        assert await records.look(["s"]) == {"s"}
        assert records.get("s") == first

    run(main)


def test_a_schedule_that_was_dropped_before_the_clock_went_back_takes_nothing_twice() -> None:
    async def main() -> None:
        world = World()
        async with world.process(hourly):
            await anyio.sleep(20 * MINUTE)  # 02:06:40
            world.stepped = -15 * MINUTE * 1_000_000
            await Schedules(world.store).drop("hourly")
            await anyio.sleep(75 * MINUTE)
        assert world.hours == [2, 3]
        assert [o.abandoned for _, o in world.fired] == [None, None]

    run(main)
