from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.material import LIMITS, ODD, fuzz
from fuzz.queues import commands, instants, states
from intervalq.errors import StoreError, StoreUnavailable
from intervalq.rules import FOREVER, LAYOUT, Advance, Answer, Command, Drop, Hold, Settings, State, apply
from intervalq.store import Store, open_store
from servers import redis_client

Ask = Callable[[Command, int], Answer | StoreError]


@contextmanager
def asking(url: str) -> Iterator[Ask]:
    """Ask a store about queue `fuzzed`; an error must say what is wrong with the record."""

    async def ask(store: Store, command: Command, now: int) -> Answer | StoreError:
        try:
            return await store.apply("fuzzed", command, now)
        except StoreUnavailable:
            raise
        except StoreError as error:
            assert str(error).isprintable()
            return error

    with start_blocking_portal() as portal:
        store = open_store(url)
        yield lambda command, now: portal.call(ask, store, command, now)
        portal.call(ask, store, Drop(), 0)
        portal.call(store.aclose)


def is_near(state: State | None) -> bool:
    """Whether all its numbers are far from those that a server can't hold."""
    if state is None:
        return True
    numbers = [
        value for name, value in state.to_dict().items() if isinstance(value, int) and name != "held_until"
    ]
    return all(abs(number) < 2**50 for number in (*numbers, *state.running, *state.running.values()))


def says_the_same(state: State, command: Command, now: int, answered: Answer | StoreError) -> None:
    """Compare the server's answer with the rules', unless a number is near the limit of what it holds."""
    after, expected = apply(state, command, now)
    if isinstance(answered, Answer):
        assert len(answered.taken) <= 1_000
    values = [value for name, value in command.to_dict().items() if isinstance(value, int)]
    values.append(now)
    near = all(abs(value) < 2**50 or value == FOREVER for value in values)
    if near and is_near(state) and is_near(after) and is_near(expected.state):
        assert answered == expected


SOUND = State(
    generation="\U0001f600\ufffd\u07ff",
    settings=Settings(1, max_running=2),
    ticket=5,
    due=0,
    current_due=0,
    last_now=1,
)


# --- Redis ------------------------------------------------------------------------------------------


def hashed(state: State) -> dict[str, Any]:
    """The hash that contains a record."""
    data = state.to_dict()
    running = data.pop("running")
    data["ephemeral"] = int(state.settings.ephemeral)
    data["held_since"] = "" if state.held_since is None else state.held_since
    return {**data, **{f"running:{ticket}": until for ticket, until in running.items()}}


def as_text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)


def unhashed(texts: dict[str, str]) -> State:
    """The record in a hash; an error if the hash has no valid one."""
    data: dict[str, Any] = {
        name: value if name == "generation" else whole(value) if value or name != "held_since" else None
        for name, value in texts.items()
        if not name.startswith("running:") and (name in hashed(SOUND))
    }
    texts["generation"].encode()  # an error if it isn't UTF-8
    if data.get("ephemeral") not in {0, 1} or "held_since" not in data:
        raise ValueError("no record")
    leases = {
        name.removeprefix("running:"): whole(until) for name, until in texts.items() if name[:8] == "running:"
    }
    return State.from_dict({**data, "ephemeral": bool(data["ephemeral"]), "running": leases})


def whole(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,17}", text):
        raise ValueError("no number")
    return int(text)


@pytest.fixture(params=["redis", "valkey"])
def in_redis(request: pytest.FixtureRequest) -> Iterator[Callable[[dict[Any, Any], Command, int], Any]]:
    url = request.getfixturevalue(f"{request.param}_url")
    with asking(url) as ask, redis_client(url) as client:

        def put_and_ask(record: dict[Any, Any], command: Command, now: int) -> Answer | StoreError:
            client.delete("intervalq:{fuzzed}")
            if record:
                client.hset("intervalq:{fuzzed}", mapping=record)
            before = client.hgetall("intervalq:{fuzzed}")
            answered = ask(command, now)
            if isinstance(answered, StoreError):
                assert client.hgetall("intervalq:{fuzzed}") == before
            return answered

        yield put_and_ask


@fuzz(60)
@given(state=states(), command=commands(), now=instants())
def test_a_redis_takes_any_sound_record(
    in_redis: Callable[[dict[Any, Any], Command, int], Any], state: State, command: Command, now: int
) -> None:
    says_the_same(state, command, now, in_redis(hashed(state), command, now))


@st.composite
def hashes(draw: st.DrawFn) -> dict[str | bytes, str | bytes]:
    """A record as Redis holds it, with a few fields that are something else."""
    made: dict[str | bytes, str | bytes] = {
        name: str(value) for name, value in hashed(draw(states())).items()
    }
    text = st.one_of(
        st.sampled_from(LIMITS).map(str),
        st.sampled_from([piece.encode(errors="surrogatepass") for piece in ODD]),
        st.binary(max_size=20),
        st.integers(-(2**70), 2**70).map(str),
    )
    for _ in range(draw(st.integers(1, 3))):
        name = draw(
            st.sampled_from([*made, "running:", "running:x", "running:-1", "running:" + "1" * 20, b"\xff"])
        )
        made[name] = draw(text)
        if draw(st.integers(0, 4)) == 0:
            del made[name]
    return made


@fuzz(60)
@example(record=hashed(SOUND) | {"generation": b"\xed\xa0\x80"}, command=Hold(), now=0)
@example(record=hashed(SOUND) | {"ticket": "1" * 18}, command=Hold(), now=0)
@example(record=hashed(SOUND) | {"void": "6"}, command=Hold(), now=0)
@example(record=hashed(SOUND) | {"current": "6"}, command=Hold(), now=0)
@example(record=hashed(SOUND) | {"seen": "1e3"}, command=Hold(), now=0)
@given(record=hashes(), command=commands(), now=instants())
def test_a_redis_takes_or_refuses_any_hash(
    in_redis: Callable[[dict[Any, Any], Command, int], Any],
    record: dict[Any, Any],
    command: Command,
    now: int,
) -> None:
    answered = in_redis(record, command, now)
    try:
        texts = {os.fsdecode(name): as_text(value) for name, value in record.items()}
        state = unhashed(texts)
    except (ValueError, KeyError):  # not UTF-8, not a number, or not a record
        assert isinstance(answered, StoreError), "it isn't one of ours"
    else:
        says_the_same(state, command, now, answered)


# --- Postgres ---------------------------------------------------------------------------------------


@pytest.fixture
def in_postgres(postgres_url: str) -> Iterator[Callable[[dict[str, Any], Command, int], Any]]:
    with asking(postgres_url) as ask, psycopg.connect(postgres_url, autocommit=True) as connection:
        ask(Hold(settings=Settings(1), nonce="n"), 0)

        def put_and_ask(row: dict[str, Any], command: Command, now: int) -> Answer | StoreError:
            columns = ", ".join(row)
            connection.execute("delete from intervalq.queues where name = 'fuzzed'")
            connection.execute(
                f"insert into intervalq.queues (name, {columns}) values ('fuzzed'{', %s' * len(row)})",
                list(row.values()),
            )
            look = "select * from intervalq.queues where name = 'fuzzed'"
            before = connection.execute(look).fetchall()
            answered = ask(command, now)
            if isinstance(answered, StoreError):
                assert connection.execute(look).fetchall() == before
            return answered

        yield put_and_ask


def row_of(state: State) -> dict[str, Any]:
    """The row that contains a record."""
    data = state.to_dict()
    running = data.pop("running")
    return {**data, "running": [int(ticket) for ticket in running], "leases": list(running.values())}


@fuzz(60)
@given(state=states(), command=commands(), now=instants())
def test_a_postgres_takes_any_sound_record(
    in_postgres: Callable[[dict[str, Any], Command, int], Any], state: State, command: Command, now: int
) -> None:
    says_the_same(state, command, now, in_postgres(row_of(state), command, now))


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """A record as Postgres holds it, with a few columns that are something else."""
    made = row_of(draw(states()))
    big = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53, -(2**53), 2**63 - 1, -(2**63), 0, -1])
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(list(made)))
        if name == "version":
            made[name] = draw(st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, 2, 3]))
        elif name == "generation":
            made[name] = draw(st.text(max_size=5).filter(lambda text: "\0" not in text))
        elif name == "ephemeral":
            made[name] = draw(st.booleans())
        elif name in {"running", "leases"}:
            flat = st.lists(st.none() | big, max_size=3)
            made[name] = draw(flat | st.lists(st.lists(big, min_size=2, max_size=2), min_size=1, max_size=2))
        else:
            made[name] = draw(big)
    return made


@fuzz(60)
@example(row=None, command=Advance(generation="g", take=1), now=0)
@given(row=rows(), command=commands(), now=instants())
def test_a_postgres_takes_or_refuses_any_row(
    in_postgres: Callable[[dict[str, Any], Command, int], Any],
    row: dict[str, Any] | None,
    command: Command,
    now: int,
) -> None:
    if row is None:
        state = State(generation="g", settings=Settings(1, max_running=2), due=0, current_due=0, last_now=0)
        row = {**row_of(state), "running": [[1, 2], [3, 4]], "leases": [[5, 6], [7, 8]]}
    answered = in_postgres(row, command, now)
    if any(isinstance(value, list) for value in (*row["running"], *row["leases"])):
        return  # a table in a column: whatever it says, there is an answer
    try:
        leases = dict(zip(map(str, row["running"]), row["leases"], strict=True))
        version = LAYOUT if 1 <= row["version"] <= LAYOUT else row["version"]  # all have the columns of today
        state = State.from_dict({**row, "version": version, "running": leases})
    except ValueError:
        assert isinstance(answered, StoreError), "it isn't one of ours"
    else:
        says_the_same(state, command, now, answered)
