"""How long does one step of the rules take? `pytest -n 0 benchmarks/micro`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from intervalq import rules
from intervalq.rules import (
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
    Settings,
    Slot,
    State,
)

NOW = 1_800_000_000_000_000
STEP = 10_000
SETTINGS = Settings(STEP, burst=1_000)  # with credit, so that slots of now are in time
TICKETS = 200
STATE = State(
    generation="g",
    settings=SETTINGS,
    ticket=TICKETS,
    due=NOW,
    current=0,
    current_due=NOW - TICKETS * STEP,
    last_now=NOW,
)
SLOTS = tuple(Slot(ticket, NOW - (TICKETS - ticket) * STEP) for ticket in range(1, TICKETS + 1))
HELD = replace(STATE, held_since=NOW, held_until=rules.FOREVER)
RUNNING = replace(
    STATE,
    settings=replace(SETTINGS, max_running=1_000),
    running=dict.fromkeys(range(1, 101), NOW + 10_000_000),
)

STEPS: dict[str, tuple[State | None, Command]] = {
    "advance: new record": (None, Advance(take=1)),
    "advance: take 1": (STATE, Advance(take=1)),
    "advance: take 100": (STATE, Advance(take=100)),
    "advance: take and begin 100": (STATE, Advance(take=100, reach=1_000_000)),
    "advance: use 1, take 1": (STATE, Advance(slots=SLOTS[:1], take=1)),
    "advance: use 100, take 100": (STATE, Advance(slots=SLOTS[:100], take=100)),
    "advance: give back 100": (STATE, Advance(release=SLOTS[100:])),
    "advance: held": (HELD, Advance(take=1)),
    "advance: use 1, with 100 running": (RUNNING, Advance(slots=SLOTS[100:101], lease=10_000_000)),
    "finish: 1 of 100 running": (RUNNING, Finish(ended=(1,))),
    "finish: renew 100 running": (RUNNING, Finish(running=tuple(range(1, 101)), lease=10_000_000)),
    "hold": (STATE, Hold()),
    "resume": (HELD, Resume()),
    "configure": (STATE, Configure(interval=2 * STEP)),
    "reclaim": (STATE, Reclaim()),
    "inspect": (STATE, Inspect()),
    "drop": (STATE, Drop()),
}
DID: dict[str, Callable[[Any], bool]] = {
    "advance: take 100": lambda answer: answer.count == 100,
    "advance: take and begin 100": lambda answer: answer.begun == 100,
    "advance: use 1, take 1": lambda answer: answer.granted == (1,),
    "advance: use 100, take 100": lambda answer: len(answer.granted) == answer.count == 100,
    "advance: use 1, with 100 running": lambda answer: len(answer.state.running) == 101,
    "advance: give back 100": lambda answer: answer.state.due == SLOTS[99].due,
    "advance: held": lambda answer: answer.count == 0,
    "finish: 1 of 100 running": lambda answer: len(answer.state.running) == 99,
    "resume": lambda answer: answer.woken,
    "drop": lambda answer: answer.state is None,
}
"""Checks that a step does what its name says, where the answer shows it."""


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_rules(step: str, benchmark: Any) -> None:  # noqa: ANN401 - untyped fixture
    """One command on one record."""
    state, command = STEPS[step]
    command = replace(command, generation="g", settings=SETTINGS, nonce="n")
    answer: Answer
    _, answer = benchmark(rules.apply, state, command, NOW)
    assert answer.now == NOW
    assert step not in DID or DID[step](answer)


def test_a_record_to_json_and_back(benchmark: Any) -> None:  # noqa: ANN401 - as above
    """What the stores in files do with each record that they read and write."""
    assert benchmark(lambda: State.from_dict(RUNNING.to_dict())) == RUNNING
