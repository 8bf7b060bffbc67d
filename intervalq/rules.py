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

from dataclasses import replace
from typing import Final

from intervalq._spec.commands import (
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    Finish,
    Hold,
    Inspect,
    Reclaim,
    Resume,
)
from intervalq._spec.record import FOREVER, LAYOUT, BadRecord, NewerRecord, Settings, Slot, State

__all__ = [
    "FOREVER",
    "IDLE_KEPT",
    "LAYOUT",
    "MOST_TICKETS",
    "Advance",
    "Answer",
    "BadRecord",
    "Command",
    "Configure",
    "Drop",
    "Finish",
    "Hold",
    "Inspect",
    "NewerRecord",
    "Reclaim",
    "Resume",
    "Settings",
    "Slot",
    "State",
    "apply",
    "lapses",
    "settle",
]

IDLE_KEPT: Final = 60_000_000
"""How long an idle ephemeral record is kept after its last slot, in microseconds."""

MOST_TICKETS: Final = 1_000
"""The most tickets that one step hands out, so that no step holds up a store for long."""


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
    state, answer = _transition(state, command, Answer(state=None, now=now))
    woken = was_held and state.held_since is None
    return state, replace(answer, state=state, woken=woken)


def _transition(state: State, command: Command, answer: Answer) -> tuple[State, Answer]:
    now = answer.now
    match command:
        case Advance():
            return _advance(state, command, answer)
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
    return state, answer


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
    if not command.nonce:
        raise ValueError("a command that may make a record needs a nonce")
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

    state, granted, missed = _use(state, command, now, known=known)
    if known:
        # One that was told to go before may have been used: this may be an old request that arrives again.
        state = _give_back(state, tuple(slot for slot in missed if slot.ticket > state.current))
    answer = replace(
        answer,
        healed=healed,
        granted=tuple(slot.ticket for slot in granted),
        missed=tuple(slot.ticket for slot in missed),
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
    near = max(0, min(count, (clock + command.reach - due) // step + 1))
    begun = 0
    while begun < near and state.held_since is None:
        begun = begun + 1 if state.settings.max_running else near  # any may be the last of `max_running`
        slot = Slot(first.ticket + begun - 1, due + (begun - 1) * step)
        state = _go(state, slot, now, command.lease)
    return state, replace(answer, first=first, count=count, begun=begun)


def _use(state: State, command: Advance, now: int, *, known: bool) -> tuple[State, list[Slot], list[Slot]]:
    """Tell the owner of slots to go: the state, those that were told to go, and those that are dead."""
    granted: list[Slot] = []
    missed: list[Slot] = []
    latest = state.clock(now) - state.tolerance - state.credit
    for slot in command.slots:
        if not known or slot.ticket <= state.void or slot.ticket > state.ticket or slot.due < latest:
            missed.append(slot)
        elif state.held_since is None:
            granted.append(slot)
            if state.settings.max_running:  # any may be the last one
                state = _go(state, slot, now, command.lease)
    if granted and not state.settings.max_running:
        last = Slot(max(slot.ticket for slot in granted), max(slot.due for slot in granted))
        state = _go(state, last, now, command.lease)
    return state, granted, missed


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
    last, due = state.ticket, state.due
    for slot in reversed(slots):
        if slot.ticket != last or slot.ticket <= state.void:
            break
        due = min(due, slot.due - state.settings.interval)
        last -= 1
    return state if due == state.due else replace(state, due=due)


def _void_all(state: State) -> State:
    return replace(state, void=state.ticket, due=state.at)


def _configure(state: State, command: Configure) -> State:
    old = state.settings
    new = Settings(
        old.interval if command.interval is None else command.interval,
        old.burst if command.burst is None else command.burst,
        old.max_running if command.max_running is None else command.max_running,
        old.tolerance,
        old.ephemeral,
    )
    if new.interval > old.interval or new.burst != old.burst:
        # The slots handed out are too close together for the new settings; or with more credit, one that was
        # missed already, and whose place is taken, would count as in time again.
        state = _void_all(state)
    running = state.running if new.max_running else {}
    return replace(state, settings=new, running=running)


def _finish(state: State, command: Finish, now: int) -> State:
    if command.generation != state.generation or not state.settings.max_running:
        return state
    running = {ticket: until for ticket, until in state.running.items() if ticket not in command.ended}
    running |= dict.fromkeys(command.running, now + command.lease)
    return replace(state, running=running)
