"""The checks that need order: gaps between starts, and slots against tickets. Pure: on arrays.

Every queue's time is cut into blocks. A start goes to the block of its instant and to that of its slot, which
are the same except at edges, so that each block can be sorted by itself: once by starts, once by slots.
The last few starts of a block also go to the next one, as a *halo* that is looked back at and not judged.
What remains at the edges, at most two rows for each block, is joined afterwards by `edges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from intervalq.spark._audit.kinds import KINDS
from intervalq.spark._audit.scan.buckets import GAP_BUCKETS, buckets
from intervalq.spark._audit.scan.groups import ORDER, grouped, places
from intervalq.spark._audit.scan.rows import ROUNDING, flags_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from intervalq.spark._audit.scan.figures import Figures, Piece

Array = npt.NDArray[Any]

SLOT: Final = 1
START: Final = 2
HALO: Final = 4

FIRST_START: Final = 1 << len(KINDS)
LAST_START: Final = FIRST_START << 1
FIRST_SLOT: Final = FIRST_START << 2
LAST_SLOT: Final = FIRST_START << 3
EDGES: Final = FIRST_START | LAST_START | FIRST_SLOT | LAST_SLOT
"""Marks of the rows at a block's edges, beside the kinds in the mask: each is in a group of its own."""

REST: Final = 60.0
"""Seconds after which an idle queue may have been forgotten, so that tickets start over (`IDLE_KEPT`)."""

_MICRO: Final = 1e-6

ENTRY: Final = np.dtype(
    [
        ("q", "i4"),
        ("block", "i8"),
        ("role", "i1"),
        ("at", "f8"),
        ("due", "f8"),
        ("ticket", "i8"),
        ("hash", "i8"),
        ("attempt", "i4"),
    ]
)
"""A row in a block, and its role there."""


def entries(piece: Piece, figures: Figures) -> Array:
    """The rows, each in the blocks that it belongs to."""
    at, due = piece.values("at"), piece.values("due")
    has_slot = figures.sane(due) & ~piece.missing("started") & figures.slots
    piece = piece.where(rows := piece.is_start & (~np.isnan(at) | has_slot))
    at, due, has_slot = at[rows], due[rows], has_slot[rows]
    length, interval = figures.block[piece.queue], figures.interval[piece.queue]
    start, slot = np.floor(at / length), np.floor(np.where(has_slot, due, np.nan) / length)
    after = np.floor((at + interval * figures.reach) / length)
    begun = ~np.isnan(start)
    apart = has_slot & (start != slot)
    roles = [
        (begun, start, np.where(start == slot, START | SLOT, START)),
        (apart, slot, np.full(len(at), SLOT)),
        (after > start, start + 1, np.full(len(at), HALO)),
    ]
    found = np.zeros(sum(int(which.sum()) for which, _, _ in roles), ENTRY)
    done = 0
    for which, block, role in roles:
        some = found[done : done + int(which.sum())]
        done += len(some)
        values = {
            "q": piece.queue,
            "block": block,
            "role": role,
            "at": at,
            "due": due,
            "ticket": np.maximum(piece.ticket, 0),
            "hash": piece.values("hash"),
            "attempt": np.maximum(piece.values("attempt"), 1),
        }
        for name, column in values.items():
            some[name] = column if len(some) == len(column) else column[which]
    return found


def judge_order(rows: Array, figures: Figures) -> Iterator[Array]:
    """Groups by queue, block, bin, flags and bucket of the gap: counts, sums, and the place of the first row.

    A slot from which on the queue's tickets start over is in a group of its own, with its instant.

    Args:
        rows: all `entries` of some blocks.
        figures: of the scan.
    """
    if len(rows):
        order, first = places([np.ascontiguousarray(rows[name]) for name in ("q", "block")])
        for some in np.split(order, first[1:]):
            yield _block(rows[some], figures)


def _block(rows: Array, figures: Figures) -> Array:
    """One block of one queue."""
    found = {name: np.ascontiguousarray(rows[name]) for name in ENTRY.names or ()}
    interval = float(figures.interval[found["q"][0]])
    tolerance = float(figures.allowed(np.array([interval]))[0])
    gap, checks, edges = _by_start(found, figures, interval, tolerance)
    skipped, restarted, more = _by_slot(found, figures, interval, tolerance, edges)
    flags = flags_of(checks | more, figures.live, len(rows)) | edges
    at, due, role = found["at"], found["due"], found["role"]
    where = np.where(np.isnan(at), due, at)
    mine = role != HALO
    anew = restarted[mine]
    groups = grouped(
        ORDER,
        {
            "q": found["q"][mine],
            "block": found["block"][mine],
            "bin": figures.bins(due, at)[mine],
            "flags": flags[mine],
            "bucket": buckets(gap / interval, each=GAP_BUCKETS)[mine],
            "restarted": np.where(anew, np.arange(len(anew)), -1),
        },
        counts={
            "rows": (role[mine] & START) > 0,
            "slots": (role[mine] & SLOT) > 0,
            "unused": np.maximum(skipped[mine] - 1, 0),
        },
        value=gap[mine],
        at=where[mine],
        ticket=found["ticket"][mine],
        due=due[mine],
    )
    # The group of such a slot has its instant.
    groups["restarted"] = np.where(groups["restarted"] >= 0, groups["due"], np.nan)
    return groups


def _sorted(which: Array, keys: tuple[Array, ...]) -> Array:
    """The places of some rows, in the order of keys; the first one is the most important, NaN comes first."""
    some = np.flatnonzero(which)
    order = some[np.argsort(keys[0][some], kind="stable")]
    line = keys[0][order]
    if len(line) > 1 and (line[1:] == line[:-1]).any():  # equal ones are few
        lowest = [np.nan_to_num(key[some], nan=-np.inf) for key in reversed(keys)]
        order = some[np.lexsort(lowest)]
    return order


def _by_start(
    rows: dict[str, Array], figures: Figures, interval: float, tolerance: float
) -> tuple[Array, dict[str, Array], Array]:
    """Compare each start with the one before it: gaps, checks and edges."""
    total, role, strict = len(rows["at"]), rows["role"], figures.burst == 1
    order = _sorted((role & (START | HALO)) > 0, (rows["at"], rows["due"], rows["ticket"]))
    at, due = rows["at"][order], rows["due"][order]
    mine = (role[order] & START) > 0
    gap, wrong, edges = np.full(total, np.nan), np.zeros(total, bool), np.zeros(total, np.int64)
    crowded = wrong.copy()
    if len(order):
        gap[order[1:]] = np.where(mine[1:], at[1:] - at[:-1], np.nan)
        slack = 0.0 if strict else interval * figures.burst
        wrong[order[1:]] = mine[1:] & (due[:-1] > due[1:] + slack + ROUNDING)
        reach = figures.reach
        most = reach * interval - interval * figures.burst - 2 * tolerance - ROUNDING
        crowded[order[reach:]] = mine[reach:] & (at[reach:] - at[:-reach] < most)
        edges[order[:1]] |= np.where(mine[:1], FIRST_START, 0)
        # The last one: no start comes after it.
        last = mine & ~np.append(mine[1:], False)
        edges[order[last]] |= LAST_START
    # A late start takes no more than the tolerance from the gap, and the end of a range that moved takes as
    # much again. Other checks may find one start too many.
    short = min(interval * 0.9, interval - tolerance) - ROUNDING
    none = np.zeros(total, bool)
    checks = {
        "gap_short": gap < short if strict else none,
        "crowded": crowded,
        "order_inverted": wrong,
    }
    return gap, checks, edges


def _by_slot(
    rows: dict[str, Array], figures: Figures, interval: float, tolerance: float, edges: Array
) -> tuple[Array, Array, dict[str, Array]]:
    """Compare each slot with the one before it: skipped tickets, where they start over, and checks."""
    total = len(rows["at"])
    skipped, restarted = np.zeros(total, np.int64), np.zeros(total, bool)
    order = _sorted((rows["role"] & SLOT) > 0, (rows["due"], rows["ticket"], rows["at"]))
    if not len(order):
        return skipped, restarted, {}
    edges[order[0]] |= FIRST_SLOT
    edges[order[-1]] |= LAST_SLOT
    later = order[1:]
    due, ticket = rows["due"][order], rows["ticket"][order]
    known = (ticket[1:] > 0) & (ticket[:-1] > 0)
    step, more = due[1:] - due[:-1], np.where(known, ticket[1:] - ticket[:-1], 0)
    skipped[later] = more
    hashes, attempt = rows["hash"][order], rows["attempt"][order]
    retried = (hashes[1:] == hashes[:-1]) & (attempt[1:] != attempt[:-1])
    shared, again = step < ROUNDING, known & (more == 0)
    anew = (more < 0) & ((step >= REST) | (ticket[1:] == 1))
    restarted[later] = anew & ~shared
    strict = figures.burst == 1
    if "retry_same_slot" not in figures.live:
        retried = np.zeros(len(later), bool)
    found = {
        "retry_same_slot": shared & again & retried,
        "slot_twice": shared & again & ~retried,
        "slot_shared": shared & ~again & strict,
        "ticket_twice": ~shared & again,
        # The last slots of a range may have moved by up to the tolerance.
        "slots_close": ~shared & strict & (step < interval - tolerance - _MICRO - ROUNDING),
        "slot_order": (more < 0) & ~anew & ~shared,
        "queue_restarted": anew & ~shared,
    }
    checks = {}
    for name, some in found.items():
        checks[name] = np.zeros(total, bool)
        checks[name][later] = some
    return skipped, restarted, checks
