"""Which queue and host a row is of, and how far the host's clock was ahead. Pure: on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from intervalq.spark._audit.scan.groups import stable_order

if TYPE_CHECKING:
    from intervalq.spark._audit.clocks import Line

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Places:
    """All pairs of a queue and a host, by a hash that each row has."""

    hashes: Array
    """In ascending order. The next two have a number for each."""
    queue: Array
    host: Array
    lines: tuple[Array, ...]
    """For each number of a host: rows of since, due, ahead and slope, as in `Line`."""
    span: tuple[float, float]
    """Only slots from the first instant to before the other are corrected."""

    @classmethod
    def known(
        cls,
        pairs: Iterable[tuple[int, int, str]],
        clocks: Sequence[tuple[str, Sequence[Line]]],
        span: tuple[float, float],
    ) -> Places:
        """Those of hashes, numbers of queues, and hosts; and the lines of hosts' clocks."""
        numbers = {host: number for number, (host, _) in enumerate(clocks, 1)}
        rows = sorted((code, queue, numbers.get(host, 0)) for code, queue, host in set(pairs))
        hashes, queue, host = np.array(rows, np.int64).reshape(-1, 3).T.copy()
        lines = [
            np.array([(one.since, one.due, one.ahead, one.slope) for one in of_host]).reshape(-1, 4).T
            for of_host in ((), *(lines for _, lines in clocks))
        ]
        return cls(hashes, queue, host, tuple(lines), span)

    def of(self, who: Array, due: Array) -> tuple[Array, Array]:
        """For each row the number of its queue, and by how many seconds its host's clock was ahead.

        Raises:
            ValueError: a row has a queue or host that the log didn't have before.
        """
        # Neighbours are mostly of the same shard, so few hashes are looked up.
        first = np.flatnonzero(np.concatenate(([True], who[1:] != who[:-1])))
        place = np.searchsorted(self.hashes, who[first])
        if (place == len(self.hashes)).any() or (self.hashes[place] != who[first]).any():
            raise ValueError(
                "the log changed while it was audited: audit a copy, or one version of its table"
            )
        sizes = np.diff(first, append=len(who))
        queue = np.repeat(self.queue[place].astype(np.int32), sizes)
        if not any(lines.size for lines in self.lines):
            return queue, np.zeros(len(who))
        return queue, self._ahead(np.repeat(self.host[place], sizes), due)

    def _ahead(self, host: Array, due: Array) -> Array:
        ahead = np.zeros(len(host))
        order = stable_order(host, len(self.lines))
        line = host[order]
        inside = (due >= self.span[0]) & (due < self.span[1])
        for some in np.split(order, np.flatnonzero(line[1:] != line[:-1]) + 1):
            since, at, offset, slope = self.lines[host[some[0]]]
            if len(since):
                which = np.maximum(np.searchsorted(since, due[some], side="right") - 1, 0)
                ahead[some] = np.where(
                    inside[some], offset[which] + slope[which] * (due[some] - at[which]), 0.0
                )
        return ahead
