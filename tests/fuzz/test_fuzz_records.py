from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from fuzz.material import fuzz, json_values, mutated, odd_text
from fuzz.queues import commands, instants, states, wholes
from intervalq.errors import CorruptState, StoreError, VersionMismatch
from intervalq.rules import LAYOUT, RENAMED, BadRecord, Command, NewerRecord, Settings, State, apply
from intervalq_stores._files.json_records import parse, shown, state_of
from intervalq_stores.json._queue_document import Document

URL = "file:///state.json"


_OLDER = {name: before for before, name in RENAMED.items()}
"""The names that fields had in older layouts."""


@st.composite
def records(draw: st.DrawFn) -> Any:
    """Content in place of a record: a valid record, or one with a few fields that are something else."""
    data = draw(states()).to_dict()
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from([*data, "new"]))
        data[name] = draw(json_values() | wholes() | st.dictionaries(odd_text(), json_values(), max_size=2))
        if draw(st.integers(0, 4)) == 0:
            del data[name]
    return data


@fuzz(150)
@example(
    data={
        _OLDER.get(name, name): value
        for name, value in State(generation="g", settings=Settings(1), due=0, current_due=0, last_now=0)
        .to_dict()
        .items()
        if name not in ("late_total", "error", "error_until")
    }
    | {"version": 1}
)
@example(
    data={
        **State(generation="g", settings=Settings(1), due=0, current_due=0, last_now=0).to_dict(),
        "running": {"²": 1},
    }
)
@example(
    data={
        **State(generation="g", settings=Settings(1), due=0, current_due=0, last_now=0).to_dict(),
        "last_now": True,
    }
)
@given(data=records() | json_values())
def test_a_record_is_read_or_refused(data: Any) -> None:
    try:
        state = State.from_dict(data)
    except (BadRecord, NewerRecord) as error:
        assert len(str(error)) < 200 + 10**4
        return
    written = state.to_dict()
    assert [name for name, value in written.items() if isinstance(value, bool)] == ["ephemeral"]
    assert State.from_dict(json.loads(json.dumps(written))) == state
    unlike = {name for name in written if name not in data or repr(data[name]) != repr(written[name])}
    if data["version"] < LAYOUT:  # which is raised to the present one
        unlike -= {"version", "error", "error_until", *_OLDER}
    assert unlike <= {"running", "held_since"}  # leading zeros in the one, and no field for the other


@fuzz(150)
@given(state=states(), command=commands(), now=instants())
def test_the_rules_have_an_answer_to_all_that_is_sound(state: State, command: Command, now: int) -> None:
    after, answer = apply(state, command, now)
    assert answer.now == now
    assert len(answer.taken) <= 1_000
    json.dumps(command.to_dict())
    if after is not None:
        assert after.ticket >= state.ticket or after.generation != state.generation
        assert max(after.current, after.revoked_through) <= after.ticket


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    queues = draw(
        st.dictionaries(st.sampled_from(["q", "q:key", "other"]) | odd_text(), records(), max_size=3)
    )
    top = {"intervalq": draw(st.sampled_from([1, 1, 1, 1, 2, 0, True, 1.0])), "queues": queues, **draw(
        st.dictionaries(st.text(max_size=3), json_values(), max_size=2)
    )}  # fmt: skip
    text = draw(mutated(st.just(json.dumps(top))))
    return text.encode(errors="surrogatepass")


@fuzz(150)
@example(content=b'{"intervalq": true, "queues": {}}', now=0)
@example(content=b'{"intervalq": 1.0, "queues": {}}', now=0)
@given(content=documents() | st.binary(max_size=60), now=instants())
def test_a_state_file_is_read_or_refused(content: bytes, now: int) -> None:
    try:
        document = Document(content, URL)
    except (CorruptState, VersionMismatch) as error:
        assert str(error).isprintable()
        assert len(str(error)) < 800
        return
    assert type(json.loads(content)["intervalq"]) is int
    document.forget_lapsed(now)
    for name in document.names():
        try:
            state = document.get(name)
        except StoreError as error:
            assert str(error).isprintable()
        else:
            document.put(name, state)
    try:
        written = document.to_bytes()
    except CorruptState:
        return
    again = Document(written, URL)
    assert again.names() == document.names()
    assert again.to_bytes() == written


@fuzz(150)
@example(text="NaN")
@example(text="[-Infinity]")
@example(text="1e999")
@example(text='{"a": 1, "a": 1}')
@example(text="[" * 100_000)
@given(text=mutated(json_values().map(json.dumps)) | odd_text())
def test_json_is_read_strictly_or_refused(text: str) -> None:
    try:
        data = parse(text)
    except ValueError as error:
        assert shown(error).isprintable()
        return
    json.dumps(data, allow_nan=False)
    assert repr(parse(json.dumps(data))) == repr(data)
    assert isinstance(data, dict) is text.strip(" \t\r\n").startswith("{")


@fuzz(100)
@given(data=records(), queue=st.sampled_from(["q", "q:k"]))
def test_what_is_wrong_with_a_record_names_the_queue(data: Any, queue: str) -> None:
    try:
        state_of(data, queue, URL)
    except (CorruptState, VersionMismatch) as error:
        assert repr(queue) in str(error)
        assert len(str(error)) < 800
    else:
        assume(False)  # only errors are of interest
