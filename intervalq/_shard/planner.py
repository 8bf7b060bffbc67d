"""What a shard requests from its store, and when: the decisions of the protocol, as a pure function.

`plan` gets the situation and returns the request to send now, or the time until which there is none.

- The grant of a slot is requested shortly before it comes (`StoreTime.lead`), together with grants of the
  shard's own slots that directly follow. If the slot follows another shard's slot, the request waits until
  that one is over, provided that its answer can still arrive in time: once a later slot is granted, the owner
  of that one can't be granted it late.
- Tickets are taken for jobs that have none, at most `lookahead` of them, and together: when the shard has
  used its previous ones, or before the last slot issued in the queue comes. So a shard's slots are
  consecutive, and one request serves several starts.
- A granted slot that is over is requested again at once if it can be granted late, which requires that nobody
  else was granted a later slot. Otherwise it is given up, and later grants stay as they are: where slots are
  close together, they would be over before the answers to new requests came.
- A slot that waits for a window was chosen by estimates. The shard asks whether it may come sooner when the
  last answer shows room for it, with each report of settled costs, and from time to time if other shards may
  have settled costs.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from intervalq._keys.limits import room
from intervalq._shard.grants import Grants
from intervalq._shard.settlements import Looks, patience
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq._spec import windows
from intervalq._spec.configure import ordered
from intervalq.rules import MAX_TICKETS, Slot, State, Units

_SPECULATIVE: Final = 1_000
"""Tickets may be taken ahead of jobs for slots within this time, in microseconds, if it contains at least ten
slots."""

_EACH: Final = 10
"""How long each further job of a burst takes to begin, in microseconds."""

_RIDE: Final = 50_000
"""The longest time, in microseconds, for which tickets wait to be taken with the next request for a grant."""

_BEGUN: Final = 300
"""How long after a slot, in microseconds, its job has begun and its caller may want the next slot, if nothing
is delayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that a decision depends on. Instants are on the process's own clock, in microseconds."""

    at: int
    state: State | None
    """The record as the last answer showed it."""
    time: StoreTime
    wait_queue: WaitQueue
    grants: Grants
    lookahead: int | None
    began: int = 0
    """How many jobs began since the last request."""
    apart: int = 0
    """When a whole interval has passed since the last start; 0 with burst credit, which needs no distance."""
    counted: tuple[str, ...] = ()
    """The units of limits, in the order in which jobs of this shard list what they take of them."""
    settles: bool = False
    """Whether jobs of this shard may take less of limits than their tickets."""
    turn: int = 1
    """The minimum number of slots to request together, if there are that many: see `KeyStore.turn`."""
    behind: int | None = None
    """How long before the next slot another key's slot comes, see `KeyStore.behind_other`; None: there is
    none."""
    is_placed: bool = False
    """Whether the next ticket of a key has a common slot already."""
    returns: bool = False
    """Whether the only caller is likely to come back before the slot of the next ticket."""
    looks: Looks = field(default_factory=Looks)
    """Decides when to ask whether that slot may come sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to send now; see `rules.Advance`."""

    slots: tuple[Slot, ...]
    costs: tuple[int, ...]
    """The costs of the tickets to take."""
    units: tuple[Units, ...]
    """What these tickets take of the queue's limits; empty: see `rules.Units`."""
    speculative: int
    """How many of these tickets are for jobs that are only likely to come."""
    notice: int
    reach: int
    ahead: int
    """How far ahead the first of the slots may be; see `rules.Advance.ahead`."""


def plan(now: Situation) -> Ask | float:
    """The request to send, or until when to wait; infinity: until something changes."""
    slots = _slots_to_ask(now)
    sooner = bool(slots) and (_usual(now, slots[0]) > now.at)
    costs, units = _costs_to_take(now, len(slots))
    rides = slots and now.settles and any(units) and now.state is not None and not now.state.settings.own
    # Those that settle costs take one ticket at a time, see `_near`: with this request.
    if costs and not rides and now.at + (now.time.soon() if slots else 0) < _take_at(now, costs, units):
        costs = []
    if not slots and not costs:
        return next_question(now)
    speculative = _speculative(now) if costs else _for_returning(now, slots)
    first = now.wait_queue.first()
    notice = now.time.notice(now.at) + (first.early if first is not None else 0)
    if slots and (comes := _elapses(now, slots[0])) <= now.at:
        notice = max(notice, _clear(now, slots[0], comes) - now.at + now.time.reaction)
    if now.state is not None:  # if slots lie in the past, all jobs of a burst must begin in time
        notice += min(now.state.credit, (len(costs) + speculative) * _EACH)
    return Ask(
        slots=tuple(slots),
        costs=(*costs, *[1] * speculative)[:MAX_TICKETS],
        units=tuple(units) if costs and any(units) else (),
        speculative=speculative,
        notice=notice,
        reach=_reach(now, len(slots), notice),
        ahead=max(notice if sooner else 0, _ahead(now, slots[0])) if slots else 0,
    )


def _elapses(now: Situation, slot: Slot) -> float:
    """When a slot comes; with a lease, by the time that really passes, although the queue is held."""
    if now.state is None or not _is_leased(now.state, slot):
        return now.time.comes(slot, now.state)
    return now.time.clock.perhaps(slot.due + now.state.held_total)


def _clear(now: Situation, slot: Slot, comes: float) -> int:
    """The earliest start in a slot that has already come, at the required distance from the last start.

    For a slot that stays where it is, an interval minus half a tolerance is enough; but if a late start had
    moved it, it stays moved. A slot that is set back begins a new range, whose slots may come early by a
    tolerance once more, so it needs a whole interval.
    """
    assert now.state is not None
    clear = max(now.apart - now.state.tolerance // 2, int(comes) + now.grants.shift_of(slot))
    return clear if comes + now.state.tolerance >= clear else now.apart


def next_question(now: Situation) -> float:
    """When to request the grant of the next ticket, or tickets to follow the granted ones."""
    tickets, granted = now.grants.tickets, now.grants.granted
    costs, units = _costs_to_take(now, 0)
    if costs:
        return min(_ask_at(now, tickets[0]) if tickets else math.inf, _take_at(now, costs, units))
    if tickets:
        return _ask_at(now, tickets[0])
    if now.wait_queue.waiting <= now.grants.granted_count:
        return math.inf
    return now.time.clock.surely(granted[-1].last) - now.time.lead() if granted else 0


def _take_at(now: Situation, costs: list[int], units: list[Units]) -> float:
    """When to take tickets with these costs and units, for jobs that have none.

    They are taken for as many jobs as possible together, so that their slots are consecutive and need only
    one request: once the slots of this shard have been used, or before the last slot issued in the queue
    comes. With a `lookahead` of one they are taken at once, so that shards take turns.
    """
    if (opens := _window_opens(now, costs[0], units[0] if units else ())) > now.at:
        return opens
    if now.lookahead == 1:
        return now.at
    state, tickets = now.state, now.grants.tickets
    if state is None or state.held_since is not None or not (tickets or now.grants.granted):
        return now.at
    tail = now.time.clock.surely(state.due + state.held_total) - now.time.lead()
    end = min(tail, _end_of_run(now, state) + _BEGUN)
    if end <= now.at + _RIDE:
        return end
    about = _ask_at(now, tickets[0]) if tickets else math.inf
    return about if now.at < about <= now.at + _RIDE else now.at


def _end_of_run(now: Situation, state: State) -> int:
    """When the last of the next consecutive slots comes, by the process's clock; or one after `_RIDE`."""
    time, granted = now.time, now.grants.granted
    ticket = granted[-1].end if granted else now.grants.tickets[0].ticket
    end = time.clock.surely(granted[-1].last) if granted else now.at
    for slot in now.grants.tickets:
        if slot.ticket != ticket or end > now.at + _RIDE:
            break
        ticket += 1
        end = time.clock.surely(slot.due + state.held_total)
    return end


def _ask_at(now: Situation, slot: Slot) -> float:
    return min(_usual(now, slot), _look_at(now, slot))


def _usual(now: Situation, slot: Slot) -> float:
    """When to request the grant of a slot if it doesn't come sooner."""
    if _is_leased(now.state, slot):
        return now.at  # the queue is held for it
    if _are_counted_anew(now.state, slot):
        return now.at  # it may come sooner then
    return now.time.comes(slot, now.state) - _lead(now, slot)


def _look_at(now: Situation, slot: Slot) -> float:
    """When to ask whether a slot that waits for a window may come sooner; infinity: not."""
    if now.state is None or not now.state.settings.limits:
        return math.inf
    if now.state.settings.max_running or now.state.settings.auto is not None:
        return math.inf  # see `standing.may_move`
    limits, alone = now.state.settings.limits, _are_alone(now, now.state)
    slot = slot._replace(units=ordered(slot.cost, slot.units, now.counted, limits))
    return now.looks.next(now.state, slot, now.time, now.at, lead=_lead(now, slot), alone=alone)


def _are_alone(now: Situation, state: State) -> bool:
    """Whether nobody but this shard has tickets, or was the last to begin: others have settled all."""
    first, tickets = max(state.current, state.revoked_through) + 1, now.grants.tickets
    own = tickets[0].ticket, tickets[-1].ticket, len(tickets)
    is_all = own == (first, state.ticket, state.ticket - first + 1)
    return is_all and now.grants.through == state.current


def _lead(now: Situation, slot: Slot) -> int:
    """How long before a slot to request its grant; a job that may begin early needs the grant earlier."""
    first = now.wait_queue.first()
    own = slot.ticket <= now.grants.through + 1 and now.behind is None
    lead = now.time.lead() if own else now.time.lead_behind(now.state, now.behind)
    return lead + (0 if first is None else first.early)


def _ahead(now: Situation, slot: Slot) -> int:
    """How far ahead a slot may be to be granted: late starts of others may have moved it."""
    assert now.state is not None
    moved = min(now.state.settings.interval, _RIDE)
    return _lead(now, slot) + now.time.clock.error(now.at) + moved


def _is_leased(state: State | None, slot: Slot) -> bool:
    """Whether the queue is at its limit of running jobs, and this ticket's job counts as one of them."""
    if state is None or state.held_since is None or state.held_until:
        return False
    return slot.ticket in state.running


def _are_counted_anew(state: State | None, slot: Slot) -> bool:
    """Whether this ticket may have been revoked because a hold moved slots, but not the edges of windows."""
    if state is None or state.held_since is not None or slot.ticket > state.revoked_through:
        return False
    return any(limit.edge is not None for limit in state.settings.limits)


def _slots_to_ask(now: Situation) -> list[Slot]:
    state, tickets = now.state, now.grants.tickets
    if not tickets or _ask_at(now, tickets[0]) > now.at:
        return []
    if _usual(now, tickets[0]) > now.at:
        return [tickets[0]]
    if _is_leased(state, tickets[0]):
        return [slot for slot in now.grants.in_row(math.inf, 0) if _is_leased(state, slot)]
    if state is not None and _are_counted_anew(state, tickets[0]):
        return now.grants.in_row(0, state.revoked_through)
    ahead = now.time.together(state) - max(0, now.time.comes(tickets[0], state) - now.at)
    if state is not None:
        ahead = max(ahead, (now.turn - 1) * state.settings.interval)
    # Slots granted before must be requested together with the first one that is over, however far ahead.
    return now.grants.in_row(ahead, 0 if state is None else state.current)


def _costs_to_take(now: Situation, asked: int) -> tuple[list[int], list[Units]]:
    """The costs and units of tickets for jobs that have none yet, in the order of their jobs."""
    granted = now.grants.granted_count + asked
    room = now.wait_queue.waiting - granted
    if now.lookahead is not None:  # the next ticket is taken by the request that grants the last one
        room = min(room, now.lookahead, max(2, now.lookahead) - granted)
    units: list[Units] = []
    if now.wait_queue.mixed:
        jobs = list(islice(_unmatched(now, max(0, granted + room)), MAX_TICKETS))
        costs, units = [job.cost for job in jobs], [job.units for job in jobs]
    else:
        costs = [1] * max(0, min(MAX_TICKETS, room - (len(now.grants.tickets) - asked)))
    if costs and ((now.settles and any(units)) or (now.state is not None and now.state.settings.own)):
        tickets = now.grants.tickets
        if tickets and not (asked or now.at <= now.time.comes(tickets[0], now.state) < math.inf):
            return [], []  # if that one is granted late, slots taken before it would move along
        few = max(_near(now, costs, units), 0 if len(tickets) > asked else 1)
        return costs[:few], units[:few]
    return costs, units


def _window_opens(now: Situation, cost: int, units: Units) -> float:
    """When to take a key's next ticket: later only if the key has limits of its own, and a window is full.

    A key that waits for others is set back with all its tickets, also those that wait for its window, which
    opens meanwhile. With some room, but too little, one is taken: else cheaper jobs would always go first.
    """
    if now.state is None or not now.state.settings.own:
        return 0
    limits = now.state.settings.limits
    taken = ordered(cost, units, now.counted, limits) or tuple(windows.of_each(limits, cost, ()))
    free = room(now.state, taken, now.state.clock(now.time.clock.latest(now.at)))
    return now.time.clock.surely(free + now.state.held_total) - patience(limits[: now.state.settings.own])


def _near(now: Situation, costs: list[int], units: list[Units]) -> int:
    """How many of these tickets would have slots that come soon, as far as the shard knows the windows.

    A slot is chosen by the estimates of all jobs before it, and stays where it is when these turn out to be
    too high. The slot of a key with limits moves with the key's clock when an earlier slot waits for other
    keys, even if there is room for it sooner. So only one ticket is taken for a slot that waits for a window;
    the others are taken later.
    """
    state = now.state
    if state is None:
        return 1  # the answer shows the windows
    if not state.settings.limits:
        return len(costs)
    clock = state.clock(now.time.clock.latest(now.at))
    due = max(state.due + state.settings.interval, clock)
    of_each = [
        ordered(cost, some, now.counted, state.settings.limits)
        for cost, some in zip(costs, units, strict=False)
    ]
    _, dues, _ = windows.fit(state, costs, of_each, due, clock)
    return bisect_right(dues, clock + patience(state.settings.limits))


def may_come_sooner(now: Situation) -> bool:
    """Whether slots may come sooner if they are taken anew, because jobs before took less than their tickets.

    This requires that only this shard has tickets, and that it was the last to begin: slots of others don't
    come forward, and processes that share a window would reserve more of it by their estimates. Slots far
    ahead wait for a window.
    """
    state, tickets = now.state, now.grants.tickets
    if state is None or state.held_since is not None or not (tickets and state.settings.limits):
        return False
    if not _are_alone(now, state) or now.grants.granted or now.is_placed:
        return False
    soon, step = now.at + patience(state.settings.limits), state.settings.interval
    return tickets[0].due > state.current_due + step and now.time.comes(tickets[0], state) > soon


def _unmatched(now: Situation, jobs: int) -> Iterator[Waiter]:
    """Those of the first jobs for which no slot fits; slots that are too cheap for a job are skipped."""
    coming = now.grants.coming()
    for waiter in islice(now.wait_queue.in_order(), jobs):
        if not any(waiter.fits(slot) for slot in coming):  # consumes slots up to the first that fits
            yield waiter


def _speculative(now: Situation) -> int:
    """How many jobs are likely to come at once, in addition to those that wait.

    If slots are closer together than requests to the store can be, callers that come again and again would
    wait for an answer each time. So tickets are taken for twice as many jobs as began since the last request,
    but for at most a millisecond, so that little is lost if nobody comes.
    """
    state = now.state
    if state is None or state.settings.max_running or state.settings.limits:
        return 0
    limit = _SPECULATIVE // state.settings.interval
    if limit < 10:
        return 0
    room = MAX_TICKETS if now.lookahead is None else now.lookahead - now.wait_queue.waiting
    return max(0, min(2 * now.began, limit, room))


def _for_returning(now: Situation, slots: list[Slot]) -> int:
    """How many tickets to take for the only caller: one, with this request, if it is likely to come back."""
    state = now.state
    if not (now.returns and slots) or state is None or state.settings.max_running or now.wait_queue.mixed:
        return 0
    if state.settings.limits or now.lookahead == 1 or now.wait_queue.waiting > 1 or now.grants.granted:
        return 0
    return int(len(slots) >= len(now.grants.tickets))


def _reach(now: Situation, asked: int, notice: int) -> int:
    """How far ahead new slots may be granted; 0 if an ungranted ticket of this shard comes before them.

    If they follow another shard's slot, only as far as requests need, because that shard may still be late.
    """
    if asked < len(now.grants.tickets):
        return 0
    last = now.state.ticket if now.state is not None else 0
    own = next(reversed(now.grants.tickets), None)
    if own is None and now.grants.granted:
        is_last = now.grants.granted[-1].end - 1 == last
    else:
        is_last = own is not None and own.ticket == last
    reach = now.time.together(now.state) if is_last or now.state is None else now.time.lead()
    return max(reach, notice)
