from __future__ import annotations

import math
import pickle
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.material import anything, fuzz, mutated, numbers, odd_text
from intervalq import IntervalQueue
from intervalq._spec import parse
from intervalq._timing.retry_after import requested_wait
from intervalq.errors import ConfigMismatch, InvalidInterval, InvalidName, InvalidOption
from intervalq.sync import IntervalQueue as BlockingQueue
from intervalq_stores.memory.queues import MemoryStore

UNITS = ["us", "ms", "s", "m", "h", "d", ""]
TEN_MEGABYTES = "9" * 10_000_000


def durations() -> st.SearchStrategy[str]:
    number = st.integers(0, 10**15).map(str) | st.floats(0, 1e9).map(lambda value: f"{value:.9f}")
    return st.builds("{}{}{}".format, number, st.sampled_from(["", " "]), st.sampled_from(UNITS))


def rates() -> st.SearchStrategy[str]:
    many = st.sampled_from(["", "1", "15", "999999999"])
    return st.builds("{}/{}{}".format, st.integers(0, 10**15), many, st.sampled_from(UNITS))


def names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


def is_fit_to_print(error: Exception) -> bool:
    return len(str(error)) < 600 and str(error).isascii() and str(error).isprintable()


@fuzz(250)
@example(value=math.nan)
@example(value=math.inf)
@example(value=10**5000)
@example(value=TEN_MEGABYTES)
@given(mutated(durations()) | anything())
def test_a_duration_is_read_or_refused(value: Any) -> None:
    for understand in (parse.duration, parse.interval):
        try:
            micros = understand(value)
        except InvalidInterval as error:
            assert is_fit_to_print(error)
        else:
            assert 0 <= micros <= parse.YEAR
            assert parse.duration(parse.text(micros)) == micros


@fuzz(250)
@example(value=TEN_MEGABYTES)
@given(mutated(rates()) | anything())
def test_a_rate_is_read_or_refused(value: Any) -> None:
    try:
        micros = parse.rate(value)
    except InvalidInterval as error:
        assert is_fit_to_print(error)
    else:
        assert 1 <= micros <= parse.YEAR
        if micros <= 999_999_999:
            assert parse.rate(f"1/{micros}us") == micros


@fuzz(250)
@example(value=TEN_MEGABYTES)
@example(value=10**5000)
@given(mutated(names()) | anything())
def test_a_name_is_a_name_or_refused(value: Any) -> None:
    queue = IntervalQueue("q", interval=1)
    for take in (parse.name, IntervalQueue, BlockingQueue):
        try:
            taken = take(value)
        except InvalidName as error:
            assert is_fit_to_print(error)
        else:
            assert value.isascii()
            assert value in (taken, getattr(taken, "name", None))
    try:
        keyed = queue[value]
    except InvalidName as error:
        assert is_fit_to_print(error)
    else:
        assert re.fullmatch("q:[A-Za-z0-9._-]{1,128}", keyed._options.record)


def options() -> st.SearchStrategy[dict[str, Any]]:
    whole = st.integers(1, 10) | numbers() | anything()
    time = mutated(durations()) | st.integers(1, 100) | anything()
    return st.fixed_dictionaries(
        {},
        optional={
            "interval": time,
            "rate": mutated(rates()) | st.none() | anything(),
            "burst": whole,
            "lookahead": whole,
            "tolerance": time,
            "max_running": whole,
            "timeout": time,
            "retries": whole,
            "backoff": time,
        },
    )


@fuzz(250)
@example(given_options={"interval": 1, "burst": 10**5000})
@example(given_options={"interval": 10**5000, "rate": "1/s"})
@given(given_options=options())
def test_options_are_taken_or_refused_and_travel(given_options: dict[str, Any]) -> None:
    for kind in (IntervalQueue, BlockingQueue):
        try:
            queue: Any = kind("q", **given_options)
        except (InvalidInterval, InvalidOption) as error:
            assert is_fit_to_print(error)
            assert str(pickle.loads(pickle.dumps(error))) == str(error)
        else:
            again = pickle.loads(pickle.dumps(queue))
            assert repr(again) == repr(queue)
            if kind is IntervalQueue:
                assert again._options == queue._options
                settings = queue._options.settings
                assert settings is None or 0 < settings.interval * settings.burst <= parse.YEAR


@fuzz(100)
@given(value=mutated(durations()) | anything())
def test_a_change_of_a_queue_is_taken_or_refused(value: Any) -> None:
    async def change() -> None:
        async with IntervalQueue("fuzzed", interval=1, store=MemoryStore(clock=lambda: 0)) as queue:
            for asked in (
                queue.cool_down(value),
                queue.configure(interval=value),
                queue.configure(burst=value),
            ):
                try:
                    await asked
                except (InvalidInterval, InvalidOption, ConfigMismatch) as error:
                    assert is_fit_to_print(error)

    anyio.run(change)


def _response(value: object, status: object) -> Exception:
    error = Exception()
    error.response = SimpleNamespace(status_code=status, headers={"Retry-After": value})  # type: ignore[attr-defined]
    return error


def dates() -> st.SearchStrategy[str]:
    return st.datetimes(min_value=datetime(1900, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
        lambda date: format_datetime(date, usegmt=True)
    )


@fuzz(250)
@example(value="Mon, 01 Jan 0001 00:00:00 +2359", status=429)
@example(value=TEN_MEGABYTES, status=429)
@given(
    value=mutated(dates()) | mutated(st.integers(0, 10**6).map(str)) | anything(),
    status=st.sampled_from([429, 503, 200, None, "429"]),
)
def test_a_retry_after_is_a_time_or_nothing(value: Any, status: Any) -> None:
    seconds = requested_wait(_response(value, status))
    assert seconds is None or 0 < seconds <= 86_400
    assert seconds is None or (status in (429, 503) and math.isfinite(seconds))


@pytest.mark.parametrize("seconds", [1, 59.5, 86_400])
def test_a_retry_after_that_is_right_is_heeded(seconds: float) -> None:
    for value in (seconds, str(seconds), f" {seconds} "):
        assert requested_wait(_response(value, 429)) == seconds


@pytest.mark.parametrize("value", ["inf", "nan", "1e999", math.inf, math.nan, 0, -1, "0", "", b"1"])
def test_a_retry_after_that_is_no_time_is_not_heeded(value: object) -> None:
    assert requested_wait(_response(value, 429)) is None


@fuzz(200)
@given(text=odd_text())
def test_what_a_message_quotes_can_be_printed(text: str) -> None:
    for make in (InvalidName, lambda value: InvalidInterval(value, "is not an interval")):
        assert is_fit_to_print(make(text))
