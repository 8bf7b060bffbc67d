"""Keys under one rate: the step of a key's queue that takes slots of the common queue, too. Pure functions.

Each key has a record, and all keys of a queue have a common one, which is an ordinary queue whose tickets the
keys take. When a slot of a key could be granted, the same step takes a common slot for it, its *place*. If
that lies later, the clock of the key is set back by the difference, as a late grant does: then both slots
coincide, and the later ones of the key move along. So a key that waits for the others is a key that is held,
and no record knows another key. When the place comes, one step grants both slots.

Keys get places in the order in which they request them, and a key requests its next turn when its last slot
comes: this is deficit round robin. A turn is `weight` slots, or more if the interval is too short for one
request per slot. A key without rivals gets as many slots as it requests.

Limits beside the common pace count in the common record, which every place charges with what its job takes.
Where a place has to wait for room, the places behind it don't directly follow any more. A key takes at most
its weight of such places in a step, and the step grants only slots up to the first gap.

A key may have limits of its own, which count in its record as those of any queue do: its slots come where its
windows have room, and its places no sooner. Where a place lies later, the units of the key's slots move along
with them, except those of granted slots, which stay where they are by the store's clock. A ticket of a key
lists what it takes of the key's limits first, and of the common ones behind these. Windows of a key can't be
fixed (`Limit.edge`): its slots would move across their edges.

The sender remembers its places. The places of a process that dies stay empty, as its slots would in any
queue, and delay nobody. A pause of the common queue pauses every key; a pause of a key, only that key. By how
much distant senders may misjudge the store's clock (`State.error`) is kept in both records.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise, repeat, takewhile
from typing import Final, NamedTuple

from intervalq._spec import configure, windows
from intervalq._spec.commands import Advance, Answer, Command, Common, Drop, Inspect, KeyedAnswer, Place
from intervalq._spec.keys import fixed, sharing
from intervalq._spec.keys.sharing import has_own_pace, is_plain, shares
from intervalq._spec.mismatch import disagrees
from intervalq._spec.passing import lapses, settle
from intervalq._spec.record import HighWaterMark, Settings, Slot, State
from intervalq.rules import MAX_TICKETS, apply, set_back

__all__ = ["TURN", "Common", "KeyedAnswer", "Place", "apply_keyed", "has_own_pace"]
__all__ += ["is_plain", "shares", "shown"]

TURN: Final = 5_000
"""The minimum duration of a turn per unit of weight, in microseconds, if several slots fit into it."""

_NEVER: Final = -1
"""The value of `reach` with which no new ticket is granted."""


def apply_keyed(
    state: State | None, common: State | None, command: Command, known: Common, now: int
) -> tuple[State | None, State | None, KeyedAnswer]:
    """Apply one command to the record of a key (None: there is none) and the common one.

    Returns both records to keep and the answer. If a returned record is the same object as the given one,
    nothing needs to be written. Only `Advance` changes the common record; any command but `Inspect` and
    `Drop` creates it.
    """
    given, before, written = state, common, False
    if isinstance(command, Inspect | Drop):
        common = None if common is None else settle(common, now)
    else:
        common, opened = _opened(common, command, known, now)
        if common is None or opened.refused:
            return state, before, KeyedAnswer(replace(opened, state=None), common)
        written = before is None or opened.healed
    pace = known.settings if common is None else common.settings
    if pace is not None:
        state, command = _paced(state, command, pace, known, _tolerance(common, pace))
    paced = state
    places: tuple[Place, ...] = ()
    if isinstance(command, Advance) and common is not None:
        opened_common = common
        state, common, answer, places = _advance(state, common, command, known, now)
        written = written or common is not opened_common
    else:
        state, answer = apply(state, command, now, with_common=True)
    state = given if state is paced else state  # if nothing was done, nothing is written
    return state, common if written else before, KeyedAnswer(shown(answer, common), common, places)


def _opened(common: State | None, command: Command, known: Common, now: int) -> tuple[State | None, Answer]:
    """The common record as of now, created or healed, unless its settings differ from the sender's."""
    opening = Advance(
        settings=known.settings,
        attach=command.attach,
        generation=known.generation,
        nonce=known.nonce,
        high_water_mark=known.high_water_mark,
    )
    _, answer = apply(common, opening, now)
    return answer.state, answer


def _tolerance(common: State | None, pace: Settings) -> int:
    window = pace.burst * pace.interval
    tolerance = min(pace.tolerance, window) or window // 10 if common is None else common.tolerance
    return max(1, min(tolerance, pace.interval - 1))  # so that one slot of a key is over when the next comes


def _paced(
    state: State | None, command: Command, pace: Settings, known: Common, tolerance: int
) -> tuple[State | None, Command]:
    """The record and the command with what follows from the common settings.

    A job of a key begins no later than its common slot allows, so it has the common tolerance, and no burst.
    A key without a pace of its own has the common one. That only spaces its slots, so a change of the common
    pace voids none of them, unless the key has limits: these depend on how late its jobs may begin.

    The record says whether its key has a pace, for handles that don't know the common one, or disagree.
    """

    def changed(settings: Settings, *, own_pace: bool) -> Settings:
        interval = settings.interval if own_pace else pace.interval
        after = replace(settings, interval=interval, tolerance=tolerance, burst=1)
        return settings if after == settings else after

    own_pace = known.own_pace
    if command.settings is not None:
        nonce = sharing.generation_of(command.nonce, own_pace=own_pace)
        command = replace(command, settings=changed(command.settings, own_pace=own_pace), nonce=nonce)
    if state is not None:
        if not isinstance(command, Inspect | Drop):
            state = sharing.taken_over(state, own_pace=own_pace)
        after = changed(state.settings, own_pace=sharing.as_recorded(known, state).own_pace)
        state = state if after is state.settings else _with_settings(state, after)
    return state, command


def _with_settings(state: State, settings: Settings) -> State:
    """The record with settings that follow from others of the common record, as `configure` would do it."""
    after = replace(state, settings=settings)
    early = windows.lateness(state) - windows.lateness(after) if settings.limits else 0
    if early:
        after = configure.revoke_all(after)
    return configure.prolong(after, early) if early > 0 else after


def _advance(
    state: State | None, common: State, command: Advance, known: Common, now: int
) -> tuple[State | None, State, Answer, tuple[Place, ...]]:
    """Do the step as if the key were alone, then request the granted slots from the common queue, too."""
    if (known.release or known.settled) and known.generation == common.generation:
        report = Advance(generation=known.generation, release=known.release, settled=known.settled)
        common = _applied(common, report, now)[0]
    again: tuple[Slot, ...] = ()
    present = None if state is None else settle(state, now)
    if present is not None and lapses(present) <= now:
        present = None
    if present is None or command.generation != present.generation:
        known = replace(known, places=())  # they belong to tickets of another record of the key
    known = sharing.as_recorded(known, present)
    goes_on = present is not None and not disagrees(command, present, with_common=True)
    was_held = goes_on and state is not None and state.held_since is not None
    if present is not None and goes_on:
        if command.settled and command.generation == present.generation:
            present = fixed.settle(present, command.settled)
        again = _granted_before(present, command)
        if (length := _moved(present, common, command, known, now)) > 0:
            if (mark := command.high_water_mark) is not None and mark.late_total == present.late_total:
                command = replace(command, high_water_mark=mark._replace(late_total=mark.late_total + length))
            present = _waiting(present, length, again, present.current)
        state, command = present, replace(command, settled=())
    reach = command.reach if command.ahead is None else command.ahead
    command = _for_one_turn(present, common, command, known, now)
    after, answer = apply(state, command, now, with_common=True)
    run = _granted(command, answer)
    if after is None or not run:
        return after, common, replace(answer, woken=_is_woken(after, was_held=was_held)), known.places
    own, current = len(after.settings.limits), 0 if present is None else present.current
    asking = _asking(common, replace(command, error=after.error), known, reach)
    places = tuple([slot._replace(units=slot.units[own:]) for slot in run])
    common, got = _places(common, asking, known, (places, run[0].due + after.held_total), now)
    granted = run[: got.granted]
    if len(granted) < len(run):
        left = run[len(granted) :]
        command = replace(
            command, slots=tuple([slot for slot in command.slots if slot not in left]), reach=_NEVER
        )
        after, answer = apply(state, command, now, with_common=True)
        assert after is not None
    later = got.slots[0].due + common.held_total - run[0].due - after.held_total if got.slots else 0
    if later > 0 and (granted or _is_next(run[0], present)):
        after = _waiting(after, later, again, current)
    after = fixed.fix(after, granted, current)
    if granted:
        # Other tickets before them can't be granted any more: they would move behind these.
        after = replace(after, revoked_through=max(after.revoked_through, granted[0].ticket - 1))
    answer = replace(
        answer, state=after, woken=_is_woken(after, was_held=was_held), at_once=answer.at_once and got.at_once
    )
    pairs = zip(run, got.slots, strict=False)
    return after, common, answer, tuple([Place(slot.ticket, its._replace(units=())) for slot, its in pairs])


def _is_next(slot: Slot, state: State | None) -> bool:
    """Whether no earlier ticket of the key waits, whose slot would move past its place."""
    return state is None or slot.ticket <= max(state.current, state.revoked_through) + 1


def _granted_before(state: State, command: Advance) -> tuple[Slot, ...]:
    """The listed slots of a key that are granted and may be granted again."""
    if command.generation != state.generation:
        return ()
    return tuple([slot for slot in command.slots if state.revoked_through < slot.ticket <= state.current])


def _waiting(state: State, length: int, again: tuple[Slot, ...], current: int) -> State:
    """The record of a key whose clock is set back because a slot waits for its place.

    Tickets up to `current` were granted before. If the key has limits, those that aren't listed `again` can't
    be granted again: their units stay where they are (see `fixed`), and would be taken to be elsewhere.
    """
    state = set_back(state, length, again)
    if not state.settings.limits:
        return state
    last = current - len(again)
    if not again or again[0].ticket != last + 1:  # these are not the last granted ones
        last = current
    return replace(state, revoked_through=max(state.revoked_through, last))


def _is_woken(state: State | None, *, was_held: bool) -> bool:
    """Whether a step ended a hold of the key's record."""
    return was_held and state is not None and state.held_since is None


def _granted(command: Advance, answer: Answer) -> tuple[Slot, ...]:
    """The slots that a step granted, one directly behind the other, with their units."""
    listed = tuple([slot for slot in command.slots if slot.ticket in answer.granted])
    if listed or not answer.begun:
        return listed
    missed = [slot.units for slot in command.slots if slot.ticket in answer.missed]
    units = chain(missed, command.units, repeat(()))
    new = zip(answer.taken[: answer.begun], units, strict=False)
    return tuple([slot._replace(units=taken) for slot, taken in new])


def _for_one_turn(state: State | None, common: State, command: Advance, known: Common, now: int) -> Advance:
    """The command with no more slots than the key may take of the common ones in this step.

    These slots directly follow each other in both queues, so that they all move by the same length.
    """
    settings = command.settings if state is None else state.settings
    if settings is None:
        return command  # there is no record, and none is created
    if common.held_since is not None or not shares(common.settings) or not is_plain(settings):
        return replace(command, slots=(), take=0, costs=(), units=())
    current, revoked = (0, 0) if state is None else (state.current, state.revoked_through)
    step, alone = settings.interval, not known.own_pace and _is_alone(state, common, now)
    most = MAX_TICKETS if alone else 1 if known.own_pace else known.weight * max(1, TURN // step)
    valid: list[Slot] = []
    for slot in command.slots:
        if slot.ticket <= revoked:
            continue
        if valid and not _directly_follows(valid[-1], slot, step):
            break
        if len(valid) >= most and slot.ticket > current:
            break
        valid.append(slot)
    is_held = state is not None and state.held_since is not None
    revoked_ones = [slot for slot in command.slots if slot.ticket <= revoked and not is_held]
    # A new ticket is granted only if its slot is free; a second one would come after this time.
    soon = max(0, command.notice - min(settings.tolerance, step))
    # Only an ordinary queue grants a slot late that was revoked.
    reach, until = (_NEVER, command.until) if valid else (min(command.reach, soon), None)
    return replace(command, slots=(*revoked_ones, *valid), reach=reach, until=until)


def _moved(state: State, common: State, command: Advance, known: Common, now: int) -> int:
    """How far to set a key's clock back before the step, because the key waits for its place.

    Late grants to other keys may have moved the place of the first listed slot away from that slot. The key
    waits for its place. Otherwise a place that is yet to come would be lost because the slot itself is over.

    New tickets follow directly those that wait, which may all be over: the queue may have been paused. If the
    clock went on past these, the new ones would come as much later when these are granted.
    """
    is_held = common.held_since is not None or state.held_since is not None
    settings = command.settings or state.settings
    if is_held or not (shares(common.settings) and is_plain(state.settings) and is_plain(settings)):
        return 0
    waits = state.ticket > max(state.current, state.revoked_through)
    length = state.clock(now) - state.due if command.take and waits else 0
    if command.attach or known.generation != common.generation or command.generation != state.generation:
        return length
    places = dict(known.places)
    for slot in command.slots:
        if slot.ticket > state.revoked_through:
            place = places.get(slot.ticket)
            if place is None or not common.revoked_through < place.ticket <= common.ticket:
                return length
            return max(length, place.due + common.held_total - slot.due - state.held_total)
    return length


def _is_alone(state: State | None, common: State, now: int) -> bool:
    """Whether nobody waits for a common slot behind the last one of this key."""
    if common.due + common.settings.interval <= common.clock(now):
        return True
    last = None if state is None else state.current_due + state.held_total
    return last == common.due + common.held_total


def _directly_follows(slot: Slot, other: Slot, step: int) -> bool:
    return other.ticket == slot.ticket + 1 and other.due == slot.due + slot.cost * step


class _Got(NamedTuple):
    """The common slots for the first slots of a key, in the same order."""

    slots: tuple[Slot, ...]
    granted: int
    """How many of them are granted."""
    at_once: bool


def _asking(common: State, command: Advance, known: Common, reach: int) -> Advance:
    """The command to the common queue that corresponds to one to a key."""
    late = 0 if known.high_water_mark is None else known.high_water_mark.late_total
    return Advance(
        apart=known.weight,
        generation=common.generation,
        notice=command.notice,
        reach=reach,
        lease=command.lease,
        until=command.until,
        ahead=command.ahead,
        error=command.error,
        high_water_mark=HighWaterMark(common.ticket, common.due, late),
    )


def _places(
    common: State, asking: Advance, known: Common, wanted: tuple[tuple[Slot, ...], int], now: int
) -> tuple[State, _Got]:
    """Request the known places of slots, or take new places that aren't before the given instant."""
    run, instant = wanted
    had = _known_places(common, known, run)
    if had:
        common, answer = _applied(common, replace(asking, slots=had), now)
        if had[0].ticket in answer.granted:
            granted = len([slot for slot in had if slot.ticket in answer.granted])
            got = _Got(had, granted, answer.at_once)
        elif had[0].ticket in answer.missed:
            got = _new(common, answer)
        else:
            return common, _Got(had, 0, at_once=False)
        if got.slots and got.slots[0].due + common.held_total >= instant:
            return common, got
    costs, units = tuple([slot.cost for slot in run]), tuple([slot.units for slot in run])
    notice = max(asking.notice, instant - now + common.tolerance + common.credit)
    asking = replace(asking, take=len(run), costs=costs, units=units, notice=notice)
    common, answer = _applied(common, asking, now)
    return common, _new(common, answer)


def _new(common: State, answer: Answer) -> _Got:
    """The new common slots of an answer. Those behind a gap aren't granted to the key yet."""
    slots, step = answer.taken, common.settings.interval
    followed = takewhile(lambda pair: _directly_follows(*pair, step), pairwise(slots))
    in_row = min(len(slots), 1 + len(tuple(followed)))
    return _Got(slots, min(answer.begun, in_row), answer.at_once)


def _known_places(common: State, known: Common, run: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """The known places of the first of these slots, as long as they follow each other like the slots do."""
    if known.generation != common.generation:
        return ()
    places = dict(known.places)
    found: list[Slot] = []
    for slot in run:
        place = places.get(slot.ticket)
        if place is None or place.cost != slot.cost:
            break
        if found and (
            place.ticket != found[-1].ticket + 1 or place.due - found[0].due != slot.due - run[0].due
        ):
            break
        found.append(place._replace(units=slot.units))
    return tuple(found)


def _applied(common: State, command: Advance, now: int) -> tuple[State, Answer]:
    after, answer = apply(common, command, now)
    assert after is not None  # the common record isn't ephemeral, and these commands don't drop it
    return after, answer


def shown(answer: Answer, common: State | None) -> Answer:
    """The answer for the key's shard: it shows the key as held while the common queue is."""
    state = answer.state
    if state is None or common is None or common.held_since is None:
        return answer
    since = answer.now if state.held_since is None else state.held_since
    until = max(state.held_until, common.held_until)
    return replace(answer, state=replace(state, held_since=since, held_until=until))
