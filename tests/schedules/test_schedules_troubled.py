from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import anyio
import pytest

from intervalq.errors import InvalidOption
from intervalq.schedules import Occurrence, Schedules
from intervalq.schedules._records import Records
from intervalq.schedules._times.plan import Plan
from intervalq.schedules.rules import declare
from intervalq.testing.virtual import virtual_micros
from schedules.world import BEGIN, HOUR, MINUTE, World, hourly, run


def test_a_run_whose_process_died_is_reported_and_the_next_one_begins_after_its_lease() -> None:
    async def main() -> None:
        world = World()

        def declare(schedules: Schedules, note: Callable[..., object]) -> None:
            schedules.every("40s", name="s", overlap="wait")(anyio.sleep_forever)

        async with world.process(declare) as line:
            await anyio.sleep(MINUTE + 1)
            line.is_cut = True  # it can't give its lease back
        async with world.process(
            lambda schedules, note: schedules.every("40s", name="s", overlap="wait")(note)
        ):
            await anyio.sleep(2 * MINUTE)
        (_, first), (_, second), *_ = world.fired
        assert first.abandoned not in first.missed
        assert (first.fence, second.fence) == (2, 3)
        assert first.abandoned == first.scheduled - timedelta(seconds=40 * (1 + len(first.missed)))
        assert first.missed
        assert second.abandoned is None

    run(main)


def test_a_run_that_is_cancelled_gives_its_lease_back_at_once_and_is_reported() -> None:
    async def main() -> None:
        world = World()
        async with world.process(lambda schedules, _: hourly(schedules, anyio.sleep_forever)):
            await anyio.sleep(HOUR - 5)
        info = await Schedules(world.store).inspect("hourly")
        assert not info.running
        async with world.process(hourly):
            await anyio.sleep(HOUR)
        assert [o.abandoned is not None for _, o in world.fired] == [True]

    run(main)


def test_a_run_that_loses_its_lease_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """The store can't be reached for longer than the lease: another process may run it."""

    async def main() -> None:
        world, ended = World(), []

        def declare(schedules: Schedules, _: object) -> None:
            async def long() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.append(virtual_micros())

            hourly(schedules, long)

        async with world.process(declare) as line:
            await anyio.sleep(HOUR)
            assert (await Schedules(world.store).inspect("hourly")).running
            line.is_cut = True
            cut = virtual_micros()
            await anyio.sleep(10 * MINUTE)
            assert len(ended) == 1
            assert 30_000_000 < ended[0] - cut <= 80_000_000

    run(main)
    assert "lost its lease" in caplog.text


def test_a_lost_answer_neither_loses_an_occurrence_nor_fires_it_twice() -> None:
    async def main() -> None:
        world = World()
        async with world.process(hourly) as line, world.process(hourly):
            await anyio.sleep(MINUTE)
            line.lost_answers = 1_000
            await anyio.sleep(3 * HOUR)
            line.lost_answers = 0
            await anyio.sleep(2 * HOUR)
        assert world.hours == [2, 3, 4, 5, 6]

    run(main)


def test_while_the_store_is_away_nothing_fires_and_then_it_goes_on() -> None:
    async def main() -> None:
        world = World()
        async with world.process(hourly) as line:
            await anyio.sleep(HOUR)
            line.is_cut = True
            await anyio.sleep(2 * HOUR)
            line.is_cut = False
            await anyio.sleep(HOUR)
        assert world.hours == [2, 5]
        assert len(world.fired[1][1].missed) == 2
        assert sum(line.calls.values()) < 3_000

    run(main)


def test_a_failing_function_is_logged_and_the_schedule_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world, calls = World(), []

        def declare(schedules: Schedules, _: object) -> None:
            async def fails(occurrence: Occurrence) -> None:
                calls.append(occurrence)
                raise ValueError("planned")

            hourly(schedules, fails)
            hourly_too = schedules.every("1h", name="other", overlap="allow")
            hourly_too(fails)

        async with world.process(declare):
            await anyio.sleep(2 * HOUR)
        assert len(calls) == 4
        assert [o.abandoned for o in calls] == [None] * 4

    with caplog.at_level(logging.ERROR, "intervalq"):
        run(main)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["planned"] * 4


def test_a_time_zone_that_is_missing_here_stops_that_schedule_alone_until_it_is_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World()
        records = Records(world.store, world.store.url)

        async def change(plan: Plan) -> None:
            await records.look()
            await records.change("hourly", lambda record, now: declare(record, plan.to_text(), now))

        def both(schedules: Schedules, note: Callable[..., object]) -> None:
            hourly(schedules, note)
            schedules.every("1h", name="other", start=BEGIN)(note)

        async with world.process(both):
            await anyio.sleep(HOUR)
            await change(Plan(interval=HOUR * 1_000_000, timezone="Mars/Olympus"))
            await anyio.sleep(HOUR)
            with pytest.raises(InvalidOption, match=r"schedule 'hourly': .*tzdata"):
                await Schedules(world.store).inspect_all()
            await change(Plan(interval=HOUR * 1_000_000))
            await anyio.sleep(HOUR)
        names: dict[int, list[str]] = {hour: [] for hour in (2, 3, 4)}
        for hour, (_, occurrence) in zip(world.hours, world.fired, strict=True):
            names[hour].append(occurrence.name)
        assert [sorted(each) for each in names.values()] == [
            ["hourly", "other"],
            ["other"],
            ["hourly", "other"],
        ]

    run(main)
    assert "schedule 'hourly' doesn't run in this process until it is changed: " in caplog.text


def test_what_a_run_that_died_had_to_report_is_reported_again() -> None:
    async def main() -> None:
        world = World()
        once = partial(hourly, misfire="once")
        async with world.process(once):
            await anyio.sleep(HOUR)  # 2 o'clock
        await anyio.sleep(3 * HOUR)  # 3, 4 and 5 o'clock
        async with world.process(lambda schedules, _: once(schedules, anyio.sleep_forever)) as line:
            await anyio.sleep(1)  # takes 5 o'clock
            line.is_cut = True
        await anyio.sleep(HOUR)
        async with world.process(once):
            await anyio.sleep(1)
        _, last = world.fired[-1]
        assert last.abandoned is not None
        assert [time.hour for time in (last.scheduled, last.abandoned, *last.missed)] == [6, 5, 3, 4]

    run(main)


@pytest.mark.parametrize("minutes", [12, -12])
def test_one_schedule_that_learns_of_a_step_of_the_clock_tells_the_others(minutes: int) -> None:
    """At 02:46:40 the store's clock is set. The hourly one asks it again only because the other does."""

    async def main() -> None:
        world, starts = World(), []

        def declare(schedules: Schedules, _: object) -> None:
            async def note() -> None:
                starts.append(world.stepped + virtual_micros())

            hourly(schedules, note, grace="5m")
            schedules.every("1m", name="often")(anyio.lowlevel.checkpoint)

        async with world.process(declare):
            await anyio.sleep(HOUR)
            world.stepped = minutes * 60_000_000
            await anyio.sleep(HOUR)
        hours = [(start / 1e6 - BEGIN.timestamp()) / HOUR for start in starts]
        assert [round(hour, 3) for hour in hours] == [2, 3]

    run(main)
