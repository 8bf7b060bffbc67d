"""What was taken and never began is reported; and what somebody has asked for fires now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq.errors import ScheduleNotFound
from intervalq.schedules import Occurrence, Schedules
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from schedules.world import BEGIN, HOUR, MINUTE, World, hourly, run


def hours(times: tuple[object, ...]) -> list[int]:
    return [round((time - BEGIN).total_seconds() // HOUR) for time in times]  # type: ignore[operator] # datetimes


def test_what_never_began_is_reported_where_runs_may_overlap() -> None:
    """A process that has taken 3 o'clock, and is to report 2 as missed, dies while it waits for a slot."""

    async def main() -> None:
        world = World()
        queue = IntervalQueue("held", interval="1ms", store=MemoryStore(clock=virtual_micros))

        def waits(schedules: Schedules, note: Callable[..., object]) -> None:
            hourly(schedules, note, overlap="allow", misfire="once", queue=queue)

        async with world.process(waits):
            await anyio.sleep(1)
        await anyio.sleep(1.5 * HOUR)  # 03:16
        await queue.pause()
        async with world.process(waits):
            await anyio.sleep(HOUR)  # takes 3 and 4 o'clock, and begins neither
        assert not world.fired
        await queue.resume()
        async with world.process(waits):
            await anyio.sleep(2 * HOUR)
        seen = [
            (*hours((o.scheduled,)), hours(o.missed), o.abandoned and hours((o.abandoned,)))
            for _, o in world.fired
        ]
        assert seen == [(5, [2, 3], [4]), (6, [], None)]
        await queue.close()

    run(main)


@pytest.mark.parametrize("overlap", ["skip", "wait", "allow"])
@pytest.mark.parametrize("silent", [False, True])
def test_one_process_fires_what_somebody_asks_for(overlap: str, silent: bool) -> None:
    async def main() -> None:
        world = World()
        declare = partial(hourly, overlap=overlap)
        operator = Schedules(world.store)
        async with world.process(declare, silent=silent), world.process(declare, silent=silent):
            await anyio.sleep(20 * MINUTE)  # 02:06
            await operator.fire("hourly")
            await operator.fire("hourly")  # it is asked for already, unless it was noticed at once
            await anyio.sleep(61)
            assert 2 <= len(world.fired) <= 3
            count = len(world.fired)
            asked = world.fired[1][1]
            assert asked.scheduled.minute == 6
            assert asked.at == asked.scheduled
            await operator.pause("hourly")
            await anyio.sleep(HOUR)
            await operator.fire("hourly")
            await anyio.sleep(HOUR)
            assert len(world.fired) == count + 1, "also during a pause, and nothing else"
            await operator.resume("hourly")
            await anyio.sleep(HOUR)
        assert hours(tuple(world.times[count + 1 :])) == [5]
        assert not [o for _, o in world.fired if o.missed or o.abandoned]
        with pytest.raises(ScheduleNotFound):
            await operator.fire("other")

    run(main)


def test_what_is_due_is_not_swallowed_by_what_somebody_asks_for() -> None:
    async def main() -> None:
        world, starts = World(), list[Occurrence]()

        def slow(schedules: Schedules, _: object) -> None:
            async def note(occurrence: Occurrence) -> None:
                starts.append(occurrence)
                await anyio.sleep(90 * MINUTE)

            hourly(schedules, note, overlap="wait", misfire="all")

        async with world.process(slow):
            await anyio.sleep(80 * MINUTE)  # 03:06: the run of 02:00 goes on until 03:30, and 03:00 waits
            await Schedules(world.store).fire("hourly")
            await anyio.sleep(4 * HOUR)
        assert [f"{o.scheduled:%H:%M}" for o in starts] == ["02:00", "03:00", "03:06", "04:00"]
        assert not [o for o in starts if o.missed]

    run(main)
