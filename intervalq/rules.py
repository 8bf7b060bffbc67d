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
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from intervalq._spec import adapt, configure, edges, standing, windows
from intervalq._spec.auto import Auto, Pace, Refusal
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
    in_row,
)
from intervalq._spec.mismatch import disagrees
from intervalq._spec.passing import IDLE_KEPT, lapses, resumed, settle
from intervalq._spec.record import (
    FOREVER,
    LAYOUT,
    RENAMED,
    STARTS,
    BadRecord,
    HighWaterMark,
    Limit,
    NewerRecord,
    Settings,
    Settled,
    Slot,
    State,
    Units,
    Usage,
)

__all__ = [
    "ERROR_KEPT",
    "FOREVER",
    "IDLE_KEPT",
    "LAYOUT",
    "MAX_TICKETS",
    "RENAMED",
    "STARTS",
    "Advance",
    "Answer",
    "Auto",
    "BadRecord",
    "Command",
    "Configure",
    "Drop",
    "Finish",
    "HighWaterMark",
    "Hold",
    "Inspect",
    "Limit",
    "NewerRecord",
    "Pace",
    "Reclaim",
    "Refusal",
    "Resume",
    "Settings",
    "Settled",
    "Slot",
    "State",
    "Units",
    "Usage",
    "apply",
    "lapses",
    "settle",
]

MAX_TICKETS: Final = 1_000
"""The maximum number of tickets that one step issues, so that no step blocks a store for long."""

ERROR_KEPT: Final = 60_000_000
"""How long a shard's reported clock error (`State.error`) is remembered, in microseconds."""


def apply(
    state: State | None, command: Command, now: int, *, with_common: bool = False
) -> tuple[State | None, Answer]:
    """Apply one command to the record (None: there is none) when the store's clock reads `now`.

    Returns the record to keep (None: remove it) and the answer. If the returned record is the same object as
    the given one, nothing needs to be written. For `with_common` see `disagrees`.
    """
    before, was_held = state, state is not None and state.held_since is not None
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
        state = configure.fresh(command, command.settings, now)
    elif disagrees(command, state, with_common=with_common):
        return before, Answer(state=state, now=now, refused=True)
    state, answer = _transition(state, command, Answer(state=None, now=now))
    return state, replace(answer, state=state, woken=was_held and state.held_since is None)


def _transition(state: State, command: Command, answer: Answer) -> tuple[State, Answer]:
    now = answer.now
    match command:
        case Advance():
            return _advance(state, command, answer)
        case Hold():
            state, length = adapt.refused(state, command)
            until = min(FOREVER, now + length)
            state = _recheck(replace(state, held_until=max(state.held_until, until)), now)
        case Resume():
            state = _recheck(replace(state, held_until=0), now)
        case Configure():
            state = _recheck(configure.configured(state, command), now)
        case Reclaim():
            state = configure.revoke_all(state)
        case Finish():
            state = _recheck(_finish(state, command, now), now)
        case _:
            raise TypeError(f"no rule for {type(command).__name__}")
    return state, answer


def _recheck(state: State, now: int) -> State:
    """Begin or end the hold, as the pause and the running jobs require."""
    stop = state.held_until > now or state.full
    if stop and state.held_since is None:
        # An ungranted slot before a granted one would now move behind it: revoke it.
        state = replace(state, held_since=now, revoked_through=max(state.revoked_through, state.current))
        return windows.hold(state)
    return state if stop else resumed(state, now)


def _advance(state: State, command: Advance, answer: Answer) -> tuple[State, Answer]:
    known, healed = command.generation == state.generation, False
    if known:
        state, healed = _heal(state, command.high_water_mark)
        state = _give_back(windows.settle(state, command.settled), command.release)
    if command.error and command.error >= state.error:  # the largest recently reported error counts
        state = replace(state, error=command.error, error_until=answer.now + ERROR_KEPT)
    state, grants = _use(state, command, answer.now, known=known)
    if grants.waits:  # new tickets come behind it, once it is granted
        command = replace(command, take=command.take if grants.granted else 0, reach=-FOREVER)
    if healed or command.slots:
        answer = replace(
            answer,
            healed=healed,
            granted=tuple([slot.ticket for slot in grants.granted]),
            missed=tuple([slot.ticket for slot in grants.missed]),
            at_once=grants.at_once,
        )
    if known and grants.missed:
        # A slot that was granted before may have been used: this may be an old request, delivered again.
        state = _give_back(state, tuple(slot for slot in grants.missed if slot.ticket > state.current))
    if state.held_since is not None:
        return state, answer
    costs = [*(slot.cost for slot in grants.missed), *command.costs[: command.take]]
    count = min(len(grants.missed) + command.take, MAX_TICKETS)
    costs += [1] * (count - len(costs))
    units = (*(slot.units for slot in grants.missed), *command.units)[:count]
    return _take(state, command, tuple(costs[:count]), units, answer)


def _heal(state: State, mark: HighWaterMark | None) -> tuple[State, bool]:
    """Bring forward a record that has lost tickets or late grants of which the sender knows."""
    if mark is None or (mark.ticket <= state.ticket and mark.late_total <= state.late_total):
        return state, False
    if mark.ticket > state.ticket:
        state = windows.heal(state, mark)
        state = replace(state, ticket=mark.ticket, due=max(state.due, mark.due))
    length = max(0, mark.late_total - state.late_total)
    return set_back(edges.moved(state, length), length), True


def set_back(state: State, length: int, slots: Sequence[Slot] = ()) -> State:
    """Set the queue's clock back, as a late grant of slots does."""
    state = replace(state, held_total=state.held_total + length, late_total=state.late_total + length)
    return windows.set_back(state, length, slots)


class _Grants(NamedTuple):
    """The outcome for the slots that a command lists; slots in neither list are left alone."""

    granted: tuple[Slot, ...] = ()
    missed: tuple[Slot, ...] = ()
    at_once: bool = False
    waits: bool = False
    """Whether the only slot waits for a window, and was to be granted sooner."""


def _use(state: State, command: Advance, now: int, *, known: bool) -> tuple[State, _Grants]:
    """Grant the listed slots, or report them as missed."""
    held = state.held_since is not None
    slots, moved = _usable(state, command, now, known=known)
    if held and not slots:
        return state, _Grants(missed=moved)
    if _are_too_far(state, command, slots, now):
        return _sooner(state, command, now)
    late = _are_late(state, command, slots, now)
    mark = command.high_water_mark
    if late:
        if mark is None or mark.late_total != state.late_total or now > (command.until or 0):
            return state, _Grants()  # a duplicate, or its sender didn't know of a late grant: it asks again
        length = _overdue(state, slots[0], command.notice, now)
        late = not edges.are_passed(state, slots, length)
        if late:
            state = _set_back_for(state, slots, length, now)
        elif held:
            return state, _Grants()  # its shard asks again until the lease has ended, and the hold with it
    earliest = state.clock(now) - state.tolerance - state.credit
    least = 0 if late or held else state.revoked_through + 1  # one that came sooner can only be granted late
    in_time = tuple([slot for slot in slots if slot.due >= earliest and slot.ticket >= least])
    granted: list[Slot] = []
    while len(granted) < len(in_time) and (held or state.held_since is None):
        # With `max_running`, each grant may be the last one that the limit allows.
        some = in_time[len(granted) :][: 1 if state.settings.max_running else None]
        granted += some
        state = _grant(state, some, now, command.lease)
    kept = {slot.ticket for slot in in_time}
    missed = moved if held else tuple(slot for slot in command.slots if slot.ticket not in kept)
    return state, _Grants(tuple(granted), missed, late)


def _sooner(state: State, command: Advance, now: int) -> tuple[State, _Grants]:
    """Grant the only listed slot, which is too far ahead, sooner if that is possible: see `Advance.ahead`."""
    if len(command.slots) != 1 or not standing.may_move(state, command):
        return state, _Grants()
    clock, slot = state.clock(now), command.slots[0]
    found = standing.sooner(state, slot, clock, command.notice)
    if found is None or found[1] > clock + (command.ahead or 0):
        return state, _Grants(waits=True)
    state, due, at_once = found
    state = _grant(replace(state, revoked_through=slot.ticket), (slot._replace(due=due),), now, command.lease)
    return state, _Grants(command.slots, (), at_once, waits=True)


def _usable(
    state: State, command: Advance, now: int, *, known: bool
) -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
    """The listed slots that are still valid and can be granted now, and while held, those that never can."""
    if not known or (state.held_since is not None and state.held_until > now):
        return (), ()
    if state.held_since is None:
        return standing.valid(state, command), ()
    # The queue is held only by its limit of running jobs. If an answer was lost, or a shard came too late,
    # its tickets already have leases: they are granted again, unless they were moved.
    slots, moved = standing.leased(state, command)
    return slots if _are_last(state, slots) else (), moved


def _are_too_far(state: State, command: Advance, slots: tuple[Slot, ...], now: int) -> bool:
    """Whether the first of these slots is not granted yet and comes later than its owner believes."""
    ahead = FOREVER if command.ahead is None else command.ahead
    return bool(slots) and slots[0].ticket > state.current and slots[0].due > state.clock(now) + ahead


def _are_last(state: State, slots: tuple[Slot, ...]) -> bool:
    """Whether these are all the tickets from the first of them to the last granted one."""
    listed = {slot.ticket for slot in slots}
    return bool(slots) and all(ticket in listed for ticket in range(slots[0].ticket, state.current + 1))


def _are_late(state: State, command: Advance, slots: tuple[Slot, ...], now: int) -> bool:
    """Whether the first of these slots has come, but will be over before its job can begin, and can move.

    While the queue is at its limit of running jobs, its clock stands still. Whether the slot has come is then
    decided by the time that has really passed.
    """
    if command.until is None or not _are_last(state, slots):
        return False
    elapsed = now - state.held_total
    return (
        slots[0].due <= elapsed and elapsed + command.notice > slots[0].due + state.tolerance + state.credit
    )


def _overdue(state: State, slot: Slot, notice: int, now: int) -> int:
    """How far to set the queue's clock back for a slot to end in `notice` from now."""
    return now - state.held_total + notice - slot.due - state.tolerance - state.credit


def _set_back_for(state: State, slots: Sequence[Slot], length: int, now: int) -> State:
    """Set the queue's clock back by the time for which the first of the slots is overdue.

    Ungranted tickets before it would move behind granted ones, so they are revoked. While the queue is at its
    limit of running jobs, its hold begins anew, so that no time counts both as lateness and as held.
    """
    state = set_back(state, length, slots)
    if state.held_since is not None:
        state = replace(state, held_since=now)
    return replace(state, revoked_through=max(state.revoked_through, slots[0].ticket - 1))


def _take(
    state: State, command: Advance, costs: tuple[int, ...], units: tuple[Units, ...], answer: Answer
) -> tuple[State, Answer]:
    """Issue new tickets with these costs and units, and grant those whose slots come soon."""
    if not costs:
        return state, answer
    clock = state.clock(answer.now)
    state = adapt.grown(state, clock)
    step = state.settings.interval
    free = state.due + step
    due = max(free, clock + max(0, command.notice - state.tolerance) - state.credit)
    dues, at_once, limited = in_row(due, costs, step), free <= clock, bool(state.settings.limits)
    if limited:
        state, dues, has_room = windows.fit(state, costs, units, due, clock, apart=command.apart)
        at_once = at_once and has_room
    count = len(dues)
    if not count:
        return state, answer
    reach, mark = command.reach, command.high_water_mark
    if mark is not None and mark.ticket != state.ticket:
        reach = min(reach, command.notice)  # the sender doesn't know all tickets issued before these
    near, first, costs = bisect_right(dues, clock + reach), state.ticket + 1, costs[:count]
    state = replace(state, ticket=state.ticket + count, due=dues[-1] + (costs[-1] - 1) * step)
    begun = 0
    while begun < near and state.held_since is None:
        begun = begun + 1 if state.settings.max_running else near  # any may be the last of `max_running`
        last = Slot(first + begun - 1, dues[begun - 1], costs[begun - 1])
        state = _grant(state, (last,), answer.now, command.lease)
    return state, replace(
        answer,
        first=Slot(first, dues[0], costs[0]),
        count=count,
        costs=() if sum(costs) == count else costs,
        dues=tuple(dues) if limited else (),
        units=units[:count] if limited else (),
        begun=begun,
        at_once=answer.at_once or (begun > 0 and not answer.granted and at_once),
    )


def _grant(state: State, slots: Sequence[Slot], now: int, lease: int) -> State:
    """Grant slots. A second grant changes nothing: only the owner of a ticket ever asks for it."""
    step = state.settings.interval
    # With a longer interval than at issue, a cost may end after the last instant that a store can hold.
    end = min(FOREVER, max([slot.due + (slot.cost - 1) * step for slot in slots]))
    ticket = max([slot.ticket for slot in slots])
    state = replace(state, current=max(state.current, ticket), current_due=max(state.current_due, end))
    if state.settings.max_running:
        leases = dict.fromkeys([slot.ticket for slot in slots], now + lease)
        state = _recheck(replace(state, running={**state.running, **leases}), now)
    return state


def _give_back(state: State, slots: tuple[Slot, ...]) -> State:
    """Free given slots that are the last ones issued; the ticket counter stays where it is.

    A slot with later tickets behind it can't be used again: these already have their places.
    """
    last, due = state.ticket, state.due
    for slot in reversed(slots):
        if slot.ticket != last or slot.ticket <= state.revoked_through:
            break
        if slot.due <= due:  # otherwise it was given back before
            state = windows.give_back(state, slot)
        due = min(due, slot.due - state.settings.interval)
        last -= 1
    if due == state.due:
        return state
    if state.settings.limits and last <= max(state.current, state.revoked_through):
        due = min(due, state.current_due)  # nobody waits any more, and the next job may fit in sooner
    return replace(state, due=due)


def _finish(state: State, command: Finish, now: int) -> State:
    if command.generation != state.generation or not state.settings.max_running:
        return state
    running = {ticket: until for ticket, until in state.running.items() if ticket not in command.ended}
    running |= dict.fromkeys(command.running, now + command.lease)
    return replace(state, running=running)
