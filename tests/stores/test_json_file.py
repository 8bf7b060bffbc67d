from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import layouts
from backends import both_backends
from intervalq import rules
from intervalq.errors import (
    CorruptState,
    InvalidOption,
    StoreError,
    StoreUnavailable,
    VersionMismatch,
)
from intervalq.rules import Advance, Answer, Drop, Finish, Hold, Inspect, Settings, State
from intervalq.store import open_store
from intervalq.testing import StoreSuite
from intervalq_stores._files import locked_file
from intervalq_stores.json.queues import JSONFileStore
from stores import file_stores
from stores.file_stores import only_the_end_of_the_hold_wakes

anyio_backend = both_backends
path = file_stores.json_path
store = file_stores.json_store

EACH_SECOND = Settings(interval=1_000_000)
TAKE = Advance(settings=EACH_SECOND, nonce="n", take=1)


class TestJSONFileStore(StoreSuite):
    @pytest.fixture
    def store_url(self, tmp_path: Path) -> str:
        return (tmp_path / "new folder" / "state.json").as_uri()


def record(**changes: object) -> dict[str, object]:
    state = State(generation="g", settings=EACH_SECOND, due=0, current_due=0, last_now=0)
    return {**state.to_dict(), **changes}


def content(**changes: object) -> str:
    return json.dumps({"intervalq": 1, "queues": {"other": record(), "q": record(**changes)}})


# --- the file ---------------------------------------------------------------------------------------


async def test_the_file_and_its_folder_are_private_and_a_queue_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "state.json"
    store = JSONFileStore(path.as_uri())
    await store.apply("q", TAKE)
    await store.apply("r:key", TAKE)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()} == {
        "state.json": 0o600,
        "state.json.lock": 0o600,
    }
    lines = path.read_text().splitlines()
    assert lines[:3] == ["{", ' "intervalq": 1,', ' "queues": {']
    assert [line[:9] for line in lines[3:]] == ['  "q": {"', '  "r:key"', " }", "}"]
    await store.aclose()


async def test_nothing_is_written_when_nothing_changed(store: JSONFileStore, path: Path) -> None:
    await store.apply("q", Inspect())
    assert not path.exists()
    await store.apply("q", TAKE)
    before = path.stat()
    await store.apply("q", Inspect())
    await store.apply("missing", Hold())
    after = path.stat()  # reading it may change its time of access
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_size,
    )


async def test_fields_that_are_not_known_are_kept(store: JSONFileStore, path: Path) -> None:
    data = json.loads(content(comment={"wait": 1.5}))
    path.write_text(json.dumps({"note": ["ü", None], **data}))
    answer = await store.apply("q", Advance(take=2))
    assert answer.state is not None
    after = json.loads(path.read_text())
    assert after["note"] == ["ü", None]
    assert after["queues"] == {
        "other": record(),
        "q": {"comment": {"wait": 1.5}, **answer.state.to_dict()},
    }


async def test_idle_keyed_records_make_room_for_a_new_one(store: JSONFileStore, path: Path) -> None:
    old = {"ephemeral": True, "due": -(10**9)}
    path.write_text(
        json.dumps(
            {
                "intervalq": 1,
                "queues": {
                    "kept": record(),
                    "gone:1": record(**old),
                    "held:1": record(**old, held_since=0, held_until=rules.FOREVER),
                    "broken:1": record(**old, ticket=-1),
                    "newer:1": record(**old, version=rules.LAYOUT + 1),
                },
            }
        )
    )
    await store.apply("kept", Advance(take=1))
    await store.apply("given", TAKE, 10**15)
    assert "gone:1" in await store.names()
    await store.apply("new", TAKE)
    assert await store.names() == ["broken:1", "given", "held:1", "kept", "new", "newer:1"]


BAD = {
    "empty": (b"", CorruptState),
    "no JSON": (b"{'intervalq': 1}", CorruptState),
    "cut short": (content().encode()[:-3], CorruptState),
    "not UTF-8": (b'{"intervalq": 1, "queues": {}, "\xff": 1}', CorruptState),
    "UTF-16": (content().encode("utf-16"), CorruptState),
    "with a mark": (b"\xef\xbb\xbf" + content().encode(), CorruptState),
    "a list": (b"[]", CorruptState),
    "no version": (b'{"queues": {}}', CorruptState),
    "version true": (b'{"intervalq": true, "queues": {}}', CorruptState),
    "version 0": (b'{"intervalq": 0, "queues": {}}', CorruptState),
    "newer": (b'{"intervalq": 2, "queues": []}', VersionMismatch),
    "no queues": (b'{"intervalq": 1}', CorruptState),
    "queues a list": (b'{"intervalq": 1, "queues": []}', CorruptState),
    "a name with a line feed": (b'{"intervalq": 1, "queues": {"a\\nb": {}}}', CorruptState),
    "a field twice": (content().replace('"ticket"', '"due"').encode(), CorruptState),
    "a queue twice": (content().replace('"other"', '"q"').encode(), CorruptState),
    "NaN": (content(last_now=float("nan")).encode(), CorruptState),
    "infinite": (content().replace('"last_now": 0', '"last_now": 1e999').encode(), CorruptState),
    "many digits": (content().replace('"last_now": 0', f'"last_now": {"9" * 5000}').encode(), CorruptState),
    "deep": (b'{"intervalq": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b', "queues": {}}', CorruptState),
    "huge": (content().encode() + b" " * locked_file.MAX_BYTES, CorruptState),
    "a record of text": (b'{"intervalq": 1, "queues": {"q": "x"}}', CorruptState),
    "ticket not whole": (content(ticket=1.0).encode(), CorruptState),
    "ticket negative": (content(ticket=-1).encode(), CorruptState),
    "ticket missing": (content().replace('"ticket"', '"tickets"').encode(), CorruptState),
    "current above ticket": (content(current=1).encode(), CorruptState),
    "record newer": (content(version=rules.LAYOUT + 1).encode(), VersionMismatch),
}


async def test_a_record_of_layout_1_is_raised_in_the_step_that_comes_next(
    store: JSONFileStore, path: Path
) -> None:
    old = {"intervalq": 1, "queues": {"old": layouts.LAYOUT_1, "same": layouts.LAYOUT_1}}
    path.write_text(json.dumps(old))
    after = await layouts.is_raised(store, "old")
    assert json.loads(path.read_text()) == {
        "intervalq": 1,
        "queues": {"old": after, "same": layouts.LAYOUT_1},
    }


@pytest.mark.parametrize("name", BAD)
async def test_content_that_is_not_ours_is_refused_and_left(
    store: JSONFileStore, path: Path, name: str
) -> None:
    written, expected = BAD[name]
    path.write_bytes(written)
    for command in (TAKE, Inspect(), Drop(), Finish(settings=EACH_SECOND, nonce="n")):
        with pytest.raises(expected) as raised:
            await store.apply("q", command)
        assert str(raised.value).startswith(store.url)
        assert "give another path" in str(raised.value) or "left as it is" in str(raised.value)
        assert len(str(raised.value)) < 600
    assert path.read_bytes() == written
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]
    assert any(level == "error" for level, _ in await store.advice())


async def test_a_broken_record_does_not_concern_other_queues(store: JSONFileStore, path: Path) -> None:
    path.write_text(content(ticket="many"))
    assert (await store.apply("other", TAKE)).count == 1
    with pytest.raises(CorruptState, match="queue 'q' is broken: 'ticket' must be a whole number"):
        await store.apply("q", TAKE)
    assert json.loads(path.read_text())["queues"]["q"]["ticket"] == "many"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Our own content with a changed field or changed bytes, or anything at all."""
    data = json.loads(content(held_since=5, running={"7": 9}))
    where = draw(st.sampled_from([data, data["queues"], data["queues"]["q"], data["queues"]["q"]["running"]]))
    where[draw(st.sampled_from([*where, "new"]))] = draw(VALUES)
    written = bytearray(json.dumps(data).encode())
    if draw(st.booleans()):
        start = draw(st.integers(0, len(written)))
        written[start : start + draw(st.integers(0, 9))] = draw(st.binary(max_size=9))
    return draw(st.just(bytes(written)) | st.binary(max_size=40))


@pytest.fixture
def attempt(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Take a ticket from a file with this content: it works, or fails and leaves the file unchanged."""
    store = JSONFileStore(path.as_uri())

    async def take(written: bytes) -> Answer | StoreError:
        path.write_bytes(written)
        try:
            return await store.apply("q", TAKE, now=10**9)
        except (CorruptState, VersionMismatch) as error:
            return error

    with start_blocking_portal() as portal:

        def attempt(written: bytes) -> None:
            if isinstance(portal.call(take, written), Answer):
                json.loads(path.read_text())
            else:
                assert path.read_bytes() == written

        yield attempt
        portal.call(store.aclose)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(written=b'{"intervalq": 1, "queues": {}, "\\ud800": 1}')
@given(written=contents())
def test_any_content_works_or_is_refused(attempt: Callable[[bytes], None], written: bytes) -> None:
    attempt(written)


# --- where it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "file:///a/b?timeout=1",
        "file:///a/b?",
        "file:///a/b#c",
        "file://host/a",
        "file://a",
        "file:///",
        "file:///a/",
        "file:///a%00b",
        "file://[/a",
    ],
)
def test_urls_that_make_no_sense_are_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        open_store(url)


async def test_a_path_with_odd_characters_comes_back_from_its_url(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a b?#%41\n\xff") / "ü.json"
    store = open_store(str(path))
    assert store.url == path.as_uri() == JSONFileStore(f"file://localhost{store.url[7:]}").url
    await store.apply("q", TAKE)
    assert path.exists()


async def test_a_path_below_a_file_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = JSONFileStore((tmp_path / "file" / "state.json").as_uri())
    with pytest.raises(StoreUnavailable, match="give another path"):
        await store.apply("q", TAKE)
    assert any(level == "error" for level, _ in await store.advice())


# --- waking -----------------------------------------------------------------------------------------


async def test_only_the_end_of_the_hold_wakes(
    store: JSONFileStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await only_the_end_of_the_hold_wakes(store, JSONFileStore(path.as_uri()), monkeypatch)


async def test_a_broken_file_wakes_so_that_the_step_after_says_it(store: JSONFileStore, path: Path) -> None:
    await store.apply("q", Hold(settings=EACH_SECOND, nonce="n"))
    with anyio.fail_after(20):
        async with store.wakeups("q") as wait:
            path.write_text("broken")
            await wait()
            path.unlink()
            await wait()
