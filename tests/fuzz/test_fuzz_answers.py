"""Answers of stores are read or refused: no other error is raised, and huge numbers cost nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fuzz.material import fuzz, json_values
from fuzz.queues import commands, instants, states
from intervalq.errors import StoreError
from intervalq.rules import Advance, Answer, BadRecord, NewerRecord, Settings, State, apply
from intervalq_stores.postgres import queues as postgres_queues
from intervalq_stores.redis import queues as redis_queues

FIELDS = [
    *("state", "now", "refused", "healed", "granted", "missed", "at_once", "first", "count", "costs"),
    *("dues", "units", "begun", "woken"),
]
ODD = (
    json_values() | st.integers() | st.sampled_from([2**50, 2**53, -1, True, [], [2**50] * 3, "", b"", None])
)


def written(answer: Answer) -> dict[str, Any]:
    """As the rules on servers write it."""
    first = answer.first
    return {name: getattr(answer, name) for name in FIELDS} | {
        "state": None if answer.state is None else answer.state.to_dict(),
        "first": None if first is None else [*first[:3]],
        **{name: list(getattr(answer, name)) for name in ("granted", "missed", "costs", "dues")},
        "units": [list(units) for units in answer.units],
    }


def read(data: object) -> Answer | None:
    """The answer, processed as a shard does; None: it was refused with a documented error."""
    try:
        answer = Answer.from_dict(data)
    except (BadRecord, NewerRecord) as error:
        assert str(error).isprintable()
        return None
    assert len(answer.taken) == answer.count <= 10_000
    return answer


@fuzz(150)
@given(state=states(), command=commands(), now=instants())
def test_an_answer_of_the_rules_is_read_as_it_was_written(state: State, command: Any, now: int) -> None:
    _, answer = apply(state, command, now)
    if answer.state is not None:  # near the largest numbers, results may not be storable
        try:
            State.from_dict(answer.state.to_dict())
        except BadRecord:
            assume(False)
    assert read(written(answer)) == answer


SOUND = written(
    apply(None, Advance(settings=Settings(1_000), nonce="n", take=2, costs=(2, 1), notice=5, reach=5), 0)[1]
)


@fuzz(300)
@example(changes={"count": 2**50})
@example(changes={"first": [1]})
@example(changes={"first": [1, 2, 2**50, 4]})
@example(changes={"begun": 2**50})
@example(changes={"costs": [0]})
@example(changes={"granted": 3})
@example(changes={"state": {"version": 2}})
@given(changes=st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3))
def test_any_other_is_read_or_refused(changes: dict[str, Any]) -> None:
    read(SOUND | changes)
    for name in changes:
        read({key: value for key, value in (SOUND | changes).items() if key != name})


def test_a_count_that_would_freeze_the_event_loop_is_refused() -> None:
    assert read(SOUND) is not None
    for count in (10_001, 2**50, True, -1, 1.0, "1"):
        assert read(SOUND | {"count": count, "costs": []}) is None


RECORD = [b"g", b"", [3, 5], 1, 1, 2, 0, 0, 5, 0, 3, 0, 0, 0, 0, 1, 0, 0, 0]
REPLY = [1, 0, 0, 0, [], [], 0, 0, 0, 0, [], 0, RECORD]


@fuzz(300)
@given(
    place=st.integers(0, len(REPLY) - 1),
    value=ODD,
    inner=st.integers(0, len(RECORD) - 1) | st.none(),
    cut=st.booleans(),
)
def test_replies_of_redis_are_read_or_refused(place: int, value: Any, inner: int | None, cut: bool) -> None:
    assert redis_queues._answer(REPLY).state is not None
    reply: list[Any] = [*REPLY]
    if inner is None:
        reply[place] = value
    else:
        reply[-1] = [*RECORD[:inner], value, *RECORD[inner + 1 :]]
    try:
        answer = redis_queues._answer(reply[:place] if cut else reply)
    except (BadRecord, NewerRecord):
        return
    assert len(answer.taken) == answer.count <= 10_000


@fuzz(200)
@given(
    changes=st.dictionaries(
        st.sampled_from([*SOUND["state"], "leases", "limits", "stepped"]), ODD, max_size=2
    )
)
def test_rows_of_postgres_are_read_or_refused(changes: dict[str, Any]) -> None:
    row = SOUND["state"] | {"running": [1], "leases": [5], "limits": None, "stepped": None}
    assert postgres_queues._answer(SOUND | {"state": row}).state is not None
    try:
        postgres_queues._answer(SOUND | {"state": row | changes})
    except (BadRecord, NewerRecord):
        return


@pytest.mark.parametrize("reply", [None, 7, b"x", [], {}, [[]] * 13, "x" * 13])
def test_what_is_no_reply_is_refused(reply: Any) -> None:
    with pytest.raises(BadRecord):
        redis_queues._answer(reply)
    with pytest.raises(BadRecord):
        postgres_queues._answer(reply)


@fuzz(100)
@example(text="\x1b]0;owned\x07\x9b31m\u202e\ud800\r\n")
@given(text=st.text())
def test_what_a_store_says_moves_no_terminal_and_forges_no_line(text: str) -> None:
    assert str(StoreError("store", text)).isprintable()
    assert str(StoreError("store", text)).encode()
