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


def judge_keys(rows: Array, figures: Figures) -> Array:
    """Groups by flags: the number of keys, that of excess calls (`unused`), and two hashes as examples.

    Args:
        rows: all `calls` of some keys.
        figures: of the scan.
    """
    if not len(rows):
        return np.zeros(0, GROUP)
    if figures.attempts:
        rows, first, checks, distinct, made = _attempts(rows, figures)
    else:
        if figures.replays:
            rows = rows[np.argsort(rows["hash"], kind="stable")]
        else:
            rows = np.sort(rows["hash"]).view(rows.dtype)
        first = _first(rows["hash"])
        made = _sums(_is_call(rows, figures), first)
        distinct, checks = np.minimum(made, 1), {}
    checks |= {"key_twice": made > distinct, "replay_unknown": made == 0}
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
    found["unused"] = np.add.reduceat((made - distinct)[line], begins)
    hashes = rows["hash"][first[line]]
    found["low"] = np.minimum.reduceat(hashes, begins)
    found["high"] = np.maximum.reduceat(hashes, begins)
    return found


def _first(hashes: Array) -> Array:
    return np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))


def _is_call(rows: Array, figures: Figures) -> Array:
    return rows["call"] if figures.replays else np.ones(len(rows), bool)


def _sums(column: Array, first: Array) -> Array:
    return np.add.reduceat(column.astype(np.int64), first)


def _attempts(rows: Array, figures: Figures) -> tuple[Array, Array, dict[str, Array], Array, Array]:
    """The rows in order, where each key begins, its checks, and how many attempts and calls it has."""
    call = _is_call(rows, figures)
    lowest = [np.nan_to_num(rows[name], nan=-np.inf) for name in ("over", "at")]
    rows = rows[np.lexsort((rows["ticket"], *lowest, rows["number"], ~call, rows["hash"]))]
    call, first = _is_call(rows, figures), _first(rows["hash"])
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
    made = _sums(call, first)
    distinct = _sums(np.append(later, [False]), first) + (made > 0)
    most = np.maximum.reduceat(np.where(call, rows["number"], 0), first)
    checks["attempt_skipped"] = most > distinct
    return rows, first, checks, distinct, made
