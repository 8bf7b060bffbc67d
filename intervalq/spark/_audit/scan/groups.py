"""Groups of rows that are alike, as a table of counts and sums: the outcome of a scan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from intervalq.spark._audit.scan.buckets import NONE

Array = npt.NDArray[Any]

ROWS, ORDER, KEYS = 0, 1, 2
"""Which pass a group is of."""

_KEYS: Final = {"kind": "i8", "q": "i8", "block": "i8", "bin": "i8", "flags": "i8", "bucket": "i8"}
_SUMS: Final = {"rows": "i8", "slots": "i8", "unused": "i8", "total": "f8"}
_LEAST: Final = {"least": "f8", "at": "f8", "due": "f8", "low": "i8"}
_MOST: Final = {"most": "f8", "high": "i8"}
GROUP: Final = np.dtype([*(_KEYS | {"restarted": "f8"} | _SUMS | _LEAST | _MOST | {"ticket": "i8"}).items()])
"""A group: what its rows have in common; their number, that of slots, of unused tickets, and the sum of their
values (lateness, or gaps); the least and the most value, the first instant and slot, and the ticket there."""

COLUMNS: Final = ", ".join(
    f"{name} {'double' if GROUP[name].kind == 'f' else 'bigint'}" for name in GROUP.names or ()
)
"""The same as a schema of Spark."""
BY: Final = (*_KEYS, "restarted")
ADDED: Final = tuple(_SUMS)
SMALLEST: Final = tuple(_LEAST)
LARGEST: Final = tuple(_MOST)


_WIDE: Final = 1 << 12
"""Columns whose values are farther apart are numbered anew, as flags are: they have few different ones."""


def places(columns: list[Array]) -> tuple[Array, Array]:
    """The rows in an order in which equal ones are neighbours, and where each group begins in it."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        numbers, span = _narrow(column)
        if span * size >= 1 << 62:
            code = np.unique(code, return_inverse=True)[1].astype(np.int64)
            size = int(code.max()) + 1
        if span > 1:
            code, size = code * span + numbers, size * span
    order = stable_order(code, size)
    line = code[order]
    return order, np.flatnonzero(np.concatenate(([True], line[1:] != line[:-1])))


def _narrow(column: Array) -> tuple[Array, int]:
    """A column as numbers from 0 on, in the same order, and a bound of them."""
    low, high = int(column.min()), int(column.max())
    if low == NONE and high != NONE:
        known = column != NONE
        low = int(column.min(where=known, initial=high)) - 1
        column = np.where(known, column, low)
    if high - low >= _WIDE:
        values, column = np.unique(column, return_inverse=True)
        low, high = 0, len(values) - 1
    return column - low, high - low + 1


def stable_order(code: Array, size: int) -> Array:
    """The order of numbers from 0 to below `size`; equal ones keep theirs. Small ones take no time."""
    if (code[1:] >= code[:-1]).all():
        return np.arange(len(code))
    if size <= 1 << 16:
        return np.argsort(code.astype(np.uint16), kind="stable")
    if size > 1 << 32:
        return np.argsort(code, kind="stable")
    order = np.argsort((code & 0xFFFF).astype(np.uint16), kind="stable")
    return order[np.argsort((code >> 16).astype(np.uint16)[order], kind="stable")]


def grouped(
    kind: int,
    by: Mapping[str, Array],
    *,
    value: Array,
    at: Array,
    ticket: Array,
    counts: Mapping[str, Array] | None = None,
    due: Array | None = None,
) -> Array:
    """Groups of rows that are equal in `by`.

    Args:
        kind: of which pass.
        by: arrays of whole numbers.
        value: what is added up; NaN: nothing.
        at: the instant of each row, by which a group has the first one's; NaN: none.
        ticket: of each row; 0: none.
        counts: what is counted. None: rows.
        due: the slot of each row; NaN: none.
    """
    if not len(value):
        return np.zeros(0, GROUP)
    order, first = places(list(by.values()))
    found = np.zeros(len(first), GROUP)
    found["kind"], found["restarted"] = kind, np.nan
    for name, column in by.items():
        found[name] = column[order[first]]
    if counts is None:
        found["rows"] = np.diff(first, append=len(order))
    for name, column in (counts or {}).items():
        found[name] = np.add.reduceat(column[order], first)
    line = value[order]
    found["least"] = np.fmin.reduceat(line, first)
    found["most"] = np.fmax.reduceat(line, first)
    found["total"] = np.where(np.isnan(found["least"]), np.nan, np.add.reduceat(np.nan_to_num(line), first))
    found["due"] = np.nan if due is None else np.fmin.reduceat(due[order], first)
    # Where something was found, the first of its rows is looked up, which costs another sort, of few rows.
    found["at"], found["ticket"] = np.nan, NONE
    shown = (found["flags"] != 0) | (found["unused"] > 0)
    if shown.any():
        _first_places(found, np.flatnonzero(shown), order, first, at=at, ticket=ticket)
    return found


def _first_places(
    found: Array, shown: Array, order: Array, first: Array, *, at: Array, ticket: Array
) -> None:
    """Set the instant and the ticket of the first row of some groups."""
    ends = np.append(first[1:], len(order))
    sizes = (ends - first)[shown]
    group = np.repeat(np.arange(len(shown)), sizes)
    begins = np.cumsum(sizes) - sizes
    rows = order[np.arange(len(group)) - begins[group] + first[shown][group]]
    line = rows[np.lexsort((at[rows], group))][begins]  # NaN comes last
    found["at"][shown] = at[line]
    found["ticket"][shown] = np.where(ticket[line] == 0, NONE, ticket[line])


def to_arrow(groups: Array) -> pa.RecordBatch:
    """The table for Spark, with nulls."""
    columns = []
    for name in GROUP.names or ():
        values = np.ascontiguousarray(groups[name])
        none = np.isnan(values) if values.dtype.kind == "f" else values == NONE
        columns.append(pa.array(values, mask=none))
    return pa.RecordBatch.from_arrays(columns, names=list(GROUP.names or ()))
