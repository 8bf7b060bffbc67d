"""Commands, each one atomic step on one record or on two, and their answers: frozen, serializable values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import Any, Final, NamedTuple, Self

from intervalq._spec.auto import Auto, Refusal
from intervalq._spec.record import (
    FOREVER,
    BadRecord,
    HighWaterMark,
    Limit,
    Settings,
    Settled,
    Slot,
    State,
    Units,
    whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The fields of every command; each subclass is one atomic step on one record."""

    settings: Settings | None = None
    """Settings with which to create the record if there is none; None: answer that there is none."""
    attach: bool = False
    """Whether this is the sender's first contact: refuse it if its settings aren't those of the record."""
    generation: str | None = None
    """The generation of the record of the sender's tickets, starts and leases; None: it has none of them."""
    nonce: str = ""
    """The generation of the record if this step creates it."""

    def to_dict(self) -> dict[str, Any]:
        """The command as a JSON object, for rules that run elsewhere.

        Fields that are None are omitted, and so are `units` and `settled` if there are none. A slot is
        [ticket, due], or [ticket, due, cost] if it costs more than 1, or [ticket, due, cost, units...]; what
        is settled is [due, lag, more...]. Settings are a list of numbers; if there are limits, a list of
        [most, window, unit, jitter] follows, or [most, window, unit, jitter, edge]. The bounds of an
        automatic interval are beside them, as `settings_auto`: [slowest, fastest].
        """
        data: dict[str, Any] = {"op": type(self).__name__.lower()}
        for name in self.__dataclass_fields__:  # `fields` would make a list of them for each command
            value = getattr(self, name)
            if isinstance(value, Settings):
                numbers = (value.interval, value.burst, value.max_running, value.tolerance)
                if value.auto is not None:
                    data["settings_auto"] = [*value.auto]
                limits = [limit.to_list() for limit in value.limits]
                value = [*numbers, int(value.ephemeral), *([limits] if limits else [])]
            elif isinstance(value, HighWaterMark):
                value = list(value)
            elif isinstance(value, tuple):
                value = [_pair(v) if isinstance(v, Slot) else _listed(v) for v in value]
            if value is not None and (value or name not in _OMITTED):
                data[name] = value
        return data


_OMITTED: Final = frozenset({"units", "settled"})
"""Fields of limits, which most queues don't have: stores of an older version know nothing of them."""

MAX_ANSWERED: Final = 10_000
"""The maximum number of tickets, new or not, that an answer contains."""


def _wholes(data: Mapping[str, Any], name: str, least: int | None = 0) -> tuple[int, ...]:
    values = data.get(name)
    if (
        not isinstance(values, list)
        or len(values) > MAX_ANSWERED
        or (name == "first" and len(values) not in {2, 3})
    ):
        raise BadRecord(f"'{name}' must be a list of numbers that is not too long")
    minimum = -FOREVER if least is None else least
    for value in values:
        if type(value) is not int or not minimum <= value <= FOREVER:
            whole({name: value}, name, least)  # its error says what is wrong
    return tuple(values)


def _first(numbers: tuple[int, ...]) -> Slot:
    return Slot(numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 1)


def _lists(data: Mapping[str, Any], name: str) -> tuple[Units, ...]:
    values = data.get(name)
    if not isinstance(values, list) or len(values) > MAX_ANSWERED:
        raise BadRecord(f"'{name}' must be a list of lists that is not too long")
    return tuple([_wholes({name: value}, name) for value in values])


def in_row(due: int, costs: tuple[int, ...], step: int) -> Sequence[int]:
    """The slots of new tickets, each directly behind those of the one before, up to the last instant."""
    room = (FOREVER - due) // step
    if sum(costs) == len(costs):
        return range(due, due + min(room, len(costs)) * step, step)
    starts = [*accumulate(costs, initial=0)]
    return [due + start * step for start in starts[: max(0, bisect_right(starts, room) - 1)]]


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if not isinstance(value, bool):
        raise BadRecord(f"'{name}' must be true or false")
    return value


def _listed(value: object) -> object:
    if isinstance(value, Settled):
        return [value.due, value.lag, *value.more]
    return value.to_list() if isinstance(value, Limit) else value


def _pair(slot: Slot) -> list[int]:
    ticket, due, cost, units = slot
    return [ticket, due] if cost == 1 and not units else [ticket, due, cost, *units]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(Command):
    """Give slots back, use slots, take tickets: the only step that a busy shard needs."""

    release: tuple[Slot, ...] = ()
    """Slots that won't be used, in ticket order. The last ones issued become free again."""
    slots: tuple[Slot, ...] = ()
    """Slots that the shard is about to use, in ticket order. Each is granted, or missed (a new ticket is
    issued for it), or left alone because the queue is held or the slot is too far ahead. To be granted late,
    a slot must be listed with all tickets from it to the last one that was granted (see `until`)."""
    take: int = 0
    """How many new tickets to issue; one step issues at most MAX_TICKETS."""
    costs: tuple[int, ...] = ()
    """The costs of the new tickets, in slots; omitted ones cost one."""
    units: tuple[Units, ...] = ()
    """What the new tickets take of the queue's limits; for omitted ones see `Units`."""
    settled: tuple[Settled, ...] = ()
    """What jobs of this record's generation really took of the limits, for the cells that still count. A
    difference below the estimate is sent once, even if there is no answer: sent twice, it would be subtracted
    twice. A difference above it is sent until there is an answer."""
    notice: int = 0
    """The time that the answer needs to arrive and its job to begin: no slot that ends sooner is granted."""
    reach: int = 0
    """New slots at most this far ahead are granted in the same step; but only up to `notice` if tickets were
    issued that the sender doesn't know of (`high_water_mark`), because their owners may be late."""
    lease: int = 0
    """How long a job counts as running unless its shard renews the lease; used only with `max_running`."""
    until: int | None = None
    """Until when, on the store's clock, late slots may be granted; None: not at all.

    A duplicate of a request that arrives much later must not hold the queue for the time it took."""
    ahead: int | None = None
    """Listed slots are granted only if the first of them comes within this time; None: always. If it comes
    later, the sender doesn't know yet that the queue's clock was set back: a grant now would deprive late
    owners of earlier slots of theirs. The sender asks again when its slots come.

    A slot that waits for a window was chosen by estimates. If it is listed alone, its ticket is the next one
    to be granted, and the windows have room within this time by now, it is granted there: it is the record's
    last granted slot then. The listed slot must not be used any more: without an answer, it is missed when it
    is listed again. New tickets are only issued if it is granted, and are not granted in the same step.
    Keys under a common rate have no such requests."""
    high_water_mark: HighWaterMark | None = None
    """The highest ticket and the `late_total` that the shard knows. A slot is granted late only if the record
    has the same values, so a duplicate or repeated request sets the queue's clock back only once."""
    error: int = 0
    """By how much the shard may misjudge the store's clock; 0: no more than the tolerance allows."""
    apart: int | None = None
    """With limits: how many new tickets may have slots that don't directly follow each other; behind these,
    no ticket is issued from the first gap on. None: all may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Command):
    """Stop the queue's clock for `length` microseconds, or FOREVER; of two holds, the later end counts.

    With a refusal, an automatic interval is cut.
    """

    length: int = FOREVER
    refusal: Refusal | None = None
    """The start that a server refused, of this record's generation. If its ticket was issued after the last
    cut of an automatic interval, it is cut in the same step; so sent twice, it cuts once. None: no start."""


class Resume(Command):
    """End every pause at once."""

    __slots__ = ()  # a dataclass by inheritance: to make it one again would take time at each import


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Command):
    """Change the queue's settings; None leaves a setting as it is."""

    interval: int | None = None
    burst: int | None = None
    max_running: int | None = None
    limits: tuple[Limit, ...] | None = None
    auto: Auto | None = None
    """The bounds of an automatic interval from now on. None: if an `interval` is given, it is fixed then."""
    weight: int | None = None
    """The weight of a key for all of its handles; 0: each handle has its own again."""


class Reclaim(Command):
    """Revoke all tickets that are not yet granted, because their owners died. Live shards take new ones."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Command):
    """Remove the leases of jobs that ended, and renew those of jobs that still run."""

    ended: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    lease: int = 0


class Inspect(Command):
    """Read the record; this changes and creates nothing."""

    __slots__ = ()


class Drop(Command):
    """Remove the record."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command did."""

    state: State | None
    """The record after the step; None: there is none."""
    now: int
    """The store's clock at the step, in microseconds since 1970 on a real store."""
    refused: bool = False
    """The sender's settings differ from those of the record (`state` shows them); nothing was done.

    At first contact any setting counts; later only the limits do, because commands list what jobs take in the
    order of the limits. Slots of a key under one rate are refused unless the step takes common ones, too."""
    healed: bool = False
    """The record had lost tickets that the sender knew, and was brought forward."""
    granted: tuple[int, ...] = ()
    """Tickets of `Advance.slots` that may be used. For one that came sooner see `Advance.ahead`."""
    missed: tuple[int, ...] = ()
    """Tickets of `Advance.slots` that are no longer valid; unless the queue is held, each gets a new one."""
    at_once: bool = False
    """The first ticket that this answer grants may be used as soon as the answer arrives, before its slot:
    the previous slot is over, and the next one is an interval minus the tolerance after the end of this
    one."""
    first: Slot | None = None
    """The first of the new tickets; the others follow, each after the slots of the one before it."""
    count: int = 0
    """How many new tickets there are."""
    costs: tuple[int, ...] = ()
    """The costs of the new tickets, in slots; empty: one slot each."""
    dues: tuple[int, ...] = ()
    """With limits: the slots of the new tickets; empty: each after the slots of the one before it."""
    units: tuple[Units, ...] = ()
    """With limits: what the new tickets take of them, as it was given; for omitted ones see `Units`."""
    begun: int = 0
    """How many of the new tickets, from the first, were granted in this step."""
    woken: bool = False
    """The step ended a hold: a store that can push wakes the waiting shards."""
    trip: tuple[int, int] | None = field(default=None, compare=False)
    """When the command was sent and the answer arrived, on `intervalq.store.stopwatch`, if the store knows
    this more precisely than its caller: a shorter trip gives a better estimate of the store's clock."""
    blur: int = field(default=0, compare=False)
    """The possible error of `now`, in microseconds, if the store doesn't always learn the time of a step."""

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The answer of rules that run elsewhere: the fields of this class, with `state` as it is stored.

        Raises:
            NewerRecord: the record has the layout of a newer version.
            BadRecord: anything else is wrong; the message says what. All numbers are bounded, so that using
                them takes no unbounded time.
        """
        if not isinstance(data, dict):
            raise BadRecord("an answer must be an object")
        state, first, count = data.get("state"), data.get("first"), whole(data, "count")
        if count > MAX_ANSWERED or (count and (first is None or state is None)):
            raise BadRecord("'count' is out of range")
        slot = None if first is None else _first(_wholes({"first": first}, "first", least=None))
        if slot is not None and (slot.ticket < 1 or slot.cost < 1):
            raise BadRecord("'first' is out of range")
        costs = _wholes(data, "costs", least=1)
        begun = whole(data, "begun")
        dues = _wholes(data, "dues", least=None) if "dues" in data else ()
        units = _lists(data, "units") if "units" in data else ()
        if begun > count or not {len(costs), len(dues)} <= {0, count} or len(units) > count:
            raise BadRecord("'begun', 'costs', 'dues' or 'units' doesn't fit 'count'")
        return cls(
            state=None if state is None else State.from_dict(state),
            now=whole(data, "now", least=None),
            refused=_flag(data, "refused"),
            healed=_flag(data, "healed"),
            granted=_wholes(data, "granted"),
            missed=_wholes(data, "missed"),
            at_once=_flag(data, "at_once"),
            first=slot,
            count=count,
            costs=costs,
            dues=dues,
            units=units,
            begun=begun,
            woken=_flag(data, "woken"),
        )

    @property
    def taken(self) -> tuple[Slot, ...]:
        """All the new tickets with their slots."""
        if self.first is None or self.state is None:
            return ()
        step, costs = self.state.settings.interval, self.costs
        ticket, due = self.first[:2]
        if self.dues:
            each = zip(self.dues, costs or repeat(1), chain(self.units, repeat(())), strict=False)
            return tuple([Slot(ticket + i, *slot) for i, slot in enumerate(each)])
        if not costs:
            dues = range(due, due + self.count * step, step)
            return tuple(map(Slot, range(ticket, ticket + self.count), dues))
        starts = enumerate(accumulate(costs[:-1], initial=0))
        return tuple([Slot(ticket + i, due + at * step, costs[i]) for i, at in starts])


class Place(NamedTuple):
    """A common slot that was taken for a slot of a key."""

    ticket: int
    """The key's ticket."""
    slot: Slot
    """The common slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The common queue of a key, as the sender of a command knows it."""

    record: str
    """Its name in the store."""
    settings: Settings | None
    """Settings with which to create its record if there is none; None: answer that there is none."""
    own_pace: bool
    """Whether the key has an interval of its own; otherwise its interval is the common one."""
    weight: int = 1
    """How many slots the key takes in a turn; with an interval of its own, it is always one."""
    generation: str | None = None
    """The generation of the common record that the sender knows."""
    nonce: str = ""
    """The generation of the common record if this step creates it."""
    high_water_mark: HighWaterMark | None = None
    """The highest ticket and the `late_total` of the common record that the sender knows."""
    places: tuple[Place, ...] = ()
    """The common slots that the sender has for the slots that it lists, without their units."""
    release: tuple[Slot, ...] = ()
    """Common slots that won't be used, in ticket order, with what they take of the common limits."""
    settled: tuple[Settled, ...] = ()
    """What jobs really took of the common limits: see `Advance.settled`. The slots are the common ones."""

    def to_dict(self) -> dict[str, Any]:
        """The value as a JSON object, for rules that run elsewhere; fields that are None are omitted.

        A slot is [ticket, due, cost, units...], and a place has the key's ticket before it. What is settled
        is omitted if there is nothing.
        """
        opening = Advance(settings=self.settings, generation=self.generation, nonce=self.nonce).to_dict()
        data: dict[str, Any] = {
            name: opening[name] for name in ("settings", "generation", "nonce") if name in opening
        }
        data |= {"own_pace": self.own_pace, "weight": self.weight}
        if self.high_water_mark is not None:
            data["high_water_mark"] = list(self.high_water_mark)
        data["places"] = [[place.ticket, *place.slot[:3]] for place in self.places]
        data["release"] = [[*slot[:3], *slot.units] for slot in self.release]
        if self.settled:
            data["settled"] = [[each.due, each.lag, *each.more] for each in self.settled]
        return data


class KeyedAnswer(NamedTuple):
    """What a command on a key did."""

    answer: Answer
    """As if the key were a queue of its own that is held while the common one is. A refused answer without a
    state means that the settings of the common record differ from the sender's."""
    common: State | None
    """The common record after the step; None: there is none."""
    places: tuple[Place, ...] = ()
    """The common slots of the listed or granted slots; the sender repeats them with its next request."""
