"""Bugs in windows and in settled costs: more jobs begin than the called service allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from intervalq import rules
from intervalq._spec import windows
from intervalq._spec.record import Limit
from intervalq.rules import Settled, State
from planted.planting import bug, instead

_SETTLE: Final = windows.settle
_SPAN: Final = windows._span
_USE: Final = rules._use


@bug("window-short", "windows", 0)
def _() -> Iterator[None]:
    """Units are forgotten one cell before their window is over."""
    yield from instead(windows, "_span", lambda limit, state: _SPAN(limit, state) - 2 * limit.block)


@bug("jitter-forgotten", "windows", 8)
def _() -> Iterator[None]:
    """Windows are not extended by the jitter of the calls."""
    yield from instead(windows, "_span", lambda limit, state: _SPAN(limit, state) - limit.jitter)


@bug("lateness-forgotten", "windows", 0)
def _() -> Iterator[None]:
    """Units count from their slot on, however late after it their job may begin."""

    def span(limit: Limit, state: State) -> int:
        return limit.window + limit.jitter + state.error

    yield from instead(windows, "_span", span)


@bug("settled-twice", "windows", 12)
def _() -> Iterator[None]:
    """Units that a job did not need are refunded twice."""

    def settle(state: State, settled: Sequence[Settled]) -> State:
        return _SETTLE(_SETTLE(state, settled), settled)

    yield from instead(windows, "settle", settle)


@bug("units-stay-over", "returns", 4)
def _() -> Iterator[None]:
    """Slots that a late grant sets back are not counted at their new times."""
    yield from instead(windows, "set_back", lambda state, *_: state)


@bug("used-units-given-back", "windows", 0)
def _() -> Iterator[None]:
    """When a job begins, its slot frees its units as soon as the next slot is asked for."""

    def use(state: State, command: object, now: int, *, known: bool) -> tuple[State, object]:
        state, grants = _USE(state, command, now, known=known)  # type: ignore[arg-type]
        for slot in grants.granted[:1]:
            state = windows.give_back(state, slot)
        return state, grants

    yield from instead(rules, "_use", use)
