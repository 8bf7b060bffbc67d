"""The one scan of the log by which rows, order and keys are judged: in Python workers, by arrays.

The first half of it judges rows, and divides what needs an order into parts: rows by blocks of time, and keys
by their hashes. What is shuffled is a few large values of bytes. The second half judges each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.facts import is_start
from intervalq.spark._audit.scan.figures import Figures, Piece
from intervalq.spark._audit.scan.groups import (
    ADDED,
    BY,
    COLUMNS,
    GROUP,
    KEYS,
    LARGEST,
    ORDER,
    ROWS,
    SMALLEST,
    to_arrow,
)
from intervalq.spark._audit.scan.keys import calls, dtype, judge_keys
from intervalq.spark._audit.scan.order import ENTRY, entries, judge_order
from intervalq.spark._audit.scan.rows import judge_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Array = npt.NDArray[Any]

_PIECE: Final = 1 << 18
"""Rows that are judged at a time."""
_MERGED: Final = 1 << 16
"""Groups of rows that are handed on at a time."""
_SHUFFLED: Final = "part int, what int, data binary"


def hashed() -> Column:
    """A hash of a row's queue and key; null without a key."""
    return F.when(F.col("key").isNotNull(), F.xxhash64(F.coalesce("queue", F.lit("")), "key"))


def scan(log: DataFrame, figures: Figures, what: Iterable[int]) -> DataFrame:
    """Judge the log: groups with the columns of `GROUP`, each kind of them apart.

    Args:
        log: the result of `placed`, with replayed rows.
        figures: what is known of the log.
        what: which of `ROWS`, `ORDER` and `KEYS`.
    """
    passes = frozenset(what)
    live = figures.live

    def needed(column: str | Column, kind: str, *, if_: bool = True) -> Column:
        return (F.col(column) if isinstance(column, str) else column) if if_ else F.lit(None).cast(kind)

    attempts = figures.attempts or "retry_same_slot" in live
    keys = KEYS in passes or bool(live & {"key_missing", "retry_same_slot"})
    narrow = log.select(
        "q",
        is_start().alias("start"),
        F.coalesce("ticket", F.lit(0)).alias("ticket"),
        "due",
        "started",
        needed("ended", "double", if_=ROWS in passes).alias("ended"),
        "at",
        needed("over", "double", if_=figures.attempts).alias("over"),
        needed("attempt", "int", if_=attempts).alias("attempt"),
        needed(F.unix_date("day"), "int", if_="day_wrong" in live).cast("double").alias("day"),
        needed(hashed(), "bigint", if_=keys).alias("hash"),
    )

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _first(batches, figures, passes)

    def second(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _second(batches, figures)

    parts = narrow.mapInArrow(first, _SHUFFLED).repartition(figures.parts, "part")
    found = parts.sortWithinPartitions("part", "what").mapInArrow(second, COLUMNS)
    return found.groupBy(*BY).agg(
        *(F.sum(name).alias(name) for name in ADDED),
        *(F.min(name).alias(name) for name in SMALLEST),
        *(F.max(name).alias(name) for name in LARGEST),
        F.min_by("ticket", "at").alias("ticket"),
    )


def _first(
    batches: Iterator[pa.RecordBatch], figures: Figures, passes: frozenset[int]
) -> Iterator[pa.RecordBatch]:
    for piece in _pieces(batches):
        if ROWS in passes:
            yield from _sent(ROWS, judge_rows(piece, figures), None, figures.parts)
        if ORDER in passes:
            found = entries(piece, figures)
            part = (found["block"] + found["q"].astype(np.int64)) % figures.parts
            yield from _sent(ORDER, found, part, figures.parts)
        if KEYS in passes:
            found = calls(piece, figures)
            # The upper half of a hash is as good as the whole one.
            part = ((found["hash"] >> 32) + (1 << 31)) * figures.parts >> 32
            yield from _sent(KEYS, found, part, figures.parts)


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    some: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        if rows >= _PIECE:
            yield Piece.of(pa.Table.from_batches(some))
            some, rows = [], 0
    if rows:
        yield Piece.of(pa.Table.from_batches(some))


def _sent(what: int, rows: Array, part: Array | None, parts: int) -> Iterator[pa.RecordBatch]:
    """The rows as one value of bytes for each part."""
    if not len(rows):
        return
    if part is None:
        pieces = [(0, rows)]
    else:
        number = part.astype(np.int16 if parts < 1 << 15 else np.int64)  # small ones are sorted in no time
        order = np.argsort(number, kind="stable")
        ends = np.cumsum(np.bincount(number, minlength=parts))
        pieces = list(enumerate(np.split(rows[order], ends[:-1])))
    for one, some in pieces:
        if len(some):
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([one], pa.int32()),
                    pa.array([what], pa.int32()),
                    pa.array([some.tobytes()], pa.binary()),
                ],
                names=["part", "what", "data"],
            )


def _second(batches: Iterator[pa.RecordBatch], figures: Figures) -> Iterator[pa.RecordBatch]:
    kinds = {ROWS: GROUP, ORDER: ENTRY, KEYS: dtype(figures)}
    for what, data in _parts(batches):
        rows = np.concatenate([np.frombuffer(one, kinds[what]) for one in data])
        data.clear()
        if what == ORDER:
            for groups in judge_order(rows, figures):
                yield to_arrow(groups)
        elif what == KEYS:
            yield to_arrow(judge_keys(rows, figures))
        else:
            for place in range(0, len(rows), _MERGED):
                yield to_arrow(rows[place : place + _MERGED])


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[pa.Buffer]]]:
    """The values of each part, and what they are."""
    now: tuple[int, int] | None = None
    some: list[pa.Buffer] = []
    for batch in batches:
        for part, what, data in zip(*(batch.column(place) for place in range(3)), strict=True):
            this = (part.as_py(), what.as_py())
            if this != now and some:
                assert now is not None
                yield now[1], some
                some = []
            now = this
            some.append(data.as_buffer())
    if some:
        assert now is not None
        yield now[1], some
