"""The specification: pure transitions of one queue's record, `(state, command, now) -> (state, answer)`.

Terms. A *ticket* is a place in the queue; every ticket owns one *slot*, an instant at which its job may
begin. Slots are instants on the *queue's clock*: the store's clock minus the time that the queue was held
(paused, cooling down, or at its limit of running jobs). The clock stands still while the queue is held, so a
hold moves every unused slot, keeps their order, and needs no write per slot. Slots are at least one interval
apart because one atomic step hands them out.

A shard asks for a *grant* shortly before it uses a slot. If its process wakes too late for the slot, the slot
is granted again, late: the queue's clock is set back so far that the slot ends only after the answer has
arrived. So lateness costs its own length. This requires that nobody else has been granted a later slot, and
it revokes the ungranted tickets before that slot.

All times are whole microseconds: exact in JSON, in Lua's doubles (below 2**53) and in SQL. A store either
applies these functions to a document, or repeats them in Lua or SQL; the property suite in
`intervalq.testing` compares the second kind with these functions, answer by answer.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

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
from intervalq._spec.record import FOREVER, LAYOUT, BadRecord, Mark, NewerRecord, Settings, Slot, State

__all__ = [
    "ERROR_KEPT",
    "FOREVER",
    "IDLE_KEPT",
    "LAYOUT",
    "MAX_TICKETS",
    "Advance",
    "Answer",
    "BadRecord",
    "Command",
    "Configure",
    "Drop",
    "Finish",
    "Hold",
    "Inspect",
    "Mark",
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

MAX_TICKETS: Final = 1_000
"""The most tickets that one step issues, so that no step blocks a store for long."""

ERROR_KEPT: Final = 60_000_000
"""How long a shard's reported clock error (`State.error`) is remembered, in microseconds."""


def apply(state: State | None, command: Command, now: int) -> tuple[State | None, Answer]:
    """Apply one command to the record (None: there is none) when the store's clock reads `now`.

    Returns the record to keep (None: remove it) and the answer. If the returned record is the same object as
    the given one, nothing needs to be written.
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
            state = _revoke_all(state)
        case Finish():
            state = _recheck(_finish(state, command, now), now)
        case _:
            raise TypeError(f"no rule for {type(command).__name__}")
    return state, answer


def settle(state: State, now: int) -> State:
    """The record as of `now`: backward steps of the clock are absorbed, and expired holds ended."""
    back = state.last_now - now
    if back > 0:
        # The store's clock was set back. All instants on it move with it, so the queue's clock simply goes
        # on: it neither repeats a time nor stands still for the length of the step.
        state = replace(
            state,
            held_total=state.held_total - back,
            held_since=None if state.held_since is None else state.held_since - back,
            held_until=state.held_until - back if 0 < state.held_until < FOREVER else state.held_until,
            error_until=state.error_until - back if state.error else 0,
            running={ticket: until - back for ticket, until in state.running.items()},
        )
    state = replace(state, last_now=now)
    if state.held_since is not None:
        end = max(state.held_until, _full_until(state))
        if end <= now:
            # The hold ended at its own end, not when a command noticed it.
            state = replace(state, held_total=state.held_total + end - state.held_since, held_since=None)
    if state.error and state.error_until <= now:
        state = replace(state, error=0, error_until=0)
    return replace(
        state,
        held_until=0 if state.held_until <= now else state.held_until,
        running={ticket: until for ticket, until in state.running.items() if until > now},
    )


def lapses(state: State) -> int:
    """When the record may be forgotten, on the store's clock; FOREVER unless it is ephemeral and idle.

    From then on a new record would treat every job exactly as this one does: no outstanding slot can still be
    used, no start is less than an interval ago, and all burst credit has come back.
    """
    if not state.settings.ephemeral or state.held_since is not None or state.running:
        return FOREVER
    slots = state.due + state.held_total + (state.settings.burst + 1) * state.settings.interval
    return min(FOREVER, slots + IDLE_KEPT)


def _full_until(state: State) -> int:
    """When enough leases will have expired for another job to run, if nothing else happens; 0: already."""
    if not state.full:
        return 0
    return sorted(state.running.values())[len(state.running) - state.settings.max_running]


def _fresh(command: Command, settings: Settings, now: int) -> State:
    if not command.nonce:
        raise ValueError("a command that may create a record needs a nonce")
    # If the sender knows an earlier record, that one was lost, and a job may have begun just now: start with
    # one quiet interval, without burst credit. Otherwise the queue is new and has been idle.
    due = now if command.generation is not None else now - settings.burst * settings.interval
    return State(generation=command.nonce, settings=settings, due=due, current_due=due, last_now=now)


def _recheck(state: State, now: int) -> State:
    """Begin or end the hold, as the pause and the running jobs require."""
    stop = state.held_until > now or state.full
    if stop and state.held_since is None:
        # An ungranted slot before a granted one would now move behind it: revoke it.
        return replace(state, held_since=now, revoked_through=max(state.revoked_through, state.current))
    if not stop and state.held_since is not None:
        return replace(state, held_total=state.held_total + now - state.held_since, held_since=None)
    return state


def _advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
    known = command.generation == state.generation
    healed = False
    if known:
        state, healed = _heal(state, command.high_water_mark)
        state = _give_back(state, command.release)
    if command.error and command.error >= state.error:  # the largest recently reported error counts
        state = replace(state, error=command.error, error_until=answer.now + ERROR_KEPT)
    state, grants = _use(state, command, answer.now, known=known)
    answer = replace(
        answer,
        healed=healed,
        granted=tuple(slot.ticket for slot in grants.granted),
        missed=tuple(slot.ticket for slot in grants.missed),
        at_once=grants.at_once,
    )
    if known:
        # A slot that was granted before may have been used: this may be an old request, delivered again.
        state = _give_back(state, tuple(slot for slot in grants.missed if slot.ticket > state.current))
    if state.held_since is not None:
        return state, answer
    costs = [*(slot.cost for slot in grants.missed), *command.costs[: command.take]]
    count = min(len(grants.missed) + command.take, MAX_TICKETS)
    costs += [1] * (count - len(costs))
    return _take(state, command, tuple(costs[:count]), answer)


def _heal(state: State, mark: Mark | None) -> tuple[State, bool]:
    """Bring a record forward that has lost tickets or late grants which the sender knows."""
    if mark is None or (mark.ticket <= state.ticket and mark.late_total <= state.late_total):
        return state, False
    if mark.ticket > state.ticket:
        state = replace(state, ticket=mark.ticket, due=max(state.due, mark.due))
    return _set_back(state, max(0, mark.late_total - state.late_total)), True


def _set_back(state: State, length: int) -> State:
    """Set the queue's clock back, as a late grant does."""
    return replace(state, held_total=state.held_total + length, late_total=state.late_total + length)


class _Grants(NamedTuple):
    """The outcome for the slots that a command lists; slots in neither list are left alone."""

    granted: tuple[Slot, ...] = ()
    missed: tuple[Slot, ...] = ()
    at_once: bool = False


def _use(state: State, command: Advance, now: int, *, known: bool) -> tuple[State, _Grants]:
    """Grant the listed slots, or report them as missed."""
    held = state.held_since is not None
    slots = _usable(state, command, now, known=known)
    if (held and not slots) or _are_too_far(state, command, slots, now):
        return state, _Grants()
    late = _are_late(state, command, slots, now)
    mark = command.high_water_mark
    if late:
        if mark is None or mark.late_total != state.late_total or now > (command.until or 0):
            return state, _Grants()  # a duplicate, or its sender didn't know of a late grant: it asks again
        state = _set_back_for(state, slots[0], command.notice, now)
    earliest = state.clock(now) - state.tolerance - state.credit
    in_time = tuple(slot for slot in slots if slot.due >= earliest)
    granted: list[Slot] = []
    for slot in in_time:
        if held or state.held_since is None:  # each grant may be the last one that the limit allows
            granted.append(slot)
            state = _go(state, slot, now, command.lease)
    kept = {slot.ticket for slot in in_time}
    missed = () if held else tuple(slot for slot in command.slots if slot.ticket not in kept)
    return state, _Grants(tuple(granted), missed, late)


def _usable(state: State, command: Advance, now: int, *, known: bool) -> tuple[Slot, ...]:
    """The listed slots that are still valid and can be granted in the queue's present state."""
    if not known:
        return ()
    if state.held_since is None:
        return tuple(slot for slot in command.slots if state.revoked_through < slot.ticket <= state.ticket)
    if state.held_until > now:
        return ()
    # The queue is held only by its limit of running jobs. If an answer was lost, or a shard came too late,
    # its tickets already have leases: they are granted again.
    slots = tuple(
        slot for slot in command.slots if slot.ticket in state.running and slot.ticket <= state.current
    )
    return slots if _are_last(state, slots) else ()


def _are_too_far(state: State, command: Advance, slots: tuple[Slot, ...], now: int) -> bool:
    """Whether the first of these slots is not granted yet and comes later than its owner believes."""
    ahead = FOREVER if command.ahead is None else command.ahead
    return bool(slots) and slots[0].ticket > state.current and slots[0].due > state.clock(now) + ahead


def _are_last(state: State, slots: tuple[Slot, ...]) -> bool:
    """Whether these are all the tickets from the first of them to the last granted one."""
    listed = {slot.ticket for slot in slots}
    return bool(slots) and all(ticket in listed for ticket in range(slots[0].ticket, state.current + 1))


def _are_late(state: State, command: Advance, slots: tuple[Slot, ...], now: int) -> bool:
    """Whether the first of these slots has come, will be over before its job can begin, and may be set back.

    While the queue is at its limit of running jobs, its clock stands still. Whether the slot has come is then
    decided by the time that has really passed.
    """
    if command.until is None or not _are_last(state, slots):
        return False
    elapsed = now - state.held_total
    return (
        slots[0].due <= elapsed and elapsed + command.notice > slots[0].due + state.tolerance + state.credit
    )


def _set_back_for(state: State, slot: Slot, notice: int, now: int) -> State:
    """Set the queue's clock back so far that the slot ends in `notice` from now.

    Ungranted tickets before it would move behind granted ones, so they are revoked. While the queue is at its
    limit of running jobs, its hold begins anew, so the time that counted as lateness is not held twice.
    """
    state = _set_back(state, now - state.held_total + notice - slot.due - state.tolerance - state.credit)
    if state.held_since is not None:
        state = replace(state, held_since=now)
    return replace(state, revoked_through=max(state.revoked_through, slot.ticket - 1))


def _take(state: State, command: Advance, costs: tuple[int, ...], answer: Answer) -> tuple[State, Answer]:
    """Issue new tickets, and grant those whose slots come soon."""
    clock, step = state.clock(answer.now), state.settings.interval
    free = state.due + step
    due = max(free, clock + max(0, command.notice - state.tolerance) - state.credit)
    starts = [*accumulate(costs, initial=0)]
    room = (FOREVER - due) // step
    count = bisect_right(starts, room) - 1
    if count <= 0:
        return state, answer
    reach, mark = command.reach, command.high_water_mark
    if mark is not None and mark.ticket != state.ticket:
        reach = min(reach, command.notice)  # tickets were issued before these that the sender doesn't know of
    near = bisect_right(starts, (clock + reach - due) // step, 0, count)
    first = Slot(state.ticket + 1, due, costs[0])
    state = replace(state, ticket=state.ticket + count, due=due + (starts[count] - 1) * step)
    begun = 0
    while begun < near and state.held_since is None:
        begun = begun + 1 if state.settings.max_running else near  # any may be the last of `max_running`
        last = Slot(first.ticket + begun - 1, due + starts[begun - 1] * step, costs[begun - 1])
        state = _go(state, last, answer.now, command.lease)
    return state, replace(
        answer,
        first=first,
        count=count,
        costs=() if starts[count] == count else costs[:count],
        begun=begun,
        at_once=answer.at_once or (begun > 0 and not answer.granted and free <= clock),
    )


def _go(state: State, slot: Slot, now: int, lease: int) -> State:
    """Grant a slot. A second grant changes nothing: only the owner of a ticket ever asks for it."""
    end = slot.due + (slot.cost - 1) * state.settings.interval
    state = replace(state, current=max(state.current, slot.ticket), current_due=max(state.current_due, end))
    if state.settings.max_running:
        state = _recheck(replace(state, running={**state.running, slot.ticket: now + lease}), now)
    return state


def _give_back(state: State, slots: tuple[Slot, ...]) -> State:
    """Free given slots that are the last ones issued; the ticket counter stays where it is.

    A slot with later tickets behind it can't be used again: these already have their places.
    """
    last, due = state.ticket, state.due
    for slot in reversed(slots):
        if slot.ticket != last or slot.ticket <= state.revoked_through:
            break
        due = min(due, slot.due - state.settings.interval)
        last -= 1
    return state if due == state.due else replace(state, due=due)


def _revoke_all(state: State) -> State:
    return replace(state, revoked_through=state.ticket, due=state.current_due)


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
        # The slots handed out are too close together for the new settings; or, with more credit, a slot that
        # was already missed, and whose place is taken, would count as in time again.
        state = _revoke_all(state)
    running = state.running if new.max_running else {}
    return replace(state, settings=new, running=running)


def _finish(state: State, command: Finish, now: int) -> State:
    if command.generation != state.generation or not state.settings.max_running:
        return state
    running = {ticket: until for ticket, until in state.running.items() if ticket not in command.ended}
    running |= dict.fromkeys(command.running, now + command.lease)
    return replace(state, running=running)
