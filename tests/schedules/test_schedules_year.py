"""A year in virtual time, with both changes of daylight saving in three zones, against other lists."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import anyio
from cronsim import CronSim

from intervalq.schedules import Occurrence
from intervalq.schedules.sync import Schedules as BlockingSchedules
from intervalq.testing import virtual_clock
from schedules.world import DAY, World, run

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")  # the last one moves by half an hour
START = datetime.fromtimestamp(1e9, UTC)
END = START + timedelta(365)
DAILY, SUNDAYS = "30 2 * * *", "30 2 * * sun"
"""This time is skipped once a year, and comes twice once a year, in all of the zones: on Sundays."""


def declare(schedules: Any, note: Callable[[Occurrence], object], cron: str = DAILY) -> None:
    """For each zone a cron expression, and an interval in a window of the day."""
    for zone in ZONES:
        options = {"timezone": zone, "overlap": "allow"}
        schedules.cron(cron, name=f"cron.{place(zone)}", **options)(note)
        schedules.every("25h", window="22:00-04:00", name=f"every.{place(zone)}", **options)(note)


def place(zone: str) -> str:
    return zone.partition("/")[2]


def expected(cron: str) -> Iterator[tuple[str, datetime]]:
    """Every occurrence: the parser's own list; and the hours of the year that are due, one by one."""
    for zone in map(ZoneInfo, ZONES):
        for time in CronSim(cron, START.astimezone(zone)):
            if time > END:
                break
            yield f"cron.{place(zone.key)}", time.astimezone(UTC)
        for hour in range(1 + int(START.timestamp()) // 3_600, 1 + int(END.timestamp()) // 3_600):
            time = datetime.fromtimestamp(hour * 3_600, zone)
            if hour % 25 == 0 and not 4 <= time.hour < 22:
                yield f"every.{place(zone.key)}", time.astimezone(UTC)


def test_two_processes_fire_each_occurrence_of_a_year_once() -> None:
    """A process asks the store for it at most once, and the one that fires it notes that it has begun."""

    async def year() -> None:
        world = World()
        async with world.process(declare), world.process(declare):
            await anyio.sleep(365 * DAY)
        fired = Counter(
            (occurrence.name, occurrence.scheduled.astimezone(UTC)) for _, occurrence in world.fired
        )
        assert fired == Counter(expected(DAILY))
        assert len(fired) > 3 * (365 + 80)
        mine = Counter(number for number, _ in world.fired)
        for number, line in enumerate(world.lines):
            most = len(fired) + mine[number] + 4 * len(ZONES)  # and one or two to declare each
            assert line.calls["swap"] <= most
        assert not [occurrence for _, occurrence in world.fired if occurrence.missed]

    run(year)


def test_blocking_code_has_the_same_year() -> None:
    fired, all_ = list[tuple[str, datetime]](), Counter(expected(SUNDAYS))
    done: Future[None] = Future()

    def note(occurrence: Occurrence) -> None:
        fired.append((occurrence.name, occurrence.scheduled.astimezone(UTC)))
        if len(fired) == len(all_):
            done.set_result(None)

    def blocking() -> None:
        schedules = BlockingSchedules("redis://127.0.0.1:9")  # nobody listens there
        declare(schedules, note, SUNDAYS)
        with suppress(CancelledError):  # when the clock ends
            schedules.run()

    with virtual_clock():
        thread = threading.Thread(target=blocking)
        thread.start()
        done.result()
    thread.join()
    assert Counter(fired) == all_
