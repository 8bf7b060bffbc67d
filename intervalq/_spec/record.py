"""The record of one queue, as a store keeps it, and the meaning of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Self

FOREVER: Final = 2**53 - 1
"""The end of a pause that has none, and the largest number that every store can hold exactly."""

LAYOUT: Final = 2
"""The version of the record's layout. Layout 1 is read, and written back as 2; a newer one is refused.

Layout 2 added `late` (see `State.late_total`), `error` and `error_until`.
"""


MOST: Final = 1_000_000
"""The most leases in a record, and the longest list in an answer: these rules never produce more."""


class BadRecord(ValueError):
    """A stored record was not written by these rules."""


class NewerRecord(ValueError):
    """A stored record has the layout of a newer version."""


class Slot(NamedTuple):
    """A ticket and the slots that it owns: the first is at `due`, in microseconds on the queue's clock."""

    ticket: int
    due: int
    cost: int = 1
    """How many consecutive slots the ticket owns. Its job begins at the first; the others stay empty."""


class Mark(NamedTuple):
    """The record's counters as a sender knows them. A record that is behind them has lost writes."""

    ticket: int
    due: int
    late_total: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a queue: the same for all of its shards, and kept in its record."""

    interval: int
    """Microseconds from one slot to the next."""
    burst: int = 1
    """The most jobs that may begin at once after an idle time; 1 is strict spacing."""
    max_running: int = 0
    """The most jobs that may run at the same time over all shards; 0 is no limit."""
    tolerance: int = 0
    """How late after its slot a job may begin, in microseconds; 0: a tenth of the interval, times the burst.

    It is the same for all shards, so that a missed slot stays missed, whoever asks for it again.
    """
    ephemeral: bool = False
    """Forget the record once the queue has been idle for a while (keyed queues)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The record of one queue."""

    generation: str
    """A random value, drawn with the record: it distinguishes a record that was lost and recreated."""
    settings: Settings
    ticket: int = 0
    """The last ticket issued. Never goes back."""
    due: int
    """The last slot of the last ticket issued."""
    current: int = 0
    """The highest ticket that was granted. Never goes back."""
    current_due: int
    """The last slot of `current`."""
    revoked_through: int = 0
    """Tickets up to this one that are not yet granted are invalid. Never goes back."""
    held_total: int = 0
    """How far the queue's clock is behind the store's: all holds, minus backward steps of that clock."""
    late_total: int = 0
    """The part of that which is due to late grants, which set the queue's clock back. Never goes back."""
    held_since: int | None = None
    """When the present hold began, on the store's clock; None: the queue isn't held."""
    held_until: int = 0
    """When the present pause ends, on the store's clock; 0: not paused; FOREVER: when somebody resumes it."""
    last_now: int
    """The last reading of the store's clock."""
    error: int = 0
    """The largest error of the store's clock that distant shards report, in microseconds."""
    error_until: int = 0
    """When `error` is forgotten unless such a shard reports again, on the store's clock; 0: there is none."""
    running: dict[int, int] = field(default_factory=dict)
    """With `max_running`: the ticket of each running job, and when its lease expires on the store's clock."""

    def clock(self, now: int) -> int:
        """The reading of the queue's clock when the store's reads `now`."""
        return (now if self.held_since is None else self.held_since) - self.held_total

    @property
    def full(self) -> bool:
        """Whether as many jobs run as are allowed."""
        return 0 < self.settings.max_running <= len(self.running)

    @property
    def tolerance(self) -> int:
        """How late after its slot a job may begin."""
        settings = self.settings
        window = settings.burst * settings.interval
        return min(settings.tolerance, window) or window // 10

    @property
    def credit(self) -> int:
        """How far before the present a slot may lie because idle time is saved up for a burst."""
        return (self.settings.burst - 1) * self.settings.interval

    def to_dict(self) -> dict[str, Any]:
        """The record as a flat JSON object, with the version of its layout."""
        return {
            "version": LAYOUT,
            "generation": self.generation,
            **{f.name: getattr(self.settings, f.name) for f in fields(self.settings)},
            **{stored: getattr(self, name) for name, stored in _STORED.items()},
            "held_since": self.held_since,
            "running": {str(ticket): until for ticket, until in self.running.items()},
        }

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The record that `to_dict` wrote.

        Raises:
            NewerRecord: it has the layout of a newer version.
            BadRecord: anything else is wrong with it; the message says what.
        """
        if not isinstance(data, dict):
            raise BadRecord("a record must be an object")
        version = whole(data, "version", least=1)
        if version > LAYOUT:
            raise NewerRecord(
                f"the record has layout {version}, but this version of intervalq knows layouts up to {LAYOUT}"
            )
        if version == 1:
            data = {**data, "late": 0, "error": 0, "error_until": 0}
        generation, ephemeral, running = data.get("generation"), data.get("ephemeral"), data.get("running")
        if not isinstance(generation, str) or not generation:
            raise BadRecord("'generation' must be text")
        if not isinstance(ephemeral, bool):
            raise BadRecord("'ephemeral' must be true or false")
        if not isinstance(running, dict) or not all(
            isinstance(t, str) and t.isascii() and t.isdigit() and len(t) <= 16 for t in running
        ):
            raise BadRecord("'running' must be an object of ticket numbers")
        if len(running) > MOST:
            raise BadRecord(f"'running' has more than {MOST} leases")
        state = cls(
            generation=generation,
            settings=Settings(
                whole(data, "interval", least=1),
                whole(data, "burst", least=1),
                whole(data, "max_running"),
                whole(data, "tolerance"),
                ephemeral,
            ),
            **{
                name: whole(data, stored, least=None if stored in _SIGNED else 0)
                for name, stored in _STORED.items()
            },
            held_since=None if data.get("held_since") is None else whole(data, "held_since", least=None),
            running={int(ticket): whole(running, ticket, least=None) for ticket in running},
        )
        if state.current > state.ticket or state.revoked_through > state.ticket:
            raise BadRecord("'current' and 'void' can't be above 'ticket'")
        return state


_STORED: Final = {
    "ticket": "ticket",
    "due": "due",
    "current": "current",
    "current_due": "at",
    "revoked_through": "void",
    "held_total": "held",
    "late_total": "late",
    "held_until": "held_until",
    "last_now": "seen",
    "error": "error",
    "error_until": "error_until",
}
"""The names of the numbers in stored records; these stay the same even if the fields are renamed here."""

_SIGNED: Final = frozenset(
    {"due", "at", "held", "held_until", "seen", "error_until"}
)  # clocks may start anywhere


def whole(data: Mapping[str, Any], name: str, least: int | None = 0) -> int:
    """A number of a record or an answer.

    Raises:
        BadRecord: it is not a number, or out of range.
    """
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRecord(f"'{name}' must be a whole number")
    if not -FOREVER <= value <= FOREVER or (least is not None and value < least):
        raise BadRecord(f"'{name}' is out of range")
    return value
