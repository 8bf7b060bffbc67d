"""The specification: pure transitions of one queue's record, `(state, command, now) -> (state, answer)`.

Words. A *ticket* is a place in the queue; every ticket owns one *slot*, an instant at which its job may
begin. Slots are instants on the *queue's clock*: the store's clock, less the time that the queue was held
(paused, cooling down, or at its limit of running jobs). The clock stands still while the queue is held, so a
hold moves every slot not yet used, keeps their order, and costs no write a slot. Slots are at least one
interval apart because one atomic step hands them out.

All times are whole microseconds: exact in JSON, in Lua's doubles (below 2**53) and in SQL.

A store either applies these functions to a document, or says the same again in Lua or SQL; the property suite
in `intervalq.testing` holds the second kind to these functions, answer by answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

FOREVER: Final = 2**53 - 1
"""The end of a pause that has none, and the largest number that every store can hold exactly."""

LAYOUT: Final = 1
"""The version of the record's layout; a record of a newer one is refused by every store."""

IDLE_KEPT: Final = 60_000_000
"""How long an idle ephemeral record is kept after its last slot, in microseconds."""

MOST_TICKETS: Final = 1_000
"""The most tickets that one step hands out, so that no step holds up a store for long."""


class BadRecord(ValueError):
    """A stored record isn't one that these rules wrote."""


class NewerRecord(ValueError):
    """A stored record has a layout of a newer version."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A ticket and the instant it owns, on the queue's clock in microseconds."""

    ticket: int
    due: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What a queue runs with: agreed by all of its shards, kept in its record."""

    interval: int
    """Microseconds from one slot to the next."""
    burst: int = 1
    """The most jobs that may begin at once after an idle time; 1 is strict spacing."""
    max_running: int = 0
    """The most jobs that may run at the same time over all shards; 0 is no limit."""
    ephemeral: bool = False
    """Forget the record once the queue has been idle for a while (keyed queues)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The record of one queue."""

    generation: str
    """Random, made with the record: tells a record that was lost and made anew from the one before."""
    settings: Settings
    ticket: int = 0
    """The last ticket issued. Never goes back."""
    due: int
    """The slot of the last ticket issued."""
    current: int = 0
    """The highest ticket that was told to go. Never goes back."""
    at: int
    """The slot of `current`."""
    void: int = 0
    """Tickets up to here that were not yet told to go are dead. Never goes back."""
    held: int = 0
    """How far the queue's clock is behind the store's: all holds so far, less steps back of the store's clock."""
    held_since: int | None = None
    """When the present hold began, on the store's clock; None: the queue isn't held."""
    held_until: int = 0
    """When the present pause ends, on the store's clock; 0: not paused; FOREVER: until somebody resumes."""
    seen: int
    """The last reading of the store's clock."""
    running: dict[int, int] = field(default_factory=dict)
    """With `max_running`: the ticket of each running job, and when its lease lapses on the store's clock."""

    def clock(self, now: int) -> int:
        """The queue's clock when the store's reads `now`."""
        return (now if self.held_since is None else self.held_since) - self.held

    @property
    def full(self) -> bool:
        """Whether as many jobs run as may."""
        return 0 < self.settings.max_running <= len(self.running)

    @property
    def credit(self) -> int:
        """How far behind the clock a slot may lie because idle time was saved up for a burst."""
        return (self.settings.burst - 1) * self.settings.interval

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON has it: flat, and with the version of its layout."""
        return {
            "version": LAYOUT,
            "generation": self.generation,
            **{f.name: getattr(self.settings, f.name) for f in fields(self.settings)},
            **{name: getattr(self, name) for name in _NUMBERS},
            "held_since": self.held_since,
            "running": {str(ticket): until for ticket, until in self.running.items()},
        }

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The record that `to_dict` wrote.

        Raises:
            NewerRecord: its layout is of a newer version.
            BadRecord: anything else is wrong with it; the message says what.
        """
        if not isinstance(data, dict):
            raise BadRecord("a record must be an object")
        version = _whole(data, "version", least=1)
        if version > LAYOUT:
            raise NewerRecord(f"the record has layout {version}, this version of intervalq knows up to {LAYOUT}")
        generation, ephemeral, running = data.get("generation"), data.get("ephemeral"), data.get("running")
        if not isinstance(generation, str) or not generation:
            raise BadRecord("'generation' must be text")
        if not isinstance(ephemeral, bool):
            raise BadRecord("'ephemeral' must be true or false")
        if not isinstance(running, dict) or not all(
            isinstance(t, str) and t.isascii() and t.isdigit() and len(t) <= 16 for t in running
        ):
            raise BadRecord("'running' must be an object of ticket numbers")
        state = cls(
            generation=generation,
            settings=Settings(
                _whole(data, "interval", least=1),
                _whole(data, "burst", least=1),
                _whole(data, "max_running"),
                ephemeral,
            ),
            **{name: _whole(data, name, least=None if name in _SIGNED else 0) for name in _NUMBERS},
            held_since=None if data.get("held_since") is None else _whole(data, "held_since", least=None),
            running={int(ticket): _whole(running, ticket, least=None) for ticket in running},
        )
        if state.current > state.ticket or state.void > state.ticket:
            raise BadRecord("'current' and 'void' can't be above 'ticket'")
        return state


_NUMBERS: Final = ("ticket", "due", "current", "at", "void", "held", "held_until", "seen")
_SIGNED: Final = frozenset({"due", "at", "held", "held_until", "seen"})  # clocks may start anywhere


def _whole(data: dict[str, Any], name: str, least: int | None = 0) -> int:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRecord(f"'{name}' must be a whole number")
    if not -FOREVER <= value <= FOREVER or (least is not None and value < least):
        raise BadRecord(f"'{name}' is out of range")
    return value


# --- commands ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What every command carries; each subclass is one atomic step on one record."""

    settings: Settings | None = None
    """What to make the record with if there is none; None: answer that there is none."""
    attach: bool = False
    """The sender's first contact: refuse it if its settings are not those of the record."""
    generation: str | None = None
    """The record that the sender's tickets, starts and leases are of; None: it has none that matter."""
    nonce: str = ""
    """The generation of the record, should this step make it."""

    def to_dict(self) -> dict[str, Any]:
        """The command as JSON has it, for stores that do the rules elsewhere: None left out, slots as pairs."""
        data: dict[str, Any] = {"op": type(self).__name__.lower()}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Settings):
                value = [value.interval, value.burst, value.max_running, int(value.ephemeral)]
            elif isinstance(value, Slot):
                value = [value.ticket, value.due]
            elif isinstance(value, tuple):
                value = [[v.ticket, v.due] if isinstance(v, Slot) else v for v in value]
            if value is not None:
                data[f.name] = value
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(Command):
    """Give slots back, use slots, take tickets: the one step that a busy shard needs."""

    release: tuple[Slot, ...] = ()
    """Slots that won't be used, in ticket order. The last ones issued become free again."""
    slots: tuple[Slot, ...] = ()
    """Slots that the shard is about to use, in ticket order. Each is told to go, is missed (a new ticket is
    issued for it), or is left alone because the queue is held."""
    take: int = 0
    """How many new tickets to issue, 0 to MOST_TICKETS."""
    notice: int = 0
    """How long the answer needs to come back: the first new slot is no nearer than this."""
    reach: int = 0
    """New slots at most this far ahead are told to go in the same step."""
    tolerance: int = 0
    """How late after its slot a job may begin."""
    lease: int = 0
    """How long a job counts as running unless its shard says so again; used only with `max_running`."""
    mark: Slot | None = None
    """The highest ticket that the shard knows of. One above the record's shows that the store lost writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Command):
    """Stop the queue's clock for `length` microseconds, or FOREVER; of two holds the longer one counts."""

    length: int = FOREVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Command):
    """End every pause at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Command):
    """Change what the queue runs with; None leaves as it is."""

    interval: int | None = None
    burst: int | None = None
    max_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim(Command):
    """Void all tickets that were not yet told to go: their owners are dead. Live shards queue again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Command):
    """Jobs ended, and others still run: their leases are removed and renewed."""

    ended: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    lease: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Command):
    """Look at the record; changes nothing, makes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(Command):
    """Remove the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command did."""

    state: State | None
    """The record after the step; None: there is none."""
    now: int
    """The store's clock at the step, in microseconds since 1970 on a real store."""
    refused: bool = False
    """The sender's settings are not those of the record (`state` shows them); nothing was done."""
    healed: bool = False
    """The record had lost tickets that the sender knew of, and was brought forward."""
    granted: tuple[int, ...] = ()
    """Tickets of `Advance.slots` that were told to go."""
    missed: tuple[int, ...] = ()
    """Tickets of `Advance.slots` that are dead; as many more new ones were issued."""
    first: Slot | None = None
    """The first of the new tickets; the others follow one interval apart."""
    count: int = 0
    """How many new tickets there are."""
    begun: int = 0
    """How many of the new tickets, from the first, were told to go in this step."""
    woken: bool = False
    """The step ended a hold: a store that can push wakes the shards that wait."""

    @property
    def taken(self) -> tuple[Slot, ...]:
        """All the new tickets with their slots."""
        if self.first is None or self.state is None:
            return ()
        step = self.state.settings.interval
        return tuple(Slot(self.first.ticket + i, self.first.due + i * step) for i in range(self.count))


# --- transitions ------------------------------------------------------------------------------------


def apply(state: State | None, command: Command, now: int) -> tuple[State | None, Answer]:
    """Do one command on the record (None: there is none) when the store's clock reads `now`.

    Returns the record to keep (None: keep none) and the answer. When the record returned is the very one
    that was given, there is nothing to write.
    """
    before = state
    was_held = state is not None and state.held_since is not None
    if state is not None:
        state = settle(state, now)
        if lapses(state) <= now:
            state, was_held = None, False
    if isinstance(command, Inspect):
        return before, Answer(state=state, now=now)
    if isinstance(command, Drop):
        return None, Answer(state=None, now=now, woken=was_held)
    if state is None:
        if command.settings is None:
            return before, Answer(state=None, now=now)
        state = _fresh(command, command.settings, now)
    elif command.attach and command.settings not in (None, state.settings):
        return before, Answer(state=state, now=now, refused=True)
    answer = Answer(state=None, now=now)
    match command:
        case Advance():
            state, answer = _advance(state, command, answer)
        case Hold():
            until = min(FOREVER, now + command.length)
            state = _recheck(replace(state, held_until=max(state.held_until, until)), now)
        case Resume():
            state = _recheck(replace(state, held_until=0), now)
        case Configure():
            state = _recheck(_configure(state, command), now)
        case Reclaim():
            state = _void_all(state)
        case Finish():
            state = _recheck(_finish(state, command, now), now)
        case _:
            raise TypeError(f"no rule for {type(command).__name__}")
    woken = was_held and state.held_since is None
    return state, replace(answer, state=state, woken=woken)


def settle(state: State, now: int) -> State:
    """The record as it stands at `now`: steps back of the clock absorbed, holds that have run out ended."""
    back = state.seen - now
    if back > 0:
        # The store's clock was set back. All instants on it move along, so the queue's clock just goes on:
        # it neither repeats itself nor stands still for the length of the step.
        state = replace(
            state,
            held=state.held - back,
            held_since=None if state.held_since is None else state.held_since - back,
            held_until=state.held_until - back if 0 < state.held_until < FOREVER else state.held_until,
            running={ticket: until - back for ticket, until in state.running.items()},
        )
    state = replace(state, seen=now)
    if state.held_since is not None:
        end = max(state.held_until, _full_until(state))
        if end <= now:
            # The hold ended at its own end, not when somebody came to look.
            state = replace(state, held=state.held + end - state.held_since, held_since=None)
    return replace(
        state,
        held_until=0 if state.held_until <= now else state.held_until,
        running={ticket: until for ticket, until in state.running.items() if until > now},
    )


def lapses(state: State) -> int:
    """When the record may be forgotten, on the store's clock; FOREVER unless it is ephemeral and idle.

    By then a new record would treat every job just as this one: no slot is outstanding that could still be
    used, no start is less than an interval ago, and all burst credit has come back.
    """
    if not state.settings.ephemeral or state.held_since is not None or state.running:
        return FOREVER
    slots = state.due + state.held + (state.settings.burst + 1) * state.settings.interval
    return min(FOREVER, slots + IDLE_KEPT)


def _full_until(state: State) -> int:
    """When enough leases will have lapsed to let another job run, if nothing else happens; 0: already."""
    if not state.full:
        return 0
    return sorted(state.running.values())[len(state.running) - state.settings.max_running]


def _fresh(command: Command, settings: Settings, now: int) -> State:
    # A sender that knows an earlier record proves that this one was lost, and that a job may have begun a
    # moment ago: then one quiet interval, without burst credit. Else the queue is new and has been idle.
    due = now if command.generation is not None else now - settings.burst * settings.interval
    return State(generation=command.nonce, settings=settings, due=due, at=due, seen=now)


def _recheck(state: State, now: int) -> State:
    """Begin or end the hold, as the pause and the running jobs demand."""
    stop = state.held_until > now or state.full
    if stop and state.held_since is None:
        # A slot before one that was already told to go would move behind it now: it is dead.
        return replace(state, held_since=now, void=max(state.void, state.current))
    if not stop and state.held_since is not None:
        return replace(state, held=state.held + now - state.held_since, held_since=None)
    return state


def _advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
    now = answer.now
    clock = state.clock(now)
    known = command.generation == state.generation
    mark = command.mark
    healed = known and mark is not None and mark.ticket > state.ticket
    if healed and mark is not None:
        state = replace(state, ticket=mark.ticket, due=max(state.due, mark.due))
    if known:
        state = _give_back(state, command.release)
    if state.held_since is not None:
        return state, replace(answer, healed=healed)

    granted: list[int] = []
    missed: list[Slot] = []
    for slot in command.slots:
        late = clock > slot.due + command.tolerance + state.credit
        if not known or slot.ticket <= state.void or slot.ticket > state.ticket or late:
            missed.append(slot)
        elif state.held_since is None:
            state = _go(state, slot, now, command.lease)
            granted.append(slot.ticket)
    if known:
        # One that was told to go before may have been used: this may be an old request that arrives again.
        state = _give_back(state, tuple(slot for slot in missed if slot.ticket > state.current))
    answer = replace(
        answer, healed=healed, granted=tuple(granted), missed=tuple(slot.ticket for slot in missed)
    )
    if state.held_since is not None:
        return state, answer

    step = state.settings.interval
    due = max(clock + command.notice - state.credit, state.due + step)
    count = min(command.take + len(missed), max(0, (FOREVER - due) // step), MOST_TICKETS)
    if count == 0:
        return state, answer
    first = Slot(state.ticket + 1, due)
    state = replace(state, ticket=state.ticket + count, due=due + (count - 1) * step)
    begun = 0
    while begun < count and state.held_since is None and due + begun * step <= clock + command.reach:
        state = _go(state, Slot(first.ticket + begun, due + begun * step), now, command.lease)
        begun += 1
    return state, replace(answer, first=first, count=count, begun=begun)


def _go(state: State, slot: Slot, now: int, lease: int) -> State:
    """Tell a slot's owner to go. Told twice it is the same: only the owner of a ticket ever asks for it."""
    state = replace(state, current=max(state.current, slot.ticket), at=max(state.at, slot.due))
    if state.settings.max_running:
        state = _recheck(replace(state, running={**state.running, slot.ticket: now + lease}), now)
    return state


def _give_back(state: State, slots: tuple[Slot, ...]) -> State:
    """Free the slots at the very end of those issued; the ticket counter stays where it is.

    A slot that isn't among the last ones can't be used again: later tickets have their place already.
    """
    last = state.ticket
    for slot in reversed(slots):
        if slot.ticket != last or slot.ticket <= state.void:
            break
        state = replace(state, due=min(state.due, slot.due - state.settings.interval))
        last -= 1
    return state


def _void_all(state: State) -> State:
    return replace(state, void=state.ticket, due=state.at)


def _configure(state: State, command: Configure) -> State:
    old = state.settings
    new = Settings(
        old.interval if command.interval is None else command.interval,
        old.burst if command.burst is None else command.burst,
        old.max_running if command.max_running is None else command.max_running,
        old.ephemeral,
    )
    if new.interval > old.interval or new.burst < old.burst:
        # The slots already handed out are too close together for the new settings: take new ones.
        state = _void_all(state)
    running = state.running if new.max_running else {}
    return replace(state, settings=new, running=running)


def _finish(state: State, command: Finish, now: int) -> State:
    if command.generation != state.generation or not state.settings.max_running:
        return state
    running = {ticket: until for ticket, until in state.running.items() if ticket not in command.ended}
    running |= dict.fromkeys(command.running, now + command.lease)
    return replace(state, running=running)
