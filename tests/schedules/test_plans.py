from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq.errors import InvalidInterval, InvalidOption, MissingExtra
from intervalq.schedules._choice import choose
from intervalq.schedules._times.plan import Plan, plan_of

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")  # the last one moves by half an hour
SECOND, MINUTE, DAY = 1_000_000, 60_000_000, 86_400_000_000
YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def occurrences(plan: Plan, start: datetime, end: datetime) -> list[datetime]:
    found, at = [], plan.after(micros(start))
    while at is not None and at <= micros(end):
        found.append(plan.time(at))
        at = plan.after(at)
    return found


def shown(plan: Plan, start: datetime, end: datetime) -> list[str]:
    return [f"{time:%d %H:%M %z}" for time in occurrences(plan, start, end)]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    "cron",
    ["30 2 * * *", "0 3 * * mon-fri", "15 */2 * * *", "5,35 1-3 * * sun", "0 12 13 * fri", "0 4 L * *"],
)
def test_a_year_is_that_of_the_parser(cron: str, zone: str) -> None:
    start, end = YEAR.astimezone(ZoneInfo(zone)), (YEAR + timedelta(365)).astimezone(ZoneInfo(zone))
    theirs = []
    for time in CronSim(cron, start):
        if time > end:
            break
        theirs.append(time.astimezone(UTC))
    ours = [time.astimezone(UTC) for time in occurrences(Plan.of(cron=cron, timezone=zone), start, end)]
    assert len(ours) > 1
    assert ours == theirs


def test_daylight_saving() -> None:
    """A skipped time fires once at the end of the gap, one that comes twice fires once; `*` counts hours."""
    spring = datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 3, 29, 3, tzinfo=UTC)
    autumn = datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 3, tzinfo=UTC)
    daily = Plan.of(cron="30 2 * * *", timezone="Europe/Berlin")
    assert shown(daily, *spring) == ["29 03:00 +0200"]
    assert shown(daily, *autumn) == ["25 02:30 +0200"]
    hourly = Plan.of(cron="@hourly", timezone="Europe/Berlin")
    assert shown(hourly, *spring) == ["29 01:00 +0100", "29 03:00 +0200", "29 04:00 +0200", "29 05:00 +0200"]
    assert shown(hourly, *autumn)[1:5] == [
        *("25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100", "25 04:00 +0100")
    ]


@pytest.mark.parametrize("zone", ZONES)
def test_whatever_the_instant_the_next_one_is_later_and_none_is_left_out(zone: str) -> None:
    """Around both changes, minute by minute: the next occurrence is the first of the list that is later."""
    changes = (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 11, 1, 5, tzinfo=UTC))
    for cron in ("30 2 * * *", "15,45 1,2 * * *"):
        plan = Plan.of(cron=cron, timezone=zone)
        for change in (*changes, datetime(2026, 4, 4, 15, tzinfo=UTC), datetime(2026, 10, 3, 15, tzinfo=UTC)):
            start = change - timedelta(hours=3)
            listed = [micros(time) for time in occurrences(plan, start, change + timedelta(2))]
            for minute in range(0, 8 * 60, 7):
                at = micros(start) + minute * MINUTE + 1
                assert plan.after(at) == next(time for time in listed if time > at)


def test_an_interval_counts_from_1970_or_from_its_start() -> None:
    assert Plan.of(every="5m").after(micros(YEAR)) == micros(YEAR) + 5 * MINUTE
    assert Plan.of(every="5m").after(micros(YEAR) + 1) == micros(YEAR) + 5 * MINUTE
    start = datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    bounded = Plan.of(every="5m", start=start, end=start + timedelta(minutes=10))
    assert shown(bounded, YEAR, YEAR + timedelta(1)) == [f"01 00:{at} +0000" for at in ("02", "07", "12")]
    naive = Plan.of(cron="0 3 * * *", timezone="Europe/Berlin", start=datetime(2026, 1, 2, 3))  # noqa: DTZ001 - the point
    assert shown(naive, YEAR, YEAR + timedelta(2)) == ["02 03:00 +0100"]


def test_a_window_may_span_midnight_and_its_end_does_not_belong_to_it() -> None:
    night = Plan.of(cron="0 */4 * * *", timezone="Europe/Berlin", window="20:00-04:00")
    assert shown(night, YEAR, YEAR + timedelta(1)) == ["01 20:00 +0100", "02 00:00 +0100"]
    seconds = Plan.of(every="1s", window="06:00-06:01")
    found = occurrences(seconds, YEAR, YEAR + timedelta(1))
    assert len(found) == 60
    assert f"{found[0]:%H:%M:%S} {found[-1]:%H:%M:%S}" == "06:00:00 06:00:59"


@settings(max_examples=40)
@given(
    st.sampled_from([{"every": "7s"}, {"cron": "*/5 * * * *"}, {"cron": "30 2 * * *"}, {"every": "5h"}]),
    st.sampled_from([None, "22:00-06:00", "03:00-03:02"]),
    st.integers(0, 300 * DAY),
    st.integers(0, 2 * DAY),
    st.integers(1, 30),
)
def test_the_latest_are_the_last_of_the_list(
    times: dict[str, str], window: str | None, begin: int, length: int, most: int
) -> None:
    plan = Plan.of(**times, window=window, timezone="America/New_York")
    after = micros(YEAR) + begin
    until = after + (length // 1_000 if times == {"every": "7s"} else length)
    listed, at = [], plan.after(after)
    while at is not None and at <= until:
        listed.append(at)
        at = plan.after(at)
    assert plan.latest(after, until, most) == listed[-most:]


@pytest.mark.parametrize(
    ("times", "window", "last"),
    [
        ({"every": "1ms"}, None, "12:00:00"),
        ({"every": "1ms"}, "05:00-06:00", "05:59:59.999"),
        ({"every": "1m"}, "05:00-05:05", "05:04:00"),
        ({"cron": "*/5 * * * *"}, "22:00-06:00", "05:55:00"),
    ],
)
def test_the_latest_of_a_year_are_found_without_listing_it(
    times: dict[str, str], window: str | None, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, calls, after = Plan.of(**times, window=window), [], Plan.after

    def counted(self: Plan, instant: int) -> int | None:
        calls.append(instant)
        return after(self, instant)

    monkeypatch.setattr(Plan, "after", counted)
    noon = micros(YEAR) + DAY // 2
    for most in (2, 1_000):
        calls.clear()
        found = plan.latest(noon - 365 * DAY, noon, most)
        assert len(found) == most
        assert found == sorted({*found})
        assert f"{plan.time(found[-1]):%H:%M:%S.%f}".startswith(last)
        assert len(calls) < 7 * most + 150


def test_jitter_is_the_same_everywhere_and_ends_before_the_next_occurrence() -> None:
    plan = Plan.of(every="1m", jitter="10m")
    dues = [plan.due("s", at * MINUTE) for at in range(1_000)]
    assert all(one < other for one, other in pairwise(dues))
    shifts = [due - at * MINUTE for at, due in enumerate(dues)]
    assert all(0 <= shift < MINUTE for shift in shifts)
    assert 25 * SECOND < sum(shifts) / len(shifts) < 35 * SECOND
    assert dues == [plan_of(plan.to_text()).due("s", at * MINUTE) for at in range(1_000)]
    assert dues != [plan.due("t", at * MINUTE) for at in range(1_000)]
    small = Plan.of(every="1h", jitter="1s")
    assert all(0 <= small.due("s", at * 60 * MINUTE) - at * 60 * MINUTE < SECOND for at in range(100))


def test_the_one_to_take_is_the_last_that_is_due_or_with_all_the_first() -> None:
    plan, now = Plan.of(every="1h", jitter="30m"), micros(YEAR) + 90 * MINUTE
    for misfire, first in (("skip", False), ("once", False), ("all", True)):
        choice = choose("s", plan, micros(YEAR) - 5 * DAY, now, misfire)  # type: ignore[arg-type] # of a list
        assert choice is not None
        assert choice.due == plan.due("s", choice.scheduled) <= now
        following = plan.after(choice.scheduled)
        assert following is not None
        assert (plan.due("s", following) > now) is not first
        assert (choice.scheduled == plan.after(micros(YEAR) - 5 * DAY)) is first
    early = choose("s", plan, micros(YEAR) + 60 * MINUTE, micros(YEAR) + 119 * MINUTE, "skip")
    assert early is not None
    assert early.due >= early.scheduled == micros(YEAR) + 120 * MINUTE
    ended = Plan.of(every="1h", start=YEAR, end=YEAR)
    assert choose("s", ended, micros(YEAR), now, "all") is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cron": "@reboot"}, "@reboot has no meaning"),
        ({"cron": "@never"}, "@hourly, @daily"),
        (
            {"cron": "0 30 2 * * *"},
            r"six fields.*every\('10s'\).*'30 2 \* \* \*', at 20\d\d(-\d\d){2} 02:30 UTC(, [^,]*){9} \.\.\.$",
        ),
        ({"cron": "99 0 30 2 * *"}, r"six fields.*every\('10s'\)$"),
        ({"cron": "0 0 * *"}, "has 4 fields"),
        ({"cron": ""}, "has 0 fields"),
        ({"cron": "60 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": 5}, "5 is not a cron"),
        ({"cron": "0 12 * * *", "window": "22:00-06:00"}, "would never occur"),
        ({"every": "1h", "start": YEAR, "end": YEAR - timedelta(1)}, "would never occur"),
        ({"every": "1h", "window": "22:00"}, "22:00-06:00"),
        ({"every": "1h", "window": "24:00-06:00"}, "22:00-06:00"),
        ({"every": "1h", "window": "06:00-06:00"}, "22:00-06:00"),
        ({"every": "1h", "timezone": "Mars/Olympus"}, "Europe/Berlin"),
        ({"every": "1h", "timezone": None}, "Europe/Berlin"),
        ({"every": "1h", "timezone": []}, "Europe/Berlin"),
        ({"every": "1h", "start": "2026"}, "datetime"),
        ({"every": "1h", "start": datetime.max, "timezone": "America/New_York"}, "2 to 9998"),  # noqa: DTZ901 - the point
        ({"every": "1h", "end": datetime.min, "timezone": "Asia/Tokyo"}, "2 to 9998"),  # noqa: DTZ901 - the point
        ({"every": "1h", "start": datetime(9_998, 12, 31, 23, tzinfo=UTC)}, "would never occur"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(options: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Plan.of(**options)


def test_durations_are_checked() -> None:
    for options in ({"every": 0}, {"every": "5/h"}, {"every": "2000d"}, {"every": "1h", "jitter": -1}):
        with pytest.raises(InvalidInterval):
            Plan.of(**options)


def test_without_the_parser_only_cron_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(MissingExtra, match=r"intervalq\[schedules\]"):
        Plan.of(cron="0 3 * * *")
    assert str(Plan.of(every="90s")) == "every 90s"


def test_a_plan_is_written_and_read() -> None:
    plan = Plan.of(cron="0  3 * * MON", timezone="Europe/Berlin", window="1:00-6:00", jitter=5, end=YEAR)
    assert plan_of(plan.to_text()) == plan
    assert str(plan) == (
        "cron 0 3 * * MON, Europe/Berlin, window 01:00-06:00, jitter 5s, to 2026-01-01T01:00:00+01:00"
    )
    assert [Plan.of(cron=name).cron for name in ("@Daily", "@weekly")] == ["0 0 * * *", "0 0 * * 0"]
    for wrong in (
        "{}",
        "[]",
        "x",
        '{"interval":"1"}',
        '{"interval":1}',
        '{"cron":"x"}',
        '{"interval":5000,"a":1}',
    ):
        with pytest.raises((ValueError, TypeError)):
            plan_of(wrong)
