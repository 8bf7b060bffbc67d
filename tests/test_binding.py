"""The limit that `inspect` names is one that decides: without it, the last ticket would come sooner.

Judged by brute force: the outstanding tickets are issued again, without each limit in turn and without the
pace.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

import anyio
import pytest

from intervalq._spec import standing
from intervalq.rules import STARTS, Advance, Limit, Settings, State, Units, apply
from test_limits import queue_on
from virtual_store import FarStore, in_virtual_time

SECOND: Final = 1_000_000
T0: Final = 1_000 * SECOND
PACE: Final = -1


def issued(settings: Settings, past: list[tuple[int, Units]], tickets: list[Units]) -> State:
    """A record in which jobs began at these times, and in which these tickets are outstanding at T0."""
    state: State | None = None
    for at, units in past:
        began = Advance(
            settings=settings, nonce="g", generation="g", take=1, units=(units,), reach=10**12, lease=1
        )
        state, _ = apply(state, began, at)
    for units in tickets:
        asked = Advance(settings=settings, nonce="g", generation="g", take=1, units=(units,), reach=-1)
        state, _ = apply(state, asked, T0)
    assert state is not None
    return state


def without(settings: Settings, place: int) -> Settings:
    """The settings without one limit, or without the pace."""
    if place == PACE:
        return replace(settings, interval=2, tolerance=1)
    return replace(settings, limits=settings.limits[:place] + settings.limits[place + 1 :])


def less(units: Units, place: int) -> Units:
    """The units without those of one limit."""
    return units if place == PACE else units[:place] + units[place + 1 :]


def deciding(settings: Settings, past: list[tuple[int, Units]], tickets: list[Units]) -> dict[int, int]:
    """By how much sooner the last ticket would come without each limit, or the pace, if it would."""
    due, found = issued(settings, past, tickets).due, dict[int, int]()
    for place in (*range(len(settings.limits)), PACE):
        rest = [(at, less(units, place)) for at, units in past]
        other = issued(without(settings, place), rest, [less(units, place) for units in tickets]).due
        if due - other > 0:
            found[place] = due - other
    return found


def situation(random: Random) -> tuple[Settings, list[tuple[int, Units]], list[Units]]:
    """Settings, past jobs with their times and units, and the units of outstanding tickets."""
    limits = (
        Limit(random.choice((5, 20)), random.choice((10, 60)) * SECOND, STARTS),
        Limit(random.choice((100, 500)), random.choice((20, 60)) * SECOND, "tokens"),
    )
    settings = Settings(random.choice((50_000, SECOND, 5 * SECOND)), limits=limits)

    def units() -> Units:
        return (1, random.choice((0, 1, 20, 100)))

    times = sorted(T0 - random.randrange(1, 70 * SECOND) for _ in range(random.randrange(8)))
    return settings, [(at, units()) for at in times], [units() for _ in range(random.randrange(1, 8))]


def judged(seed: int) -> str | None:
    """What is wrong with the limit that is named in a random situation."""
    settings, past, tickets = situation(Random(seed))
    state = issued(settings, past, tickets)
    if state.current_due > T0:  # a past job waited, too
        return None
    clock, found = state.clock(T0), deciding(settings, past, tickets)
    limit = standing.binding(state, clock)
    named = PACE if limit is None else settings.limits.index(limit)
    if not found or named in found:
        return None
    paced = replace(settings, limits=())
    free = issued(paced, [(at, ()) for at, _ in past], [()] * len(tickets)).due
    if limit is not None and state.due - free > max(found.values()):
        return None  # two limits have room at the same instant, so that neither alone brings it forward
    return f"seed {seed}: {named} is named, but {found} decide"


def wrong(count: int) -> list[str]:
    return [found for seed in range(count) if (found := judged(seed)) is not None]


def test_the_named_limit_decides_when_the_last_ticket_comes() -> None:
    assert wrong(250) == []


def test_the_judge_sees_a_limit_that_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "_alone", lambda state, place, clock: clock)
    assert wrong(250)


@in_virtual_time
async def test_a_slot_that_estimates_have_put_far_ahead_waits_for_their_limit() -> None:
    """They are settled since, so that there is room now; but a process has the ticket that is cut off."""
    stores = FarStore(), FarStore()
    stores[1].behind = stores[0].behind
    one, other = (queue_on(store, "600/min", "500 tokens/min", interval=0.05) for store in stores)

    async def job() -> None:
        async with one.slot(cost={"tokens": 120}) as slot:
            await anyio.sleep(1)
            slot.settle(tokens=20)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(job)
        await anyio.sleep(0.5)
        group.start_soon(lambda: other.run(anyio.sleep_forever, cost={"tokens": 120}))
        await anyio.sleep(0.2)
        stores[1].is_down = True
        await anyio.sleep(1.8)
        group.start_soon(job)  # its question takes along what was settled
        await anyio.sleep(1)
        state = await one.inspect()
        assert (state.binds, state.limits[1].taken) == ("500 tokens/m", 320)
        group.cancel_scope.cancel()
