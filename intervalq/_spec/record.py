"""The record of one queue, as a store keeps it, and the meaning of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple, Self, TypeAlias

from intervalq._spec.auto import Auto, Pace, are_sound

FOREVER: Final = 2**53 - 1
"""The end of a pause that has none, and the largest number that every store can hold exactly."""

LAYOUT: Final = 6
"""The version of the record's layout. A newer one is refused; an older one is read, and written back as this.

Layout 2 added `late_total`, `error` and `error_until`. Layout 3 added `limits` and `stepped`, layout 4 the
`edge` of a limit, layout 5 `auto`. Layout 6 has other names of fields: see `RENAMED`.
"""

RENAMED: Final = {
    "at": "current_due",
    "void": "revoked_through",
    "held": "held_total",
    "late": "late_total",
    "seen": "last_now",
}
"""The names that some fields had up to layout 5, and those that they have now."""


NO_PACE: Final = 1
"""The interval of a queue that has only limits, in microseconds."""

MAX_LEASES: Final = 1_000_000
"""The maximum number of leases in a record, and the longest list in an answer that these rules produce."""


STARTS: Final = "starts"
"""The unit of a limit that counts starts: a job of cost n counts n."""

BLOCKS: Final = 64
"""How many blocks a window has. Each of them has several cells."""

CELLS: Final = 3
"""How many cells a block has. A unit counts for up to one cell longer than the window is."""

MAX_CELLS: Final = 4_000
"""The maximum number of cells kept for a limit: slots further ahead share the last one."""

MAX_LIMITS: Final = 16
"""The maximum number of limits of a queue."""

MAX_WEIGHT: Final = 1_000
"""The largest weight of a key: a larger one must be a mistake."""


class BadRecord(ValueError):
    """A stored record was not written by these rules."""


class NewerRecord(ValueError):
    """A stored record has the layout of a newer version."""


Units: TypeAlias = tuple[int, ...]
"""How much of each of a queue's limits a ticket takes, in their order; what is left out is 0.

Empty: its cost of each limit that counts starts, and nothing of others."""


class Slot(NamedTuple):
    """A ticket and the slots that it owns: the first is at `due`, in microseconds on the queue's clock."""

    ticket: int
    due: int
    cost: int = 1
    """How many consecutive slots the ticket owns. Its job begins at the first; the others stay empty."""
    units: Units = ()
    """What the ticket takes of each of the queue's limits."""


class Settled(NamedTuple):
    """What the job of a slot took of the queue's limits, now that this is known: see `Advance.settled`."""

    due: int
    """The slot."""
    lag: int
    """`State.lag` when it was granted. It distinguishes the parts of a cell that holds have split."""
    more: Units
    """By how much it is more than the ticket took, of each limit; negative if it is less. As for `Units`,
    what is left out is 0."""
    own: tuple[int, int] | None = None
    """In the process of a key that has limits of its own: `due` and `lag` in its record. Those above are in
    the common record then."""


class HighWaterMark(NamedTuple):
    """The record's counters as a sender knows them. A record that is behind them has lost writes."""

    ticket: int
    due: int
    late_total: int = 0


class Limit(NamedTuple):
    """At most `most` units in any `window`, in addition to the interval: see `intervalq._spec.windows`."""

    most: int
    window: int
    """Microseconds."""
    unit: str = STARTS
    jitter: int = 0
    """By how much longer one call may travel than another, in microseconds: it is added to the window."""
    edge: int | None = None
    """Where one of the windows begins on the store's clock, from 0 up to `window`, if they are fixed: each
    begins where the one before it ends. None: the limit holds in any window."""

    @property
    def block(self) -> int:
        """The length of a block of cells, in microseconds: a 64th of the window."""
        return -(-(self.window + self.jitter) // BLOCKS)

    def to_list(self) -> list[int | str]:
        """[most, window, unit, jitter], and the edge if there is one."""
        return [*self[:4], *([] if self.edge is None else [self.edge])]


class Usage(NamedTuple):
    """The units of one limit that still count, in cells that are sorted by their ends."""

    used: tuple[tuple[int, int, int], ...] = ()
    """Cells of slots that are over: where each ends on the store's clock, without its backward steps; its
    units; and where it ended on the queue's clock, in case that is set back. That is -FOREVER for the granted
    slots of a key under a common rate, which don't move with its clock."""
    ahead: tuple[tuple[int, int], ...] = ()
    """Cells of slots that may still be used: where each ends on the queue's clock, so that every hold moves
    it; and its units."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a queue: the same for all of its shards, and kept in its record."""

    interval: int
    """Microseconds from one slot to the next."""
    burst: int = 1
    """The maximum number of jobs that may begin at once after an idle time; 1 is strict spacing."""
    max_running: int = 0
    """The maximum number of jobs that may run at the same time over all shards; 0 is no limit."""
    tolerance: int = 0
    """How late after its slot a job may begin, in microseconds; 0: a tenth of the interval, times the burst.

    It is the same for all shards, so that a missed slot stays missed, whoever asks for it again.
    """
    ephemeral: bool = False
    """Forget the record once the queue has been idle for a while (keyed queues)."""
    limits: tuple[Limit, ...] = ()
    """Limits in addition to the interval."""
    auto: Auto | None = None
    """The bounds of an interval that finds a server's limit on its own; None: the interval is fixed."""
    own: int = 0
    """In the process of a key under a common rate: how many of the limits, from the first, are its own. The
    others are the common ones; in a store, each of the two records has only its own limits."""

    @property
    def has_pace(self) -> bool:
        """Whether the interval was asked for, and not only limits."""
        return not self.limits or self.interval != NO_PACE

    def agree(self, other: Settings) -> bool:
        """Whether both are the same, except for an interval that changes on its own."""
        return self == other or (self.auto is not None and replace(self, interval=other.interval) == other)


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
    """The part of `held_total` that late grants caused by setting the queue's clock back. Never decreases."""
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
    usage: tuple[Usage, ...] = ()
    """The units of each limit that still count, in the order of the limits."""
    stepped: int = 0
    """With limits: the sum of all backward steps of the store's clock."""
    pace: Pace | None = None
    """With an automatic interval: its last cut."""
    weight: int = 0
    """The weight of a key for all of its handles; 0: each handle has its own."""

    def clock(self, now: int) -> int:
        """The reading of the queue's clock when the store's reads `now`."""
        return (now if self.held_since is None else self.held_since) - self.held_total

    @property
    def lag(self) -> int:
        """How far the queue's clock is behind the store's, not counting backward steps of the store's clock.

        With limits, which alone use it, it never decreases.
        """
        return self.held_total + self.stepped

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
        limited = self.settings.limits
        return {
            "version": LAYOUT,
            "generation": self.generation,
            **{f.name: getattr(self.settings, f.name) for f in fields(self.settings) if f.name not in _APART},
            **{name: getattr(self, name) for name in _NUMBERS},
            "held_since": self.held_since,
            "running": {str(ticket): until for ticket, until in self.running.items()},
            **({"stepped": self.stepped, "limits": _limits_to_list(limited, self.usage)} if limited else {}),
            **({"auto": [*self.settings.auto, *self.pace]} if self.settings.auto and self.pace else {}),
            **({"weight": self.weight} if self.weight else {}),
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
        if version < LAYOUT:
            data = _renamed(data, version)
        generation, ephemeral, running = data.get("generation"), data.get("ephemeral"), data.get("running")
        if not isinstance(generation, str) or not generation:
            raise BadRecord("'generation' must be text")
        if not isinstance(ephemeral, bool):
            raise BadRecord("'ephemeral' must be true or false")
        if not isinstance(running, dict) or not all(
            isinstance(t, str) and t.isascii() and t.isdigit() and len(t) <= 16 for t in running
        ):
            raise BadRecord("'running' must be an object of ticket numbers")
        if len(running) > MAX_LEASES:
            raise BadRecord(f"'running' has more than {MAX_LEASES} leases")
        limits, usage = _limits_from_list(data["limits"]) if "limits" in data else ((), ())
        auto, pace = _auto_from_list(data["auto"], whole(data, "ticket")) if "auto" in data else (None, None)
        state = cls(
            generation=generation,
            settings=Settings(
                whole(data, "interval", least=1),
                whole(data, "burst", least=1),
                whole(data, "max_running"),
                whole(data, "tolerance"),
                ephemeral,
                limits,
                auto,
            ),
            **{name: whole(data, name, least=None if name in _SIGNED else 0) for name in _NUMBERS},
            held_since=None if data.get("held_since") is None else whole(data, "held_since", least=None),
            running={int(ticket): whole(running, ticket, least=None) for ticket in running},
            usage=usage,
            stepped=whole(data, "stepped") if limits else 0,
            pace=pace,
            weight=whole(data, "weight", least=1) if "weight" in data else 0,
        )
        if state.weight > MAX_WEIGHT:
            raise BadRecord("'weight' is out of range")
        if state.current > state.ticket or state.revoked_through > state.ticket:
            raise BadRecord("'current' and 'revoked_through' can't be above 'ticket'")
        return state


_APART: Final = frozenset({"limits", "auto", "own"})
"""The settings that a record has only if there are some, or never."""

_NUMBERS: Final = (
    *("ticket", "due", "current", "current_due", "revoked_through", "held_total", "late_total", "held_until"),
    *("last_now", "error", "error_until"),
)
"""The fields of a record, besides its settings, that are numbers in every record."""

_SIGNED: Final = frozenset({"due", "current_due", "held_total", "held_until", "last_now", "error_until"})
"""Those that may be negative: clocks may start anywhere."""


def _renamed(data: dict[str, Any], version: int) -> dict[str, Any]:
    """A record of an older layout with the names of fields of this one."""
    added = {"late_total": 0, "error": 0, "error_until": 0} if version == 1 else {}
    kept = {name: value for name, value in data.items() if name not in RENAMED.values()}
    return {RENAMED.get(name, name): value for name, value in kept.items()} | added


def whole(data: Mapping[str, Any], name: str, least: int | None = 0) -> int:
    """A number of a record or an answer.

    Raises:
        BadRecord: it is not a number, or out of range.
    """
    value = data.get(name)
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        raise BadRecord(f"'{name}' must be a whole number")
    if not -FOREVER <= value <= FOREVER or (least is not None and value < least):
        raise BadRecord(f"'{name}' is out of range")
    return value


def _limits_to_list(limits: tuple[Limit, ...], usage: tuple[Usage, ...]) -> list[dict[str, Any]]:
    return [
        {
            **{name: value for name, value in limit._asdict().items() if value is not None},
            **{name: [*chain.from_iterable(cells)] for name, cells in use._asdict().items()},
        }
        for limit, use in zip(limits, usage, strict=True)
    ]


def _limits_from_list(data: object) -> tuple[tuple[Limit, ...], tuple[Usage, ...]]:
    if not isinstance(data, list) or not 1 <= len(data) <= MAX_LIMITS:
        raise BadRecord(f"'limits' must be a list of at most {MAX_LIMITS}")
    limits, usage = [], []
    for each in data:
        if not isinstance(each, dict) or not isinstance(each.get("unit"), str):
            raise BadRecord("'limits' must be objects with a unit")
        window, edge = whole(each, "window", 1), None if each.get("edge") is None else whole(each, "edge")
        if edge is not None and edge >= window:
            raise BadRecord("'edge' is out of range")
        limits.append(Limit(whole(each, "most", 1), window, each["unit"], whole(each, "jitter"), edge))
        used, ahead = _cells(each, "used", 3), _cells(each, "ahead", 2)
        usage.append(
            Usage(tuple((end, some, due) for end, some, due in used), tuple((a, b) for a, b in ahead))
        )
    return tuple(limits), tuple(usage)


def _auto_from_list(data: object, ticket: int) -> tuple[Auto, Pace]:
    if not isinstance(data, list):
        raise BadRecord("'auto' must be a list")
    numbers = tuple([whole({"auto": number}, "auto", None) for number in data])
    if not are_sound(numbers, ticket):
        raise BadRecord("'auto' is out of range")
    return Auto(*numbers[:2]), Pace(*numbers[2:])


def _cells(data: Mapping[str, Any], name: str, size: int) -> list[tuple[int, ...]]:
    flat = data.get(name)
    if not isinstance(flat, list) or len(flat) % size or len(flat) > size * MAX_CELLS:
        raise BadRecord(f"'{name}' must be a list of cells that is not too long")
    if {type(number) for number in flat} != {int} or min(flat[1::size]) < 1 or max(map(abs, flat)) > FOREVER:
        for place, number in enumerate(flat):  # the error says what is wrong
            whole({name: number}, name, 1 if place % size == 1 else None)
    cells = [tuple(flat[at : at + size]) for at in range(0, len(flat), size)]
    if any(one[0] >= other[0] for one, other in pairwise(cells)):
        raise BadRecord(f"'{name}' must be in order")
    return cells
