"""Queues with hours: outside of their window of the day no job begins, and nobody asks the store."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import anyio.lowlevel
import pytest

from intervalq import IntervalQueue
from intervalq._hours.window import Hours, is_open
from intervalq._shard.store_time import StoreTime
from intervalq.errors import InvalidOption, SlotTimeout
from intervalq.rules import Answer, Command
from intervalq.testing import virtual_time
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore

MINUTE, DAY = 60, 86_400


class Watched(MemoryStore):
    """Counts the requests in each hour of the day."""

    def __init__(self) -> None:
        super().__init__(clock=virtual_micros)
        self.calls: Counter[int] = Counter()

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        self.calls[clock().hour] += 1
        return await super().apply(queue, command, now)


def clock() -> datetime:
    return datetime.fromtimestamp(virtual_micros() / 1e6, UTC)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"interval": "10s"}, [None]),
        ({"interval": "10s", "burst": 5}, [None]),
        ({"interval": "10s", "max_running": 2}, [None]),
        ({"interval": "10s", "lookahead": None}, [None]),
        ({"limits": ["30/5m"]}, [None]),
        ({"interval": "10s", "each": "shared"}, ["a", "b"]),
        ({"interval": "10s", "each": [0.066667, "50/15m"]}, ["a", "b"]),
    ],
)
def test_jobs_begin_in_the_window_and_nobody_asks_outside_of_it(
    options: dict[str, Any], keys: list[str | None]
) -> None:
    """Two processes have work for more than one of the windows of half an hour. Time begins at 01:46:40."""
    starts = list[datetime]()

    async def main() -> None:
        store, jobs = Watched(), 260
        window, zone = "04:00-04:30", "Europe/Berlin"  # 02:00 UTC
        processes = [
            IntervalQueue("q", store=store, window=window, timezone=zone, **options) for _ in range(2)
        ]

        async def one(number: int) -> None:
            queue, key = processes[number % 2], keys[number // 2 % len(keys)]
            async with (queue if key is None else queue[key]).slot():
                starts.append(clock())
                await anyio.sleep(12)

        async with anyio.create_task_group() as group:
            for number in range(jobs):
                group.start_soon(one, number)
        assert len(starts) == jobs
        assert sum(count for hour, count in store.calls.items() if hour != 2) <= 60
        for queue in processes:
            await queue.close()

    virtual_time(main, horizon=1e8)
    assert {start.hour for start in starts} == {2}
    assert max(start.minute for start in starts) <= 29
    days = Counter(start.date() for start in starts)
    assert 2 <= len(days) <= 3, "it goes on the next day, and not sooner"
    first = [min(start for start in starts if start.date() == day) for day in days]
    assert max(start.minute * 60 + start.second for start in first) == 0, "as soon as it opens"


def test_room_for_another_job_after_the_end_is_for_the_next_day() -> None:
    """A job that runs beyond the end of the window keeps another one waiting: that begins in the next one."""
    starts = list[datetime]()

    async def main() -> None:
        store = Watched()
        processes = [
            IntervalQueue("q", store=store, interval="1s", burst=2, max_running=1, window="01:00-01:47")
            for _ in range(2)
        ]

        async def one(queue: IntervalQueue) -> None:
            async with queue.slot():
                starts.append(clock())
                await anyio.sleep(30)

        async with anyio.create_task_group() as group:
            for queue in processes:
                group.start_soon(one, queue)
        for queue in processes:
            await queue.close()

    virtual_time(main, horizon=1e8)  # time begins at 01:46:40
    first, second = starts
    assert first.hour * 60 + first.minute == 106
    assert second.date() == first.date() + timedelta(days=1)
    assert (second.hour, second.minute, second.second) == (1, 0, 0)


def test_a_job_that_can_not_wait_so_long_is_refused_at_once() -> None:
    async def main() -> None:
        queue = IntervalQueue("q", interval="10s", store=Watched(), window="02:00-02:30", timeout="5m")
        with pytest.raises(SlotTimeout):  # at 01:51:40
            await queue.run(anyio.lowlevel.checkpoint)
        await anyio.sleep(5 * MINUTE)
        await queue.run(anyio.lowlevel.checkpoint)
        assert clock().time().replace(microsecond=0).isoformat() == "02:00:00"
        await anyio.sleep(30 * MINUTE)
        before = clock()
        assert (await queue.inspect()).next_slot == datetime(2001, 9, 10, 2, tzinfo=UTC).timestamp()
        assert await queue.quote() == pytest.approx(DAY - 30 * MINUTE, rel=0.01)
        with pytest.raises(SlotTimeout) as refused:
            await queue.run(anyio.lowlevel.checkpoint)
        assert refused.value.retry_after == pytest.approx(DAY - 30 * MINUTE, rel=0.01)
        with pytest.raises(SlotTimeout):
            async with queue.try_slot():
                pass
        assert clock() - before < timedelta(seconds=1)
        await queue.close()

    virtual_time(main, horizon=1e8)


@pytest.mark.parametrize("window", ["22:00-06:00", "02:15-02:45", "00:00-24:00", "02:30-02:00"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
def test_the_hours_are_those_of_the_clock_on_the_wall_over_both_changes(window: str, zone: str) -> None:
    hours, place = Hours(window, zone), ZoneInfo(zone)
    changes = {"Europe/Berlin": [(3, 28), (10, 31)], "Australia/Lord_Howe": [(4, 4), (10, 3)]}
    for month, day in changes[zone]:
        begin = datetime(2027, month, day, tzinfo=place).timestamp() - DAY
        minutes = [round(begin * 1e6) + number * 60_000_000 for number in range(3 * 24 * 60)]
        opening = end = minutes[-1]
        for at in reversed(minutes):
            opening = at if is_open(window, at, place) else opening
            if opening != end and (at // 60_000_000 % 7 == 0 or opening == at):
                assert hours.opening(at, at + 1) == opening
            if opening == at and not is_open(window, at + 60_000_000, place):
                assert hours.opening(at + 59_000_000, at + 60_000_000) > at + 60_000_000


def test_no_slot_is_asked_for_that_would_come_after_the_end() -> None:
    """Slots are granted up to 50 ms before they come."""
    time = StoreTime(hours=Hours("02:00-02:30", "UTC"))
    assert time.shut_until(None, 0) == 0, "the store's clock has to be read first"
    end = round(datetime(2027, 3, 1, 2, 30, tzinfo=UTC).timestamp() * 1e6)
    time.clock.learn(0, 200, end - 100_000)
    assert time.shut_until(None, 40_000) is None
    opens = time.shut_until(None, 60_000)
    assert opens is not None
    assert opens == pytest.approx((DAY - 30 * MINUTE) * 1e6, rel=0.001), "or a little sooner: clocks drift"


def test_wrong_hours_are_refused() -> None:
    for options in (
        {"window": "22-6"},
        {"window": "22:00-22:00"},
        {"window": "22:00-06:00", "timezone": "Moon"},
    ):
        with pytest.raises(InvalidOption):
            IntervalQueue("q", rate="1/s", **options)  # type: ignore[arg-type] # texts
