"""Answers: a ledger gives back what it was given, and a schema takes what it can hold without loss."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped] # it has no types
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq.spark._answers.earlier import reader
from intervalq.spark._answers.fit import Unfit, fitter
from intervalq.spark._answers.kept import read_answer, written_answer

_SIMPLE: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    (pa.large_string(), st.text(st.characters(exclude_categories=["Cs"]))),
    (pa.binary(), st.binary()),
    (pa.decimal128(20, 3), st.decimals(-(10**9), 10**9, places=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-(10**6)), dt.timedelta(10**6))),
]


@st.composite
def _typed(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, Any]:
    """A type, and a value of it or null."""
    kind, values = draw(_any_type(depth))
    return kind, draw(st.none() | values)


def _any_type(depth: int) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    simple = st.sampled_from(_SIMPLE)
    if not depth:
        return simple
    inner = _any_type(depth - 1)
    return st.one_of(
        simple,
        inner.map(lambda of: (pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3))),
        inner.map(
            lambda of: (pa.map_(pa.string(), of[0]), st.lists(st.tuples(st.text("ab"), of[1]), max_size=3))
        ),
        st.tuples(inner, inner).map(
            lambda two: (
                pa.struct([("a", two[0][0]), ("b", two[1][0])]),
                st.fixed_dictionaries({"a": st.none() | two[0][1], "b": two[1][1]}),
            )
        ),
    )


@settings(max_examples=300, deadline=None)
@given(_typed())
def test_every_value_comes_back_and_fits_its_type(typed: tuple[pa.DataType, Any]) -> None:
    kind, value = typed
    normal = pa.scalar(value, kind).as_py()
    text = json.dumps(written_answer(normal), allow_nan=False)
    back = read_answer(json.loads(text))
    fitted = fitter(kind)(back)
    assert pa.scalar(fitted, kind).equals(pa.scalar(normal, kind)) or "nan" in repr(normal)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text("a$é") | st.binary() | st.uuids()
        | st.decimals(allow_nan=False) | st.datetimes() | st.dates() | st.times() | st.timedeltas(),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$", "$date", "$map"]) | st.integers(), inner, max_size=2),
    )
)  # fmt: skip
def test_any_answer_comes_back(answer: object) -> None:
    text = json.dumps(written_answer(answer), allow_nan=False)
    assert _same(read_answer(json.loads(text)), answer), text


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("answer", "back"),
    [((1, 2), [1, 2]), (Colour.RED, "red"), ({Colour.RED: 1}, {"red": 1}), (np.int64(3), 3),
     (np.ones(2), [1.0, 1.0]), (range(2), [0, 1]), (pd.NaT, None),
     (bytearray(b"x"), b"x"), ({(1, 2): 3}, {(1, 2): 3})],
)  # fmt: skip
def test_answers_of_other_types(answer: object, back: object) -> None:
    found = read_answer(json.loads(json.dumps(written_answer(answer))))
    assert (found, type(found)) == (back, type(back))


def test_an_answer_that_can_not_be_kept() -> None:
    with pytest.raises(TypeError, match="a object can't be kept"):
        written_answer({"a": [object()]})


FITS: list[tuple[object, pa.DataType, object]] = [
    (1.5, pa.decimal128(10, 2), Decimal("1.50")),
    ("12.5", pa.decimal128(10, 2), Decimal("12.50")),
    (7, pa.decimal128(10, 2), Decimal("7.00")),
    (0.1, pa.decimal128(2, 1), Decimal("0.1")),
    (Decimal("1.500"), pa.decimal128(3, 1), Decimal("1.5")),
    (2.0, pa.int32(), 2),
    (Decimal(2), pa.int64(), 2),
    ("9223372036854775807", pa.int64(), 2**63 - 1),
    (np.int64(3), pa.int64(), 3),
    (3, pa.float64(), 3.0),
    ("0.1", pa.float64(), 0.1),
    (Decimal("0.1"), pa.float64(), 0.1),
    (1.1, pa.float32(), 1.1),
    (math.inf, pa.float32(), math.inf),
    (np.bool_(True), pa.bool_(), True),
    (Colour.RED, pa.string(), "red"),
    (b"x", pa.string(), "x"),
    ("é", pa.binary(), "é".encode()),
    ("2026-11-27", pa.date32(), dt.date(2026, 11, 27)),
    (dt.datetime(2026, 11, 27, tzinfo=dt.UTC), pa.date32(), dt.date(2026, 11, 27)),
    ("2026-11-27T05:00:00Z", pa.timestamp("us", "UTC"), dt.datetime(2026, 11, 27, 5, tzinfo=dt.UTC)),
    (
        "2026-11-27T05:00:00",
        pa.timestamp("us"),
        dt.datetime(2026, 11, 27, 5, tzinfo=dt.UTC).replace(tzinfo=None),
    ),
    ((1, 2.0), pa.list_(pa.int64()), [1, 2]),
    (np.ones(2, np.float32), pa.list_(pa.float32()), [1.0, 1.0]),
    (pd.NaT, pa.timestamp("us", "UTC"), None),
    (pd.NaT, pa.date32(), None),
    ({"a": 1}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1, "b": None}),
    ({"k": 2.0}, pa.map_(pa.string(), pa.int64()), [("k", 2)]),
]

UNFIT: list[tuple[object, pa.DataType, str]] = [
    ("1.5 EUR", pa.decimal128(10, 2), "not a number"),
    (1.555, pa.decimal128(10, 2), "more than 2 digits after"),
    (10**8, pa.decimal128(10, 2), "more than 8 digits before"),
    (math.nan, pa.decimal128(10, 2), "not a number"),
    (True, pa.decimal128(10, 2), "not a number"),
    (2.5, pa.int32(), "not a whole number"),
    (math.inf, pa.int32(), "not a whole number"),
    (True, pa.int64(), "is a bool"),
    (2**31, pa.int32(), "not between"),
    ("007", pa.int32(), "is a str"),
    (2**53 + 1, pa.float64(), "more digits"),
    (1e300, pa.float32(), "too large"),
    (1, pa.bool_(), "is an int, not a bool"),
    (5, pa.string(), "is an int, not text"),
    ("\ud800", pa.string(), "not valid text"),
    (b"\xff", pa.string(), "not valid text"),
    (5, pa.binary(), "not bytes"),
    ("\ud800", pa.binary(), "not valid text"),
    (16_777_217, pa.float32(), "more digits"),
    (1e-60, pa.float32(), "more digits"),
    ("2026-11-27T05:00:00.1234567Z", pa.timestamp("us", "UTC"), "more exact"),
    (dt.datetime(2026, 11, 27, tzinfo=dt.UTC), pa.timestamp("us"), "no zone"),
    (dt.timedelta.max, pa.duration("us"), "longer than"),
    (2**200, pa.int64(), "not between"),
    (dt.datetime(2026, 11, 27, 5, tzinfo=dt.UTC), pa.date32(), "time of day"),
    ("27.11.2026", pa.date32(), "ISO 8601"),
    (0, pa.date32(), "not a date"),
    ("2026-11-27T05:00:00", pa.timestamp("us", "UTC"), "offset"),
    ("2026-11-27T05:00:00Z", pa.timestamp("us"), "no zone"),
    (1.0, pa.timestamp("us", "UTC"), "not a datetime"),
    (1, pa.duration("us"), "timedelta"),
    ("ab", pa.list_(pa.string()), "not a list"),
    ([2.5], pa.list_(pa.int64()), "not a whole number"),
    ([1], pa.struct([("a", pa.int64())]), "not a dict"),
    ({"b": 1}, pa.struct([("a", pa.int64())]), "not in the schema: b"),
    ([1], pa.map_(pa.string(), pa.int64()), "not a dict"),
    (1, pa.null(), "not None"),
]


@pytest.mark.parametrize(("value", "kind", "fitted"), FITS)
def test_what_loses_nothing_is_converted(value: object, kind: pa.DataType, fitted: object) -> None:
    found = fitter(kind)(value)
    assert (found, type(found)) == (fitted, type(fitted))
    pa.scalar(found, kind)
    assert fitter(kind)(None) is None


@pytest.mark.parametrize(("value", "kind", "why"), UNFIT)
def test_what_would_lose_something_is_refused(value: object, kind: pa.DataType, why: str) -> None:
    with pytest.raises(Unfit, match=why):
        fitter(kind)(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, None], pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ({"b": 1}, pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.int64())])),
        ({"k": None}, pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        (pd.NaT, pa.date32()),
        (None, pa.int64()),
    ],
)
def test_none_where_the_schema_has_no_nulls_is_refused(value: object, kind: pa.DataType) -> None:
    """Spark trusts the schema: a null in an array without nulls would fail the job, with all calls made."""
    with pytest.raises(Unfit, match="a value is None, and the schema says NOT NULL"):
        fitter(kind, nullable=False)(value)


def test_results_that_earlier_versions_kept() -> None:
    kind = pa.struct([
        ("f", pa.float64()), ("d", pa.decimal128(5, 2)), ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.duration("us"))), ("b", pa.binary()),
        ("m", pa.map_(pa.string(), pa.float64())), ("n", pa.string()),
    ])  # fmt: skip
    stored = {
        "f": "NaN", "d": "1.50", "t": "2026-11-27T05:00:00+00:00", "l": [1, None], "b": "eA==",
        "m": [["k", "-Infinity"]], "n": None,
    }  # fmt: skip
    found = fitter(kind)(reader(kind)(stored))
    assert math.isnan(found.pop("f"))
    assert found == {
        "d": Decimal("1.50"), "t": dt.datetime(2026, 11, 27, 5, tzinfo=dt.UTC), "b": b"x",
        "l": [dt.timedelta(microseconds=1), None], "m": [("k", -math.inf)], "n": None,
    }  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Decimal):
        return bool(one == other)
    return type(one) is type(other) and bool(one == other)
