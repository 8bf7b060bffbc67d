"""Results as JSON and back: what is read from a ledger equals what was written, for every type."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intervalq.spark._answers.fit import fitter

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
def test_every_value_comes_back(typed: tuple[pa.DataType, Any]) -> None:
    kind, value = typed
    normal = pa.scalar(value, kind).as_py()
    write, read = coder(kind)
    text = json.dumps(write(normal), allow_nan=False)
    back = read(json.loads(text))
    assert _same(back, normal), text
    assert pa.scalar(back, kind).equals(pa.scalar(normal, kind)) or "nan" in repr(normal)


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


def test_a_type_without_a_coder_is_named() -> None:
    with pytest.raises(TypeError, match=r"time64\[us\].*ledger=None"):
        coder(pa.struct([("t", pa.time64("us"))]))
