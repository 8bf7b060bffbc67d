"""Windows of keys and of their queue, judged by brute force."""

from __future__ import annotations

from intervalq.keyed import Common, KeyedAnswer, apply_keyed
from intervalq.rules import FOREVER, Advance, HighWaterMark, Limit, Settings, State
from keyed_window_oracle import run


def test_no_window_is_exceeded_on_either_level() -> None:
    """`keyed_window_oracle` does many more runs."""
    assert [line for seed in range(2) for line in run(seed).over()] == []


def test_a_granted_slot_that_stayed_behind_when_another_one_waited_cannot_come_again() -> None:
    """Its units are counted where it was, and slots behind it have been found by that."""
    now = 1_000_000_000
    common = Settings(1_000)
    key = Settings(1_000, ephemeral=True, limits=(Limit(1, 100_000, "tokens"),))
    states: dict[str, State | None] = {}

    def step(name: str, at: int, command: Advance) -> KeyedAnswer:
        known = Common(record="q", settings=common, own_pace=True, nonce="q", generation="q")
        states[name], states["q"], made = apply_keyed(states.get(name), states.get("q"), command, known, at)
        return made

    first = step("a", now, Advance(settings=key, nonce="a", take=2, reach=FOREVER, units=((1,), ())))
    one, two = first.answer.taken
    assert first.answer.begun == 1
    step("b", now, Advance(settings=key, nonce="b", take=1, reach=FOREVER, units=((1,),)))
    asked = Advance(settings=key, generation="own:a", slots=(two,), notice=50, until=FOREVER)
    waits = step("a", now + 900, asked)
    state = waits.answer.state
    assert state is not None
    assert waits.answer.granted == ()
    assert state.held_total > 0
    again = Advance(
        settings=key, generation="own:a", slots=(one._replace(units=(1,)),), until=FOREVER,
        high_water_mark=HighWaterMark(state.ticket, state.due, state.late_total),
    )  # fmt: skip
    assert step("a", now + 1_000, again).answer.missed == (1,)
