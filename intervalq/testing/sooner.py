"""Commands about a slot that came sooner, for comparing stores with the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from intervalq._spec.standing import placed
from intervalq.rules import (
    Advance,
    Command,
    Configure,
    HighWaterMark,
    Hold,
    Limit,
    Reclaim,
    Resume,
    Settings,
    Settled,
    State,
    apply,
)

_SECOND: Final = 1_000_000
_START: Final = 64 * 15_625_000 * _SECOND
_SETTINGS: Final = Settings(interval=2 * _SECOND, limits=(Limit(100, 64 * _SECOND, "tokens"),))
_SHORTER: Final = Configure(interval=_SECOND)
_BETWEEN: Final[tuple[tuple[Command, ...], ...]] = (
    (),
    (Reclaim(),),
    (Hold(length=5 * _SECOND), Resume()),
    (_SHORTER,),
    (Configure(interval=9 * _SECOND, burst=3),),
    (Configure(limits=(Limit(50, 640 * _SECOND, "tokens"),)),),
)


def slots_that_came_sooner() -> Iterator[list[tuple[Command, int]]]:
    """Lists of commands with their instants.

    A slot waits for a window, and comes sooner. After other commands it is listed again: where it is, and
    where it was. It costs one slot, or so many that with another interval it would end where it ended before.
    """
    kinds = [(1, 0, between) for between in _BETWEEN]
    kinds += [(1, 1, ()), (1, 1, (Reclaim(),)), (64, 0, (_SHORTER,))]
    for (cost, others, between), there, late in product(kinds, (False, True), (False, True)):
        yield _case(cost, others, between, there=there, late=late)


def _case(
    cost: int, others: int, between: tuple[Command, ...], *, there: bool, late: bool
) -> list[tuple[Command, int]]:
    units = ((90,), (90,), (5,))[: 2 + others]
    took = Advance(settings=_SETTINGS, nonce="g", take=len(units), costs=(1, cost), units=units)
    state, answer = apply(None, took, _START)
    assert state is not None
    first, slot = answer.taken[:2]
    refund, now = Settled(first.due, state.lag, (-80,)), _START + 2 * _SECOND + _SECOND // 5
    ask = Advance(generation="g", settled=(refund,), slots=(slot,), ahead=_SECOND, take=1, units=((7,),))
    commands: list[tuple[Command, int]] = [(took, _START), (ask, now)]
    state = _after(commands)
    listed = placed(state, slot) if there else slot
    commands += [(command, now + number) for number, command in enumerate(between, 1)]
    state = _after(commands)
    now = max(now + 10, listed.due + state.held_total + (9 * _SECOND if late else 0))
    mark = HighWaterMark(state.ticket, state.due, state.late_total)
    again = Advance(generation="g", slots=(listed,), until=now, notice=1_000, high_water_mark=mark)
    return [*commands, (again, now), (replace(again, take=1), now + 1)]


def _after(commands: list[tuple[Command, int]]) -> State:
    state: State | None = None
    for command, now in commands:
        state, _ = apply(state, command, now)
    assert state is not None
    return state
