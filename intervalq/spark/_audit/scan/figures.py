"""What a scan knows beforehand, and a piece of the log as arrays. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from intervalq.spark._audit.scan.buckets import NONE
from intervalq.spark._audit.scan.places import Places

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The same for all rows. Arrays have a value for each number of a queue. All times are in seconds."""

    interval: Array
    block: Array
    """The length of a block of time, in which the order is judged."""
    nameless: Array
    """Whether the queue has no name."""
    earliest: float
    latest: float
    """The range of plausible instants."""
    tolerance: float | None
    """How far from its slot a start may be. None: a tenth of the interval."""
    burst: int
    """Starts that may come at once, with slots of an idle time that lie that many intervals back."""
    reach: int
    """Over how many starts the rate is computed; a block has at least twice as many."""
    bin: int
    live: frozenset[str]
    """Names of the kinds to look for."""
    others: bool
    """Whether any row is no start."""
    attempts: bool
    """Whether any row is a later attempt."""
    retries: bool
    """Whether any row is a later attempt that may have the slot of the one before."""
    parts: int
    """How many parts the log is divided into, of about as many rows each."""
    held: int
    """How many rows of a block, or of keys, a worker sorts in memory."""
    places: Places
    """The queues and hosts of rows, and the clocks of hosts."""

    @property
    def slots(self) -> bool:
        """Whether slots are judged, and not only starts."""
        return bool(self.live & {"slot_shared", "slots_close", "slot_twice", "order_inverted"})

    @property
    def replays(self) -> bool:
        """Whether rows that came from the ledger count, too."""
        return "replay_unknown" in self.live

    def allowed(self, interval: Array) -> Array:
        """How far from its slot a start may be, for each of these intervals."""
        if self.tolerance is None:
            return interval * 0.1 * self.burst
        return np.full(len(interval), self.tolerance)

    def sane(self, instants: Array) -> Array:
        """Which are plausible instants; those that are missing are not."""
        return (instants >= self.earliest) & (instants <= self.latest)

    def bins(self, due: Array, at: Array) -> Array:
        """The bins of time that rows belong to: by the slot, or by the start if that is not an instant."""
        instant = np.where(self.sane(due), due, at)
        found = np.floor(instant / self.bin)
        found[np.isnan(found)] = NONE
        return found.astype(np.int64)


class Piece:
    """Some rows of the log: columns as arrays, with NaN and 0 for what is missing."""

    def __init__(self, columns: dict[str, Array], nulls: dict[str, Array]) -> None:
        self._columns = columns
        self._nulls = nulls

    @classmethod
    def of(cls, table: pa.Table, figures: Figures) -> Piece:
        """Those of a table, on corrected times.

        The columns `q`, `at` and `over` are added: the number of the queue, and start and end on the store's
        clock (NaN: not a plausible time). So are those that nobody needed.
        """
        columns, nulls = {}, {}
        for name in table.column_names:
            column = table.column(name).combine_chunks()
            if column.null_count:
                nulls[name] = column.is_null().to_numpy(zero_copy_only=False)
                column = column.fill_null(float("nan") if pa.types.is_floating(column.type) else 0)
            columns[name] = column.to_numpy(zero_copy_only=False)
        columns = {
            "start": np.ones(table.num_rows, bool),
            "ended": (unknown := np.full(table.num_rows, np.nan)),
            "attempt": (nothing := np.zeros(table.num_rows, np.int64)),
            "hash": nothing,
            "day": unknown,
        } | columns
        columns["q"], ahead = figures.places.of(columns["who"], columns["due"])
        for name, source in (("at", "started"), ("over", "ended")):
            instant = columns[source] - ahead
            columns[name] = np.where(figures.sane(instant), instant, np.nan)
        return cls(columns, nulls)

    def where(self, rows: Array) -> Piece:
        """Some of the rows."""
        if rows.all():
            return self
        return Piece(
            {name: column[rows] for name, column in self._columns.items()},
            {name: column[rows] for name, column in self._nulls.items()},
        )

    def values(self, name: str) -> Array:
        """A column."""
        return self._columns[name]

    def missing(self, name: str) -> Array:
        """Which rows have null in a column."""
        if name in self._nulls:
            return self._nulls[name]
        return np.zeros(len(self), bool)

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def queue(self) -> Array:
        """Numbers of queues."""
        return self._columns["q"]

    @property
    def ticket(self) -> Array:
        """Tickets."""
        return self._columns["ticket"]

    @property
    def is_start(self) -> Array:
        """Whether a call was made."""
        return self._columns["start"]
