"""Blocks of any number of rows: those of a large one go through a file, and are judged a range at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from intervalq.spark._audit.scan.order import (
    BY_SLOT,
    BY_START,
    FIRST_SLOT,
    FIRST_START,
    HALO,
    LAST_SLOT,
    LAST_START,
    SLOT,
    SLOT_HALO,
    START,
    judge_block,
    sorted_by,
)

if TYPE_CHECKING:
    from intervalq.spark._audit.scan.figures import Figures

Array = npt.NDArray[Any]

_SAMPLE: Final = 1 << 16
"""Rows of a sample, which shows where the ranges begin."""


def judge_rows_of_block(pieces: Iterable[Array], figures: Figures, queue: int, block: int) -> Iterator[Array]:
    """The groups of `judge_block` of all rows of a block, which come in pieces and in any order."""
    some: list[Array] = []
    rows = 0
    left = iter(pieces)
    for piece in left:
        some.append(piece)
        rows += len(piece)
        if rows > figures.held:
            break
    else:
        if some:
            yield judge_block(np.concatenate(some), figures, queue, block)
        return
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    with tempfile.TemporaryFile(prefix="intervalq-audit-", dir=folder) as file:
        spool = _Spool(file, some[0].dtype, figures.held)
        while some:
            spool.add(some.pop())
        for piece in left:
            spool.add(piece)
        yield from _by_ranges(spool, figures, queue, block)


class _Spool:
    """Rows in a file, and a sample of them."""

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any], held: int) -> None:
        self._file = file
        self._dtype = dtype
        self._held = held
        self._sample: list[Array] = []
        self._sampled = 0
        self._every = 1
        self._rows = 0

    def add(self, rows: Array) -> None:
        """Write some more."""
        self._file.write(rows.tobytes())
        some = rows[-self._rows % self._every :: self._every].copy()
        self._rows += len(rows)
        self._sample.append(some)
        self._sampled += len(some)
        if self._sampled > 2 * _SAMPLE:
            kept = np.concatenate(self._sample)[::2]
            self._sample, self._sampled, self._every = [kept], len(kept), 2 * self._every

    def ranges(self, role: int, keys: tuple[str, ...]) -> Iterator[tuple[Array, bool]]:
        """The rows that have such a role, in ranges by `keys`; and whether a range is the last one.

        No range is empty, except if there are no such rows at all. Only rows that are equal in all of
        `keys` are never divided.
        """
        sample = np.concatenate(self._sample)
        order = sorted_by(keys, sample, np.flatnonzero(sample["role"] & role))
        # Half as many as may be held, because a sample isn't exact.
        parts = 2 * len(order) * self._every // self._held + 1
        cuts: list[Array] = []
        for number in range(1, parts):
            cut = sample[order[number * len(order) // parts]]
            if _from(cut.reshape(1), cuts[-1] if cuts else sample[order[0]], keys, more=True)[0]:
                cuts.append(cut)
        for first, end in zip([None, *cuts], [*cuts, None], strict=True):
            some = []
            for rows in self._read():
                which = (rows["role"] & role) > 0
                if first is not None:
                    which &= _from(rows, first, keys)
                if end is not None:
                    which &= ~_from(rows, end, keys)
                some.append(rows[which])
            yield np.concatenate(some), end is None

    def _read(self) -> Iterator[Array]:
        self._file.seek(0)
        while data := self._file.read(self._dtype.itemsize * min(self._held, 1 << 18)):
            yield np.frombuffer(data, self._dtype)


def _from(rows: Array, first: Array, keys: tuple[str, ...], *, more: bool = False) -> Array:
    """Which rows are not before another one; or, with `more`, after it. NaN is before everything."""
    found = np.full(len(rows), not more)
    for key in reversed(keys):
        values, bound = np.nan_to_num(rows[key], nan=-np.inf), np.nan_to_num(first[key], nan=-np.inf)
        found = (values > bound) | ((values == bound) & found)
    return found


def _by_ranges(spool: _Spool, figures: Figures, queue: int, block: int) -> Iterator[Array]:
    """Starts and slots apart: each range looks back at the last rows of the one before."""
    ways = [
        (START | HALO, BY_START, HALO, figures.reach, FIRST_START, LAST_START),
        (SLOT, BY_SLOT, SLOT_HALO, 1, FIRST_SLOT, LAST_SLOT),
    ]
    for role, keys, halo, reach, begin, end in ways:
        before: Array | None = None
        for rows, last in spool.ranges(role, keys):
            rows["role"] &= role
            both = rows if before is None else np.concatenate([before, rows])
            edges = (begin if before is None else 0) | (end if last else 0)
            if len(both):
                yield judge_block(both, figures, queue, block, edges=edges)
            before = both[sorted_by(keys, both, np.arange(len(both)))[-reach:]]
            before["role"] = halo
