"""The record that the log of a queue yields: its entries are commands, and all readers get the same record.

An entry of a counter has its increment and the sum after it, which packs four numbers: how many tickets plain
entries took; how many entries there are; how many of the plain ones may have granted slots; and a fingerprint
of those that are not plain. So the sum alone tells a sender whether anything but plain entries came between
the entries it knows and its own. If nothing did, it knows the answer without reading the others' entries.

A late grant sets the queue's clock back, which affects everyone, so it is never a plain entry: its sender
reads when it was stored, and every other sender reads it with its next entry. The slot is granted at the
instant at which the entry was stored. Costs and reports of an error are not sent as plain entries either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Final, TypeAlias

from intervalq import rules
from intervalq.errors import StoreError
from intervalq.rules import FOREVER, MAX_TICKETS, Advance, Answer, Command, Slot, State
from intervalq_stores.nats._queue.step import Entry, Full, Plain, Position

_LATE: Final = 10_000_000
"""Commands are sent in full if the record may be forgotten in this many microseconds."""

_ROOM: Final = 1_000_000
"""How many slots must be left before FOREVER, because others may take some at the same moment."""


class Gap(Exception):
    """Entries are missing, so the record can't be determined from here."""


Outcome: TypeAlias = Answer | Exception | None
"""The result of an entry: its answer, its error, or None for a plain one that did not apply."""


def _takes_plain(state: State | None) -> bool:
    """Whether plain entries have a meaning for this record; no plain entry changes that."""
    return (
        state is not None
        and state.held_since is None
        and not state.settings.max_running
        and not state.settings.limits
        and state.settings.auto is None
        and not state.held_until
        and not state.running
    )


def plain(state: State, command: Command, now: int, late: int) -> Plain | None:
    """The command as a plain entry; None: it must be sent in full.

    If so, the rules do what `increment` does, for any instant from `now` to `late` and whatever other plain
    entries come in between, except that `increment` grants those of the new slots that are near at `now`.
    """
    if type(command) is not Advance or not _takes_plain(state) or not _is_simple(state, command, late):
        return None
    clock, free = late - state.held_total, state.due + state.settings.interval
    known = command.generation == state.generation
    if not _is_next(state, command, clock):
        return None
    if command.slots and not (known and _are_in_time(state, command, clock)):
        return None
    if _are_too_far(state.current, command.slots, command.ahead, now - state.held_total):
        return None
    if state.settings.ephemeral and rules.lapses(state) <= late + _LATE:
        return None
    tells = command.slots or command.reach > 0 or free <= clock or now == late
    ahead = command.ahead if command.slots else None
    mark, last, notice = command.high_water_mark, None, 0
    if mark is not None and command.take and command.reach > command.notice:
        last, notice = mark.ticket, command.notice
    return Plain(
        now if tells else None,
        command.take,
        command.reach,
        command.generation,
        command.slots,
        ahead,
        last,
        notice,
    )


def _is_simple(state: State, command: Advance, late: int) -> bool:
    """Whether, until `late`, the command results in nothing but granted slots and new tickets."""
    if command.attach or command.release or command.error or command.costs.count(1) != len(command.costs):
        return False
    if command.settings is not None and (command.settings.limits or command.settings.auto):
        return False  # the record has none, and its sender must be told
    if late < state.last_now or (state.error and state.error_until <= late):
        return False
    mark = command.high_water_mark
    if mark is None or command.generation != state.generation:
        return True
    return mark.ticket <= state.ticket and mark.late_total == state.late_total


def _are_in_time(state: State, command: Advance, clock: int) -> bool:
    """Whether all listed slots are granted, the first one not late, until the queue's clock is `clock`."""
    window = state.tolerance + state.credit
    if not all(
        state.revoked_through < slot.ticket <= state.ticket and clock <= slot.due + window
        for slot in command.slots
    ):
        return False
    first = command.slots[0].due
    return command.until is None or clock < first or clock + command.notice <= first + window


def _are_too_far(current: int, slots: Sequence[Slot], ahead: int | None, clock: int) -> bool:
    """Whether these slots are too far ahead of the queue's clock; see `Advance.ahead`."""
    return ahead is not None and bool(slots) and slots[0].ticket > current and slots[0].due > clock + ahead


def _is_next(state: State, command: Advance, clock: int) -> bool:
    """Whether new slots directly follow the last one, until the queue's clock is `clock`."""
    take, free = command.take, state.due + state.settings.interval
    if not 0 <= take <= MAX_TICKETS:
        return False
    nearest = clock + max(0, command.notice - state.tolerance) - state.credit
    return not take or (free >= nearest and free + state.settings.interval * (take + _ROOM) <= FOREVER)


def increment(
    state: State,
    step: Plain,
    taken: int = 0,
    *,
    now: int = 0,
    blur: int = 0,
    trip: tuple[int, int] | None = None,
) -> tuple[State, Answer]:
    """Apply a plain entry. Slots that can't be granted are left alone: their owner asks again, in full.

    Args:
        state: the record.
        step: the entry.
        taken: how many tickets others took before by plain entries, in addition to the record's.
        now: what to answer as the time; 0: that of the entry, if it has one.
        blur: see `Answer.blur`.
        trip: see `Answer.trip`.
    """
    interval, take = state.settings.interval, step.take
    ticket, due = state.ticket + taken, state.due + taken * interval
    current, at = state.current, state.current_due
    used = _used(state, step, ticket, current)
    for slot in used:
        current, at = max(current, slot.ticket), max(at, slot.due + (slot.cost - 1) * interval)
    first, begun, at_once = None, 0, False
    if take:
        first = Slot(ticket + 1, due + interval)
        ticket, due = ticket + take, due + take * interval
        begun = _begun(state, step, first)
        if begun:
            current = max(current, first.ticket + begun - 1)
            at = max(at, first.due + (begun - 1) * interval)
            at_once = not used and step.now is not None and first.due <= step.now - state.held_total
    seen = state.last_now if step.now is None else max(state.last_now, step.now)
    state = _moved(state, ticket=ticket, due=due, current=current, at=at, seen=seen)
    answer = Answer(
        state=state,
        now=now or step.now or 0,
        granted=tuple([slot.ticket for slot in used]),
        at_once=at_once,
        first=first,
        count=take,
        begun=begun,
        trip=trip,
        blur=blur,
    )
    return state, answer


def _used(state: State, step: Plain, ticket: int, current: int) -> list[Slot]:
    """The slots that it is granted, if `ticket` is the last ticket and `current` the last granted one."""
    if step.generation != state.generation:
        return []
    used = [slot for slot in step.slots if state.revoked_through < slot.ticket <= ticket]
    clock = (step.now or 0) - state.held_total
    # The queue's clock may have been set back since the sender looked.
    return [] if _are_too_far(current, used, step.ahead, clock) else used


def _begun(state: State, step: Plain, first: Slot) -> int:
    """How many of the new slots are granted at once: none if the first one is too far in the past.

    It is if slots were revoked or given back since the sender looked.
    """
    if step.now is None or first.due < step.now - state.held_total - state.credit:
        return 0
    reach = step.reach if step.last is None or step.last == first.ticket - 1 else step.notice
    ahead = step.now - state.held_total + reach - first.due
    return max(0, min(step.take, ahead // state.settings.interval + 1))


def _moved(state: State, *, ticket: int, due: int, current: int, at: int, seen: int) -> State:
    return State(
        generation=state.generation,
        settings=state.settings,
        ticket=ticket,
        due=due,
        current=current,
        current_due=at,
        revoked_through=state.revoked_through,
        held_total=state.held_total,
        late_total=state.late_total,
        last_now=seen,
        error=state.error,
        error_until=state.error_until,
    )


def is_over(answer: Answer) -> bool:
    """Whether the first new slot of a plain entry was over when the entry was stored.

    It is if the slots before it were revoked or given back since the sender looked, or if the entry was in
    transit for long. A late grant of it would set the queue's clock back for nothing.
    """
    state, first = answer.state, answer.first
    if state is None or first is None or answer.begun:
        return False
    return first.due + state.tolerance + state.credit < state.clock(answer.now - answer.blur)


def full(state: State | None, step: Full, at: int, url: str) -> tuple[State | None, Outcome]:
    """Apply any other entry, stored at `at`. If it can't be applied, it changes nothing, for every reader."""
    before = None if step.reset else state
    try:
        after, answer = rules.apply(before, step.command, at if step.now is None else step.now)
    except (ValueError, TypeError, OverflowError) as wrong:
        return before, wrong
    if after is not None and not _fits(after):
        return before, StoreError(url, "the step exceeds the numbers that a record can hold: it was not done")
    return after, answer


def fold(position: Position, log: Iterable[Entry], url: str) -> tuple[Position, Outcome]:
    """The position after these entries, which directly follow `position`, and the outcome of the last one.

    Raises:
        Gap: they don't directly follow it.
    """
    state, value, sequence = position
    outcome: Outcome = None
    run: list[Plain] = []
    for entry in log:
        step = entry.step
        if type(step) is Plain:
            if entry.value - entry.increment != value:
                raise Gap
            run.append(step)
        else:
            assert isinstance(step, Full)
            if entry.value - entry.increment != value and not step.begins:
                raise Gap
            if run:
                state, _ = _all(state, run)
                run = []
            state, outcome = full(state, step, entry.at, url)
        value, sequence = entry.value, entry.sequence
    if run:
        state, outcome = _all(state, run)
    return Position(state, value, sequence), outcome


def _all(state: State | None, run: list[Plain]) -> tuple[State | None, Outcome]:
    """Apply successive plain entries; return also the outcome of the last."""
    if state is None or not _takes_plain(state):
        return state, None
    interval = state.settings.interval
    ticket, due, current, at, seen = state.ticket, state.due, state.current, state.current_due, state.last_now
    for step in run[:-1]:
        for slot in _used(state, step, ticket, current) if step.slots else ():
            current, at = max(current, slot.ticket), max(at, slot.due + (slot.cost - 1) * interval)
        if step.take:
            begun = _begun(state, step, Slot(ticket + 1, due + interval))
            if begun:
                current, at = max(current, ticket + begun), max(at, due + begun * interval)
            ticket += step.take
            due += step.take * interval
        if step.now is not None:
            seen = max(seen, step.now)
    return increment(_moved(state, ticket=ticket, due=due, current=current, at=at, seen=seen), run[-1])


def beginning(log: list[Entry]) -> list[Entry]:
    """The entries of a log from one on whose result does not depend on those before it.

    Raises:
        Gap: there is none.
    """
    for number in range(len(log) - 1, -1, -1):
        entry = log[number]
        if entry.value == entry.increment or (isinstance(entry.step, Full) and entry.step.begins):
            return log[number:]
    raise Gap


_NUMBERS: Final = tuple(
    f.name
    for f in fields(State)
    if f.name not in {"generation", "settings", "held_since", "running", "usage", "pace"}
)


def _fits(state: State) -> bool:
    settings = state.settings
    numbers: list[int] = [getattr(state, name) for name in _NUMBERS]
    numbers += [settings.interval, settings.burst, settings.max_running, settings.tolerance]
    numbers += [*state.running.values(), *(state.pace or ())]
    for use in state.usage:
        for cell in (*use.used, *use.ahead):
            numbers += cell
    if state.held_since is not None:
        numbers.append(state.held_since)
    return all(-FOREVER <= number <= FOREVER for number in numbers)
