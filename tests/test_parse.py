"""Names, durations and rates: which values are accepted, which are refused, and that nothing else happens."""

from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq import IntervalQueue
from intervalq._spec import parse
from intervalq._timing import rates
from intervalq.errors import IntervalqError, InvalidInterval, InvalidName, InvalidOption, UnknownStore
from intervalq.store import open_store, shown_url


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        (1, 1_000_000),
        (0.72, 720_000),
        (0.1, 100_000),
        (1e-6, 1),
        (1 / 3, 333_334),  # rounded up, so that no rate is ever exceeded
        (timedelta(minutes=2), 120_000_000),
        ("200ms", 200_000),
        ("1.5s", 1_500_000),
        (" 2m ", 120_000_000),
        ("1h", 3_600_000_000),
        ("1d", 86_400_000_000),
        ("15us", 15),
        (".5", 500_000),
        ("366d", 366 * 86_400_000_000),
    ],
)
def test_durations(value: object, micros: int) -> None:
    assert parse.interval(value) == micros


@pytest.mark.parametrize(
    "value",
    [0, -1, -0.0, math.nan, math.inf, -math.inf, True, None, "", "1 year", "1e3", "-5s", "٣s", "1_000", b"1s",
     [], "0ms", 366 * 86_400 + 1, "367d", timedelta(0), timedelta(days=-1), 10**400, "9" * 40],
)  # fmt: skip
def test_what_is_no_interval_is_refused(value: object) -> None:
    with pytest.raises(InvalidInterval):
        parse.interval(value)


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        ("10/s", 100_000),
        ("5000/h", 720_000),
        ("100/15m", 9_000_000),
        ("300/s", 3_334),
        ("0.5/s", 2_000_000),
        ("1/ms", 1_000),
    ],
)
def test_rates(value: str, micros: int) -> None:
    assert parse.rate(value) == micros


@pytest.mark.parametrize("value", ["0/s", "10", "10/", "/s", "10/0s", "-1/s", "10/year", "1/400d", 10, None])
def test_what_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(InvalidInterval):
        parse.rate(value)


class Other(float):
    """A number with another text, as NumPy has."""

    def __repr__(self) -> str:
        return f"other({float(self)})"


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        ("10/sec", 100_000),
        ("100/minute", 600_000),
        ("5 per hour", 720_000_000),
        ("30_000/min", 2_000),
        ("30,000/min", 2_000),
        ("1,000,000 per day", 86_400),
        ("1_000_000 per day", 86_400),
        ("10 per 2 minutes", 12_000_000),
        ("2/15m", 450_000_000),
        (" 10 / second ", 100_000),
        ("1.5per second", 666_667),
        ("10", 100_000),
        (10, 100_000),
        (0.5, 2_000_000),
        (1e-5, 100_000_000_000),
        (1e6, 1),
        (Other(0.5), 2_000_000),
    ],
)
def test_rates_as_people_write_them(value: float | str, micros: int) -> None:
    assert rates.rate(value) == micros
    assert IntervalQueue("q", rate=value)._options.interval == micros


@pytest.mark.parametrize(
    "value",
    ["", "ten/s", "10 each second", "10per", "10/", "10/fortnight", "10//s", "_1/s", "1__0/s", "10/-1s",
     "10/S", -1, True, None, b"10/s", -math.inf, math.inf, "1" * 200],
)  # fmt: skip
def test_what_is_no_rate_is_told_the_forms(value: object) -> None:
    with pytest.raises(InvalidInterval, match="100/minute or 5 per hour") as caught:
        rates.rate(value)
    assert caught.value.value == value


@pytest.mark.parametrize("value", [0, 0.0, "0/minute", "1/400 days", "10/0s", 1e-12])
def test_a_rate_out_of_range_is_refused(value: object) -> None:
    with pytest.raises(InvalidInterval):
        rates.rate(value)


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "0", "x" * 128])
def test_names(name: str) -> None:
    assert parse.name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".a", "-a", "_a", "a b", "a/b", "../a", "a{b}", "a*", "a>", "a\n", "\na", "a\0", "x" * 129, "é",
     "ａ", "\u202ea", "a:b", None, 4, b"a"],
)  # fmt: skip
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidName) as caught:
        parse.name(name)
    assert str(caught.value).isprintable()


@given(st.integers(1, parse.YEAR))
def test_a_duration_reads_back_as_it_was_written(micros: int) -> None:
    assert parse.duration(parse.text(micros)) == micros


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.sampled_from(["s", "m", "h", "d"]))
def test_a_rate_is_never_exceeded_by_rounding(starts: int, many: int, unit: str) -> None:
    exact = Fraction(many * parse.duration(f"1{unit}"), starts)
    if 1 <= math.ceil(exact) <= parse.YEAR:
        assert exact <= parse.rate(f"{starts}/{many}{unit}") < exact + 1


anything = st.one_of(
    st.text(), st.floats(), st.integers(), st.binary(), st.none(), st.booleans(), st.timedeltas(),
    st.lists(st.integers()),
    st.from_regex(r"[0-9./ eE+-]*(us|ms|s|m|h|d)?", fullmatch=True),
)  # fmt: skip


@given(anything)
def test_only_documented_errors_come_out_of_anything(value: object) -> None:
    for understand in (parse.interval, parse.rate, parse.name, rates.rate):
        try:
            understand(value)
        except IntervalqError as error:
            assert len(str(error)) < 400


@given(st.text())
def test_a_store_url_opens_or_is_refused(url: str) -> None:
    try:
        open_store(f"nowhere{url}://x" if "/" not in url else url.replace("://", ":/"))
    except (UnknownStore, InvalidOption, IntervalqError) as error:
        assert len(str(error)) < 600


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@host:6379/0?password=hunter2#hunter2", "redis://host:6379/0"),
        ("postgresql://hunter2@[::1]/db?password=hunter2", "postgresql://[::1]/db"),
        ("redis://:hunter2@host:notaport/0", "redis://..."),
        ("redis://user:1/hunter2@host:6379/0", "redis://..."),
        ("file:///tmp/state.json", "file:///tmp/state.json"),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
