"""Any valid record and any command, also with numbers that no shard would send."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from intervalq.rules import (
    FOREVER,
    Advance,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Inspect,
    Reclaim,
    Resume,
    Settings,
    Slot,
    State,
)

NOW: Final = 1_000_000_000_000_000


def instants() -> st.SearchStrategy[int]:
    near = st.integers(-3_000_000, 3_000_000).map(lambda less: NOW + less)
    return near | st.sampled_from([-FOREVER, FOREVER, 0, -1]) | st.integers(-FOREVER, FOREVER)


def wholes(least: int = 0) -> st.SearchStrategy[int]:
    return (
        st.integers(least, 20)
        | st.sampled_from([least, FOREVER, 2**31, 2**32, 10**6])
        | st.integers(least, FOREVER)
    )


@st.composite
def states(draw: st.DrawFn) -> State:
    """Any valid record, usually with numbers close to each other."""
    ticket = draw(wholes())
    below = st.integers(0, ticket) | st.just(ticket)
    return State(
        generation=draw(st.sampled_from(["g", "é", "\U0001f600", "a" * 500])),
        settings=Settings(
            draw(wholes(1)), draw(wholes(1)), draw(wholes()), draw(wholes()), draw(st.booleans())
        ),
        ticket=ticket,
        due=draw(instants()),
        current=draw(below),
        current_due=draw(instants()),
        revoked_through=draw(below),
        held_total=draw(st.integers(0, 1000) | instants()),
        held_since=draw(st.none() | instants()),
        held_until=draw(st.just(0) | instants()),
        last_now=draw(instants()),
        late_total=draw(wholes()),
        error=draw(st.just(0) | wholes()),
        error_until=draw(st.just(0) | instants()),
        running=draw(st.dictionaries(wholes(), instants(), max_size=4)),
    )  # fmt: skip


def commands(generation: str = "g") -> st.SearchStrategy[Command]:
    """Commands of all kinds, also with numbers that no shard would send."""
    costs = st.just(1) | st.sampled_from([2, 10**9]) | wholes(1)
    slots = st.lists(st.builds(Slot, wholes(), instants(), costs), max_size=3).map(
        lambda some: tuple(sorted(some, key=lambda slot: slot.ticket))
    )
    tickets = st.lists(wholes(), max_size=3).map(tuple)
    common: dict[str, Any] = {
        "settings": st.none() | st.builds(Settings, wholes(1), wholes(1), wholes(), wholes(), st.booleans()),
        "attach": st.booleans(),
        "generation": st.sampled_from([None, "other", generation, generation, generation]),
        "nonce": st.just("n"),
    }
    return st.one_of(
        st.builds(
            Advance, **common, release=slots, slots=slots, take=wholes(),
            costs=st.just(()) | st.lists(costs, max_size=3).map(tuple), notice=wholes(), reach=wholes(),
            lease=wholes(), until=st.none() | instants(),
            high_water_mark=st.none() | st.builds(HighWaterMark, wholes(), instants(), wholes()),
            error=wholes(),
        ),
        st.builds(Hold, **common, length=wholes()),
        st.builds(
            Configure, **common, interval=st.none() | wholes(1), burst=st.none() | wholes(1),
            max_running=st.none() | wholes(),
        ),
        st.builds(Finish, **common, ended=tickets, running=tickets, lease=wholes()),
        *(st.builds(kind, **common) for kind in (Resume, Reclaim, Inspect, Drop)),
    )  # fmt: skip
