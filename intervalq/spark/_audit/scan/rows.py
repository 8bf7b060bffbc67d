"""The checks of single rows, and lateness. Pure: on a piece of the log, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from intervalq.spark._audit.kinds import BITS
from intervalq.spark._audit.scan.buckets import LATE_BUCKETS, buckets
from intervalq.spark._audit.scan.groups import ROWS, grouped

if TYPE_CHECKING:
    from intervalq.spark._audit.scan.figures import Figures, Piece

Array = npt.NDArray[Any]

ROUNDING: Final = 5e-7
"""Half a microsecond: slots are whole microseconds, but seconds since 1970 are not exact as doubles."""
DAY: Final = 86_400


def flags_of(checks: Mapping[str, Array], live: frozenset[str], rows: int) -> Array:
    """A mask of the kinds whose check is true, for each row."""
    total = np.zeros(rows, np.int64)
    for name, check in checks.items():
        if name in live and check.any():
            total[check] |= 1 << BITS[name]
    return total


def judge_rows(piece: Piece, figures: Figures) -> Array:
    """Groups by queue, bin, lateness bucket and flags: count, lateness, and the place of the first row."""
    starts = piece.where(piece.is_start)
    due, started, ended, at = (starts.values(name) for name in ("due", "started", "ended", "at"))
    rows = len(due)
    sane = figures.sane(due)
    late = np.where(sane, at - due, np.nan)
    interval = figures.interval[starts.queue]
    allowed = figures.allowed(interval)
    live = figures.live
    absurd = np.zeros(rows, bool)
    for name in ("due", "started", "ended"):
        absurd |= ~starts.missing(name) & ~figures.sane(starts.values(name))
    checks = {
        "queue_missing": figures.nameless[starts.queue],
        "key_missing": starts.missing("hash"),
        "ticket_invalid": starts.ticket <= 0,
        "slot_missing": starts.missing("due"),
        "start_missing": starts.missing("started"),
        "end_missing": ~starts.missing("started") & starts.missing("ended"),
        "ended_before_start": figures.sane(started) & figures.sane(ended) & (ended < started - ROUNDING),
        "time_absurd": absurd,
        "start_early": late < -allowed - ROUNDING,
        "start_late": late > allowed + interval * (figures.burst - 1) + ROUNDING,
    }
    if "day_wrong" in live:
        # A start may be on the other side of midnight than its slot; either day is right.
        day = starts.values("day")
        other = (day != np.floor(np.where(sane, due, np.nan) / DAY)) & (day != np.floor(at / DAY))
        checks["day_wrong"] = ~np.isnan(at) & other
    return grouped(
        ROWS,
        {
            "q": starts.queue,
            "bin": figures.bins(due, at),
            "flags": flags_of(checks, live, rows),
            "bucket": buckets(late, each=LATE_BUCKETS),
        },
        value=late,
        at=np.where(sane, due, at),
        ticket=starts.ticket,
    )
