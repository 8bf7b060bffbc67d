"""The one scan of the log by which rows, order and keys are judged: in Python workers, by arrays.

The first half of it judges rows, and divides what needs an order into parts: rows by blocks of time, and keys
by their hashes. What is shuffled is values of bytes, each of many rows, which Spark sorts,
on disk if need be, without a look at the rows. The second half judges one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812

from intervalq.spark._audit.facts import is_start, who
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
    places,
    to_arrow,
)
from intervalq.spark._audit.scan.keys import Keys, calls, dtype
from intervalq.spark._audit.scan.large import judge_rows_of_block
from intervalq.spark._audit.scan.order import entries, entry
from intervalq.spark._audit.scan.rows import judge_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Array = npt.NDArray[Any]

_PIECE: Final = 1 << 18
"""Rows that are judged at a time."""
_BYTES: Final = 1 << 14
"""The size of a shuffled value. Spark may put 10,000 of them into a batch, which a worker holds."""
_SHUFFLED: Final = "part int, what int, q int, block bigint, data binary"


def hashed() -> Column:
    """A hash of a row's queue and key; null without a key."""
    return F.when(F.col("key").isNotNull(), F.xxhash64(F.coalesce("queue", F.lit("")), "key"))


def scan(log: DataFrame, figures: Figures, what: Iterable[int]) -> DataFrame:
    """Judge the log: groups with the columns of `GROUP`, each kind of them apart.

    Args:
        log: the result of `log_of`.
        figures: what is known of the log.
        what: which of `ROWS`, `ORDER` and `KEYS`.
    """
    passes = frozenset(what)
    live = figures.live

    # Each column costs time, so what nobody looks at isn't sent to Python.
    columns = {
        "who": (who(), True),
        "start": (is_start(), figures.others),
        "ticket": (F.coalesce("ticket", F.lit(0)), True),
        "due": (F.col("due"), True),
        "started": (F.col("started"), True),
        "ended": (F.col("ended"), ROWS in passes or figures.attempts),
        "attempt": (F.col("attempt"), figures.attempts or figures.retries),
        "day": (F.unix_date("day").cast("double"), "day_wrong" in live),
        "hash": (hashed(), KEYS in passes or "key_missing" in live or figures.retries),
    }
    narrow = log.select(*(column.alias(name) for name, (column, needed) in columns.items() if needed))

    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _first(batches, figures, passes)

    def second(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _second(batches, figures)

    parts = narrow.mapInArrow(first, _SHUFFLED).repartition(figures.parts, "part")
    found = parts.sortWithinPartitions("part", "what", "q", "block").mapInArrow(second, COLUMNS)
    return found.groupBy(*BY).agg(
        *(F.sum(name).alias(name) for name in ADDED),
        *(F.min(name).alias(name) for name in SMALLEST),
        *(F.max(name).alias(name) for name in LARGEST),
        F.min_by("ticket", "at").alias("ticket"),
    )


def _first(
    batches: Iterator[pa.RecordBatch], figures: Figures, passes: frozenset[int]
) -> Iterator[pa.RecordBatch]:
    parts = figures.parts
    for piece in _pieces(batches, figures):
        if ROWS in passes:
            found = judge_rows(piece, figures)
            nothing = np.zeros(len(found), np.int64)
            yield from _sent(ROWS, found, nothing, nothing, lambda _, __: 0)
        if ORDER in passes:
            yield from _sent(ORDER, *entries(piece, figures), lambda queue, block: (queue + block) % parts)
        if KEYS in passes:
            found = calls(piece, figures)
            # The upper half of a hash is as good as the whole one.
            part = ((found["hash"] >> 32) + (1 << 31)) * parts >> 32
            yield from _sent(KEYS, found, np.zeros(len(found), np.int32), part, lambda _, part: part)


def _pieces(batches: Iterator[pa.RecordBatch], figures: Figures) -> Iterator[Piece]:
    some: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        if rows >= _PIECE:
            yield Piece.of(pa.Table.from_batches(some), figures)
            some, rows = [], 0
    if rows:
        yield Piece.of(pa.Table.from_batches(some), figures)


def _sent(
    what: int, rows: Array, queue: Array, block: Array, part: Callable[[int, int], int]
) -> Iterator[pa.RecordBatch]:
    """The rows as values of bytes, each of one queue and block; and the parts of those."""
    if not len(rows):
        return
    order, first = places([queue, block])
    sizes = np.diff(first, append=len(rows))
    data = rows[order].tobytes()
    most = _BYTES // rows.itemsize
    # Where each value begins, and of which block it is.
    values = -(-sizes // most)
    of = np.repeat(np.arange(len(first)), values)
    begins = first[of] + (np.arange(len(of)) - np.repeat(np.cumsum(values) - values, values)) * most
    queues, blocks = queue[order[first]].tolist(), block[order[first]].tolist()
    parts = np.array([part(one, other) for one, other in zip(queues, blocks, strict=True)])
    offsets = np.append(begins, len(rows)) * rows.itemsize
    binary = pa.Array.from_buffers(
        pa.binary(), len(begins), [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    )
    yield pa.RecordBatch.from_arrays(
        [
            pa.array(parts[of], pa.int32()),
            pa.array(np.full(len(of), what), pa.int32()),
            pa.array(np.array(queues)[of], pa.int32()),
            pa.array(np.array(blocks)[of], pa.int64()),
            binary,
        ],
        names=["part", "what", "q", "block", "data"],
    )


def _second(batches: Iterator[pa.RecordBatch], figures: Figures) -> Iterator[pa.RecordBatch]:
    for (what, queue, block), values in groupby(_values(batches), key=itemgetter(0)):
        pieces = (data for _, data in values)
        if what == ORDER:
            kind = entry(figures)
            rows = (np.frombuffer(one, kind) for one in pieces)
            for groups in judge_rows_of_block(rows, figures, queue, block):
                yield to_arrow(groups)
        elif what == KEYS:
            keys = Keys(figures)
            for one in pieces:
                keys.add(np.frombuffer(one, dtype(figures)))
            yield to_arrow(keys.judge())
        else:
            for one in pieces:
                yield to_arrow(np.frombuffer(one, GROUP))


def _values(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[tuple[int, int, int], memoryview]]:
    """What values are, of which queue and block, and their bytes: neighbours together."""
    for batch in batches:
        if not batch.num_rows:
            continue
        names = [batch.column(place).to_numpy() for place in (1, 2, 3)]
        changes = np.zeros(batch.num_rows - 1, bool)
        for column in names:
            changes |= column[1:] != column[:-1]
        data = batch.column(4)
        _, offsets, buffer = data.buffers()
        ends = np.frombuffer(offsets, np.int32)[data.offset : data.offset + len(data) + 1]
        first = np.flatnonzero(np.concatenate(([True], changes)))
        for begin, end in zip(first, [*first[1:], batch.num_rows], strict=True):
            what, queue, block = (int(column[begin]) for column in names)
            yield (what, queue, block), memoryview(buffer)[ends[begin] : ends[end]]
