"""The checks by key: duplicate calls, and attempts. Pure: on arrays of hashes.

A hash has 64 bits: among 100 million keys, the chance that any two collide is 1 in 4,000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from intervalq.spark._audit.scan.buckets import NONE
from intervalq.spark._audit.scan.groups import GROUP, KEYS, places
from intervalq.spark._audit.scan.rows import flags_of

if TYPE_CHECKING:
    from intervalq.spark._audit.scan.figures import Figures, Piece

Array = npt.NDArray[Any]

BY_KEY: Final = frozenset(
    {"key_twice", "attempt_skipped", "attempt_order", "attempt_overlap", "replay_unknown"}
)


def dtype(figures: Figures) -> np.dtype[Any]:
    """A call of a key: only what is needed."""
    fields = [("hash", "i8")]
    if figures.replays:
        fields.append(("call", "?"))
    if figures.attempts:
        fields += [("number", "i4"), ("at", "f8"), ("over", "f8"), ("ticket", "i8")]
    return np.dtype(fields)


def calls(piece: Piece, figures: Figures) -> Array:
    """The calls, or replays, of rows that have a key."""
    which = ~piece.missing("hash")
    if not figures.replays:
        which &= piece.is_start
    piece = piece.where(which)
    found = np.zeros(len(piece), dtype(figures))
    found["hash"] = piece.values("hash")
    if figures.replays:
        found["call"] = piece.is_start
    if figures.attempts:
        # A start without a number counts as the first. An attempt without a known end doesn't overlap with
        # the next one.
        found["number"] = np.maximum(piece.values("attempt"), 1)
        at, over = piece.values("at"), piece.values("over")
        found["at"] = at
        allowed = figures.allowed(figures.interval[piece.queue])
        found["over"] = np.where(np.isnan(over), at, over) - allowed
        found["ticket"] = piece.ticket
    return found


class Keys:
    """Collects the calls of some keys, and judges them. Of a key with very many calls, it holds few rows."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._rows: list[Array] = []
        self._made: list[Array] = []
        """For how many calls or replays each row stands."""
        self._held = 0
        self._most = figures.held

    def add(self, rows: Array) -> None:
        """Add some `calls`."""
        self._rows.append(rows)
        self._made.append(np.ones(len(rows), np.int32))
        self._held += len(rows)
        if self._held > self._most:
            rows, made = _few(*self._sorted(), self._figures)
            self._rows, self._made, self._held = [rows], [made], len(rows)
            self._most = max(self._figures.held, 2 * len(rows))

    def _sorted(self) -> tuple[Array, Array]:
        rows, made = np.concatenate(self._rows), np.concatenate(self._made)
        if made.dtype == np.int32 and rows.dtype.names == ("hash",):  # none stands for several
            return np.sort(rows["hash"]).view(rows.dtype), made
        order = _order(rows, self._figures)
        return rows[order], made[order]

    def judge(self) -> Array:
        """Groups by flags: the number of keys, that of excess calls (`unused`), and two hashes as examples.

        All rows have been added.
        """
        return _judged(*self._sorted(), self._figures) if self._rows else np.zeros(0, GROUP)


def _order(rows: Array, figures: Figures) -> Array:
    """By keys, calls before replays, then by the number of the attempt, and by time."""
    keys = [rows["hash"]]
    if figures.replays:
        keys.append(~rows["call"])
    if figures.attempts:
        keys += [rows["number"], *(np.nan_to_num(rows[name], nan=-np.inf) for name in ("at", "over"))]
        keys.append(rows["ticket"])
    return np.lexsort(keys[::-1])


def _few(rows: Array, made: Array, figures: Figures) -> tuple[Array, Array]:
    """The same by fewer rows: of equal attempts, only the first and the last are compared with others."""
    if not len(rows):
        return rows, made.astype(np.int64)
    changes = np.zeros(len(rows) - 1, bool)
    for name in ("hash", "call", "number"):
        if name in (rows.dtype.names or ()):
            changes |= rows[name][1:] != rows[name][:-1]
    first = np.flatnonzero(np.concatenate(([True], changes)))
    total = np.add.reduceat(made.astype(np.int64), first)
    if not figures.attempts:
        return rows[first], total
    last = np.append(first[1:], len(rows)) - 1
    two = last > first
    kept = np.sort(np.concatenate([first, last[two]]))
    stands = np.ones(len(kept), np.int64)
    stands[np.searchsorted(kept, first)] = total - two
    return rows[kept], stands


def _judged(rows: Array, made: Array, figures: Figures) -> Array:
    """Judge rows in their order."""
    first = np.flatnonzero(np.concatenate(([True], rows["hash"][1:] != rows["hash"][:-1])))
    call = rows["call"] if figures.replays else np.ones(len(rows), bool)
    calls = _sums(np.where(call, made, 0), first)
    distinct = np.minimum(calls, 1)
    checks: dict[str, Array] = {}
    if figures.attempts:
        distinct, checks = _attempts(rows, call, first)
    checks |= {"key_twice": calls > distinct, "replay_unknown": calls == 0}
    flags = flags_of(checks, figures.live, len(first))
    wrong = np.flatnonzero(flags)
    if not len(wrong):
        return np.zeros(0, GROUP)
    order, begins = places([flags[wrong]])
    line = wrong[order]
    found = np.zeros(len(begins), GROUP)
    found["kind"], found["bin"], found["ticket"] = KEYS, NONE, NONE
    for name in ("restarted", "total", "least", "most", "at", "due"):
        found[name] = np.nan
    found["flags"] = flags[line[begins]]
    found["rows"] = np.diff(begins, append=len(line))
    found["unused"] = np.add.reduceat((calls - distinct)[line], begins)
    hashes = rows["hash"][first[line]]
    found["low"] = np.minimum.reduceat(hashes, begins)
    found["high"] = np.maximum.reduceat(hashes, begins)
    return found


def _sums(column: Array, first: Array) -> Array:
    return np.add.reduceat(column.astype(np.int64), first)


def _attempts(rows: Array, call: Array, first: Array) -> tuple[Array, dict[str, Array]]:
    """How many attempts each key has, and its checks."""
    same = (rows["hash"][1:] == rows["hash"][:-1]) & call[1:]  # calls come before replays
    one, other = rows[:-1], rows[1:]
    later = same & (one["number"] < other["number"])
    # Not for copies of the same attempt.
    pairs = {
        "attempt_order": later
        & (other["ticket"] < one["ticket"])
        & (other["ticket"] != 0)
        & (one["ticket"] != 0),
        "attempt_overlap": later & (other["at"] > one["at"]) & (other["at"] < one["over"]),
    }
    checks = {name: _sums(np.append(wrong, [False]), first) > 0 for name, wrong in pairs.items()}
    distinct = _sums(np.append(later, [False]), first) + np.logical_or.reduceat(call, first)
    most = np.maximum.reduceat(np.where(call, rows["number"], 0), first)
    checks["attempt_skipped"] = most > distinct
    return distinct, checks
