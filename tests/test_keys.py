"""Keys may be any text: no two are confused, every store accepts them, and they are shown as given."""

from __future__ import annotations

import pickle
import re
import secrets
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intervalq import IntervalQueue
from intervalq._keys.names import shown, token
from intervalq.cli._options import queue_of
from intervalq.errors import InvalidName
from intervalq.store import open_store
from intervalq.sync import IntervalQueue as BlockingQueue

ODD = [
    "a@b.c", "host:8080", "-", "_", ".", "a b", "é", "日本語", "../x", "a\0b", "\n", "ſ", "'; drop", "{a}*>",
    "😀",
]  # fmt: skip
LONG = ["@" * 200, "@" * 199 + "!", "日" * 10_000, "x" * 129]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
alike = st.text("aA_-.5f@", min_size=1, max_size=12)


@given(texts | alike)
def test_a_key_is_read_back(key: str) -> None:
    written = token(key)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", written)
    if "__" not in written or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", key):
        assert shown(f"q:{written}") == f"q:{key}"


@given(alike, alike)
def test_keys_that_look_alike_are_different(one: str, other: str) -> None:
    assert (token(one) == token(other)) == (one == other)


def test_no_key_is_taken_for_another_not_even_for_what_another_is_written_as() -> None:
    keys = [*ODD, *LONG]
    keys += [token(key) for key in keys] + [token(token(key)) for key in keys]
    keys += [shown(f"q:{token(key)}")[2:] for key in LONG]
    assert len({token(key) for key in keys}) == len({*keys})


@pytest.mark.parametrize("key", ["a", "A.b-c_9", "0", "x" * 128, "tenant-42", "a__b"])
def test_plain_keys_keep_their_records(key: str) -> None:
    assert token(key) == key
    assert shown(f"q:{key}") == f"q:{key}"


@pytest.mark.parametrize("key", ["", None, 4, b"a", "x" * 10_001, "\ud800"])
def test_what_is_no_text_is_no_key(key: object) -> None:
    with pytest.raises(InvalidName, match="is not a key: give text of 1 to 10000 characters"):
        IntervalQueue("q", interval=1)[key]  # type: ignore[index]


def test_a_long_key_is_shown_by_its_beginning() -> None:
    name = shown(f"q:{token('日' * 500)}")
    assert re.fullmatch(r"q:日{6}\.\.\.[0-9a-f]{64}", name)


def test_a_handle_shows_and_carries_its_key() -> None:
    queue = IntervalQueue("q", interval=1, store="memory://")
    assert queue["a@b.c"].name == "q:a@b.c"
    assert "'q:a@b.c'" in repr(queue["a@b.c"])
    mine = queue["a@b.c"]
    assert queue["a@b.c"] is mine
    assert pickle.loads(pickle.dumps(mine)).name == "q:a@b.c"
    assert BlockingQueue("q", interval=1, store="memory://")["a@b.c"].name == "q:a@b.c"
    with pytest.raises(TypeError, match="already the queue of a key"):
        mine["b"]


async def records(url: str) -> list[str]:
    """The names of all records in the store."""
    store = open_store(url)
    try:
        return await store.names()
    finally:
        await store.aclose()


@pytest.mark.parametrize("kind", ["file", "sqlite", "redis", "valkey", "redis_cluster", "postgres", "nats"])
def test_every_store_takes_any_key(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    paths = {"file": f"{tmp_path}/q.json", "sqlite": f"{tmp_path}/q.db"}
    url = paths[kind] if kind in paths else request.getfixturevalue(f"{kind}_url")
    name = f"keys-{secrets.token_hex(4)}"

    async def scenario() -> None:
        async with IntervalQueue(name, interval=0.001, store=url) as queue:
            for key in (*ODD, *LONG):
                async with queue[key].slot():
                    pass
                state = await queue[key].inspect()
                assert state.ticket == 1
                assert state.name == f"{name}:{key}" or key in LONG
            listed = {shown(each) for each in await records(url) if each.startswith(f"{name}:")}
            assert {f"{name}:{key}" for key in ODD} <= listed
            assert len(listed) == len(ODD) + len(LONG)
            assert queue_of(f"{name}:host:8080", url).name == queue["host:8080"].name
            for key in (*ODD, *LONG):
                await queue[key].drop()

    anyio.run(scenario)
