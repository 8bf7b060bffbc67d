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
from intervalq.spark._audit.scan.groups import ORDER, grouped
from intervalq.spark._audit.scan.rows import ROUNDING, flags_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from intervalq.spark._audit.scan.figures import Figures, Piece

Array = npt.NDArray[Any]

SLOT: Final = 1
START: Final = 2
HALO: Final = 4
SLOT_HALO: Final = 8
"""The last slot of the rows before, where a block is judged in several steps: it is not judged, either."""

FIRST_START: Final = 1 << len(KINDS)
LAST_START: Final = FIRST_START << 1
FIRST_SLOT: Final = FIRST_START << 2
LAST_SLOT: Final = FIRST_START << 3
EDGES: Final = FIRST_START | LAST_START | FIRST_SLOT | LAST_SLOT
"""Marks of the rows at a block's edges, beside the kinds in the mask: each is in a group of its own."""

REST: Final = 60.0
"""Seconds after which an idle queue may have been forgotten, so that tickets start over (`IDLE_KEPT`)."""

_MICRO: Final = 1e-6


def entry(figures: Figures) -> np.dtype[Any]:
    """A row in a block, and its role there: only what is needed."""
    fields = [("at", "f8"), ("due", "f8"), ("ticket", "i8"), ("role", "i1")]
    return np.dtype([*fields, ("hash", "i8"), ("attempt", "i4")] if figures.retries else fields)


def entries(piece: Piece, figures: Figures) -> tuple[Array, Array, Array]:
    """The rows, each in the blocks that it belongs to; and the numbers of their queues and blocks."""
    at, due = piece.values("at"), piece.values("due")
    has_slot = figures.sane(due) & ~piece.missing("started") & figures.slots
    rows = piece.is_start & (~np.isnan(at) | has_slot)
    if not rows.all():
        piece = piece.where(rows)
        at, due, has_slot = at[rows], due[rows], has_slot[rows]
    length, interval = figures.block[piece.queue], figures.interval[piece.queue]
    start, slot = np.floor(at / length), np.floor(np.where(has_slot, due, np.nan) / length)
    after = np.floor((at + interval * figures.reach) / length)
    begun = ~np.isnan(start)
    both, apart = start == slot, has_slot & (start != slot)
    roles = [
        (np.flatnonzero(begun), start, np.where(both, START | SLOT, START)),
        (np.flatnonzero(apart), slot, np.full(len(at), SLOT)),
        (np.flatnonzero(after > start), start + 1, np.full(len(at), HALO)),
    ]
    which = np.concatenate([some for some, _, _ in roles])
    found = np.empty(len(which), entry(figures))
    found["at"], found["due"], found["ticket"] = at[which], due[which], np.maximum(piece.ticket, 0)[which]
    if figures.retries:
        found["hash"] = piece.values("hash")[which]
        found["attempt"] = np.maximum(piece.values("attempt"), 1)[which]
    found["role"] = np.concatenate([role[some] for some, _, role in roles])
    block = np.concatenate([block[some] for some, block, _ in roles]).astype(np.int64)
    return found, piece.queue[which], block


def judge_block(rows: Array, figures: Figures, queue: int, block: int, *, edges: int = EDGES) -> Array:
    """Groups by bin, flags and bucket of the gap: counts, sums, and the place of the first row.

    A slot from which on the queue's tickets start over is in a group of its own, with its instant.

    Args:
        rows: all entries of one block.
        figures: of the scan.
        queue: the number of the queue.
        block: that of the block.
        edges: which edges these rows have.
    """
    found = {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}
    interval = float(figures.interval[queue])
    tolerance = float(figures.allowed(np.array([interval]))[0])
    gap, checks, marks = _by_start(found, figures, interval, tolerance)
    skipped, restarted, more = _by_slot(found, figures, interval, tolerance, marks)
    flags = flags_of(checks | more, figures.live, len(rows)) | (marks & edges)
    at, due, role = found["at"], found["due"], found["role"]
    where = np.where(np.isnan(at), due, at)
    mine = (role & (START | SLOT)) > 0
    anew = restarted[mine]
    groups = grouped(
        ORDER,
        {
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
    groups["q"], groups["block"] = queue, block
    # The group of such a slot has its instant.
    groups["restarted"] = np.where(groups["restarted"] >= 0, groups["due"], np.nan)
    return groups


BY_START: Final = ("at", "due", "ticket")
BY_SLOT: Final = ("due", "ticket", "at")


def sorted_by(keys: tuple[str, ...], rows: Mapping[str, Array] | Array, some: Array) -> Array:
    """These places of rows, in the order of keys; the first one is the most important, NaN comes first."""
    first = rows[keys[0]][some]
    order = np.argsort(first, kind="stable")
    line = first[order]
    same = line[1:] == line[:-1]
    order = some[order]
    if same.any():  # equal ones are few
        ties = np.flatnonzero(np.append(same, [False]) | np.concatenate(([False], same)))
        lowest = [np.nan_to_num(rows[key][order[ties]], nan=-np.inf) for key in reversed(keys)]
        order[ties] = order[ties][np.lexsort(lowest)]
    return order


def _by_start(
    rows: dict[str, Array], figures: Figures, interval: float, tolerance: float
) -> tuple[Array, dict[str, Array], Array]:
    """Compare each start with the one before it: gaps, checks and edges."""
    total, role, strict = len(rows["at"]), rows["role"], figures.burst == 1
    order = sorted_by(BY_START, rows, np.flatnonzero(role & (START | HALO)))
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
    order = sorted_by(BY_SLOT, rows, np.flatnonzero(rows["role"] & (SLOT | SLOT_HALO)))
    if not len(order):
        return skipped, restarted, {}
    edges[order[0]] |= FIRST_SLOT
    edges[order[-1]] |= LAST_SLOT
    later = order[1:]
    due, ticket = rows["due"][order], rows["ticket"][order]
    known = (ticket[1:] > 0) & (ticket[:-1] > 0)
    step, more = due[1:] - due[:-1], np.where(known, ticket[1:] - ticket[:-1], 0)
    skipped[later] = more
    retried = np.zeros(len(later), bool)
    if figures.retries:
        hashes, attempt = rows["hash"][order], rows["attempt"][order]
        retried = (hashes[1:] == hashes[:-1]) & (attempt[1:] != attempt[:-1])
    shared, again = step < ROUNDING, known & (more == 0)
    anew = (more < 0) & ((step >= REST) | (ticket[1:] == 1))
    restarted[later] = anew & ~shared
    strict = figures.burst == 1
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
