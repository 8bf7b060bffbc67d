"""Situations of a shard for tests of `plan`: a record, tickets, grants and waiting jobs at the instant AT."""

from __future__ import annotations

from typing import Any

from intervalq._shard.grants import GrantRange, Grants
from intervalq._shard.planner import Ask, Situation, plan
from intervalq._shard.store_time import StoreTime
from intervalq._shard.wait_queue import Waiter, WaitQueue
from intervalq.rules import Settings, Slot, State

AT = 1_000_000_000
TRIP, LATE = 1_000, 500
LEAD = 2 * TRIP + LATE
TOGETHER = 50_000
INTERVAL = 1_000_000

# The store's clock reads the same as the process's own, and is known to a microsecond on either side, plus a
# 2,000th of the time ahead: so a slot at AT + n may come a little earlier.


def known_time() -> StoreTime:
    time = StoreTime()
    time.clock.learn(AT, AT, AT)
    time.took(TRIP, TRIP)
    time.lateness.add(LATE)
    return time


def record(settings: Settings, **fields: Any) -> State:
    usual: dict[str, Any] = {"generation": "g", "due": AT, "current_due": AT, "last_now": AT}
    return State(settings=settings, **usual | fields)


def queue_of(jobs: list[Waiter]) -> WaitQueue:
    queue = WaitQueue()
    for waiter in jobs:
        queue.add(waiter)
    return queue


def grants_of(tickets: list[Slot], granted: list[Slot]) -> Grants:
    grants = Grants()
    grants.tickets.extend(tickets)
    for each in granted:
        grants.grant(GrantRange(each, held_total=0, steps=0))
    return grants


def situation(
    tickets: list[Slot] | None = None,
    granted: list[Slot] | None = None,
    *,
    jobs: int | list[Waiter] = 1,
    settings: Settings | None = None,
    known: bool = True,
    fields: dict[str, Any] | None = None,
    **others: Any,
) -> Situation:
    """A situation in which some jobs wait and some slots are known; `fields` are the record's."""
    mine = [*(granted or []), *(tickets or [])]
    last = {"ticket": mine[-1].ticket if mine else 0}
    state = record(settings or Settings(INTERVAL), **last | (fields or {})) if known else None
    return Situation(
        at=AT,
        state=state,
        time=known_time(),
        wait_queue=queue_of([Waiter() for _ in range(jobs)] if isinstance(jobs, int) else jobs),
        grants=grants_of(tickets or [], granted or []),
        **{"lookahead": 16} | others,
    )


def slot(ticket: int, ahead: int, cost: int = 1) -> Slot:
    return Slot(ticket, AT + ahead, cost)


def asked(now: Situation) -> Ask:
    decision = plan(now)
    assert isinstance(decision, Ask)
    return decision


def tickets_asked(now: Situation) -> list[int]:
    return [slot.ticket for slot in asked(now).slots]
