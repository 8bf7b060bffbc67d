"""What an audit checks: every kind of finding, with its name, its meaning and the columns that it needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of violation, or of note, that an audit may find in a log."""

    name: str
    meaning: str
    """One line that describes what is counted."""
    needs: tuple[str, ...] = ()
    """Columns of the log that the check needs."""
    violation: bool = True
    """False: a note, which doesn't make an audit fail."""


_SLOT = ("ticket", "due", "started")

KINDS: Final = (
    # Row by row.
    Kind("queue_missing", "a start of no queue", ("queue",)),
    Kind("key_missing", "a start with no key", ("key",)),
    Kind("ticket_invalid", "a start whose ticket is missing or not positive", ("ticket",)),
    Kind("slot_missing", "a start with no slot", ("due",)),
    Kind("start_missing", "a row that was not replayed and has no start", ("started",)),
    Kind("end_missing", "a start with no end", ("started", "ended")),
    Kind("ended_before_start", "an end that is before its start", ("started", "ended")),
    Kind("time_absurd", "a time that is before the year 2000, in the future, or not a number"),
    Kind("day_wrong", "a start in the partition of another day", ("day", "started")),
    Kind("start_early", "a start more than the tolerance before its slot", ("due", "started")),
    Kind("start_late", "a start more than the tolerance after its slot", ("due", "started")),
    # In the order of starts.
    Kind("gap_short", "a start too soon after the one before it", ("started",)),
    Kind("crowded", "a start preceded by more starts than fit in that time", ("started",)),
    Kind("order_inverted", "a start whose slot is before that of the start before it", ("due", "started")),
    # In the order of slots.
    Kind("slot_twice", "a slot that started two jobs", _SLOT),
    Kind("slot_shared", "two tickets with the same slot", ("due", "started")),
    Kind("ticket_twice", "a ticket that was used again in another slot", _SLOT),
    Kind("slots_close", "slots less than the interval and its tolerance apart", ("due", "started")),
    Kind("slot_order", "a later slot with a lower ticket", _SLOT),
    Kind("retry_same_slot", "an attempt that had no slot of its own", (*_SLOT, "key", "attempt")),
    # By key.
    Kind("key_twice", "an attempt at a key that was started again", ("key",)),
    Kind("attempt_skipped", "a key of which an earlier attempt is missing", ("key", "attempt")),
    Kind("attempt_order", "a key whose attempts have tickets in another order", ("key", "attempt", "ticket")),
    Kind(
        "attempt_overlap",
        "a key whose attempt began before the one before it ended",
        ("key", "attempt", "started", "ended"),
    ),
    # By the jobs or refusals at the time.
    Kind("cool_down_broken", "a start during a rejection's cool-down", ("started", "refused", "retry_after")),
    Kind("over_max_running", "a start while max_running jobs were running", ("started", "ended")),
    # Notes.
    Kind("tickets_unused", "tickets of which the log has no start", _SLOT, violation=False),
    Kind("queue_restarted", "the tickets of a queue start over after a pause", _SLOT, violation=False),
    Kind("call_refused", "a call that was rejected (429)", ("refused",), violation=False),
    Kind("call_failed", "a call that failed", ("status",), violation=False),
    Kind("call_retried", "a second or later attempt", ("attempt",), violation=False),
    Kind("row_replayed", "a row that came from the ledger: no call", ("replayed",), violation=False),
    Kind(
        "replay_unknown",
        "a replayed key whose call is not in the log",
        ("key", "replayed"),
        violation=False,
    ),
    Kind(
        "clock_off",
        "a host whose clock is ahead, or whose starts are all late",
        ("host", "due", "started"),
        violation=False,
    ),
    Kind(
        "host_early",
        "a host whose clock is behind, or whose starts are all early",
        ("host", "due", "started"),
        violation=False,
    ),
    Kind(
        "clock_jumped",
        "a host whose clock was set, or whose starts were all late or early from then on",
        ("host", "due", "started"),
        violation=False,
    ),
    Kind(
        "shard_starved",
        "a day on which few shards had nearly all starts",
        ("shard", "started"),
        violation=False,
    ),
    Kind("interval_guessed", "a queue whose interval was guessed from its slots", violation=False),
)
"""Unused tickets are a note: others may use the queue without a log, and slots that nobody could use in time
are given up by design. So are clocks: corrected times are judged, no start depends on a host's clock, and a
log alone can't tell a clock that is behind from starts that are early.
"""

BY_NAME: Final = {kind.name: kind for kind in KINDS}
BITS: Final = {kind.name: bit for bit, kind in enumerate(KINDS)}


def names(flags: int) -> Iterator[str]:
    """The kinds of a mask."""
    return (name for name, bit in BITS.items() if flags >> bit & 1)


@dataclass(frozen=True, slots=True)
class Example:
    """A place in the log."""

    queue: str
    ticket: int | None
    at: float | None
    """Seconds since 1970 on the store's clock; None: unknown."""
    what: str = ""


@dataclass(slots=True)
class Found:
    """How often one kind was found, and where."""

    count: int
    examples: list[Example]


EXAMPLES: Final = 5
"""How many examples of a kind are kept: enough to investigate, few enough to print."""


class Findings:
    """The findings so far, by kind."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}

    def add(self, kind: str, count: int, examples: Iterable[Example] = ()) -> None:
        """Count more of a kind; a count of 0 leaves no trace."""
        if count <= 0:
            return
        found = self._found.setdefault(kind, Found(0, []))
        found.count += count
        found.examples.extend(examples)
        if len(found.examples) > EXAMPLES:
            found.examples.sort(key=lambda example: (example.at is None, example.at or 0.0))
            del found.examples[EXAMPLES:]

    def of(self, *, violation: bool) -> dict[str, Found]:
        """Violations or notes, in the order of `KINDS`."""
        return {
            kind.name: self._found[kind.name]
            for kind in KINDS
            if kind.violation is violation and kind.name in self._found
        }
