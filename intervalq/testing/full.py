"""Commands about granted slots that are listed again in a full queue, for comparing stores with the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final, TypeAlias

from intervalq.rules import (
    Advance,
    Auto,
    Command,
    Configure,
    Finish,
    HighWaterMark,
    Hold,
    Limit,
    Settings,
    Slot,
    State,
    Units,
    apply,
)

_Units: TypeAlias = tuple[Units, ...]
"""What each ticket takes of each limit."""

_SECOND: Final = 1_000_000
_START: Final = 64 * 15_625_000 * _SECOND
_LIMITS: Final = (Limit(100, 64 * _SECOND, "tokens"), Limit(50, 6 * _SECOND))
_SETTINGS: Final = Settings(interval=_SECOND, burst=2, max_running=2, limits=_LIMITS)
_ONE_ENDS: Final = Finish(generation="g", ended=(1,), lease=900 * _SECOND)
_TAKES: Final = Advance(generation="g", take=1, units=((20, 1),), lease=900 * _SECOND, reach=9 * _SECOND)
_BETWEEN: Final[tuple[tuple[Command, ...], ...]] = (
    (),
    (_ONE_ENDS,),
    (_ONE_ENDS, _TAKES),
    (_ONE_ENDS, replace(_ONE_ENDS, ended=(), running=(1,))),
    (_ONE_ENDS, Hold(length=_SECOND), _TAKES),
    (Configure(burst=3),),
    (Configure(interval=_SECOND // 2),),
    (Configure(interval=9 * _SECOND),),
    (Configure(limits=(Limit(90, 640 * _SECOND, "tokens"), _LIMITS[1])),),
    (Configure(limits=(Limit(90, 64 * _SECOND, "bytes"),)),),
    (Configure(auto=Auto(60 * _SECOND, 1)),),
    (Configure(max_running=3), Configure(max_running=2)),
)


def slots_of_a_full_queue() -> Iterator[list[tuple[Command, int]]]:
    """Lists of commands with their instants.

    Two slots are granted, and fill the queue. After other commands, some are listed again. Their units count
    where they were: not where they are, if the queue had room meanwhile. One may take no units of a limit.
    """
    some: _Units = ((40, 1), (40, 1), (1, 1))
    most: _Units = ((40, 0), (0, 1), (1, 1))
    none: _Units = ((0, 0), (0, 0))
    kinds = [(units, between, 1) for units, between in product((some, most), _BETWEEN)]
    kinds += [(none, between, 1) for between in _BETWEEN[2:4]]
    kinds += [(some, between, 2) for between in (_BETWEEN[0], *_BETWEEN[5:8])]
    for (units, between, cost), listed, late in product(kinds, ((1, 2), (2,), (2, 3)), (False, True)):
        yield _case(units, between, listed, cost, late=late)


def _case(
    units: _Units,
    between: tuple[Command, ...],
    listed: tuple[int, ...],
    cost: int,
    *,
    late: bool,
) -> list[tuple[Command, int]]:
    took = Advance(
        settings=_SETTINGS,
        nonce="g",
        take=len(units),
        units=units,
        costs=(1, cost),
        lease=900 * _SECOND,
        reach=9 * _SECOND,
    )
    commands: list[tuple[Command, int]] = [(took, _START)]
    state: State | None = None
    slots: list[Slot] = []
    for number, command in enumerate((took, *between)):
        commands[number:] = [(command, _START + number * _SECOND)]
        state, answer = apply(state, *commands[number])
        slots += answer.taken
    assert state is not None
    again = tuple([slot for slot in slots if slot.ticket in listed])
    now = _START + len(commands) * _SECOND
    if again:
        now = max(now, again[0].due + state.held_total + (9 * _SECOND if late else 0))
    mark = HighWaterMark(state.ticket, state.due, state.late_total)
    ask = Advance(
        generation="g", slots=again, until=now, notice=1_000, lease=900 * _SECOND, high_water_mark=mark
    )
    return [*commands, (ask, now), (replace(ask, take=1, until=now + 1), now + 1)]
