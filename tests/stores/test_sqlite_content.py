from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import layouts
from backends import both_backends
from databases import at_rest, make, opened, rows, text
from intervalq import rules
from intervalq.errors import CorruptState, VersionMismatch
from intervalq.rules import Advance, Drop, Finish, Inspect, Settings
from intervalq_stores._files import locked_file
from intervalq_stores.sqlite import _queue_database as sqlite_queue_database
from intervalq_stores.sqlite.queues import SQLiteStore
from stores import file_stores

anyio_backend = both_backends
path = file_stores.sqlite_path
store = file_stores.sqlite_store

EACH_SECOND = Settings(interval=1_000_000)
TAKE = Advance(settings=EACH_SECOND, nonce="n", take=1)


# --- what isn't ours --------------------------------------------------------------------------------


def ours(**changes: object) -> Callable[[Path], None]:
    return lambda path: make(path, {"other": text(), "q": text(**changes)})


def stored(value: object) -> Callable[[Path], None]:
    return lambda path: make(path, {"other": text(), "q": value})


def statements(script: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        ours()(path)
        with opened(path) as connection:
            connection.executescript(script)

    return write


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        ours()(path)
        path.write_bytes(change(path.read_bytes()))

    return write


def of_somebody_else(path: Path) -> None:
    with opened(path) as connection:
        connection.executescript("PRAGMA user_version = 7; CREATE TABLE urls (url TEXT);")
    path.chmod(0o600)


BAD = {
    "empty": (content(lambda _: b""), CorruptState),
    "no database": (content(lambda _: b"{'intervalq': 1}" * 100), CorruptState),
    "of JSON": (content(lambda _: json.dumps({"intervalq": 1, "queues": {}}).encode()), CorruptState),
    "header changed": (content(lambda old: b"X" + old[1:]), CorruptState),
    "cut short in the header": (content(lambda old: old[:50]), CorruptState),
    "cut short": (content(lambda old: old[:4096]), CorruptState),
    "cut short in a page": (content(lambda old: old[:6000]), CorruptState),
    "a page of zeros": (content(lambda old: old[:4096] + bytes(4096) + old[8192:]), CorruptState),
    "a page of ones": (content(lambda old: old[:4096] + b"\xff" * 4096 + old[8192:]), CorruptState),
    "of somebody else": (of_somebody_else, CorruptState),
    "without version": (statements("PRAGMA user_version = 0"), CorruptState),
    "version negative": (statements("PRAGMA user_version = -1"), CorruptState),
    "newer": (statements("PRAGMA user_version = 2"), VersionMismatch),
    "no table": (statements("DROP TABLE queues"), CorruptState),
    "no column": (statements("ALTER TABLE queues RENAME COLUMN record TO records"), CorruptState),
    "a record of NULL in another table": (
        statements("DROP TABLE queues; CREATE TABLE queues (name, record, lapses);"
                   "INSERT INTO queues VALUES ('q', 'x', 0)"),
        CorruptState,
    ),
    "a record of bytes": (stored(text().encode()), CorruptState),
    "a record that is no JSON": (stored("{'a': 1}"), CorruptState),
    "a record cut short": (stored(text()[:-3]), CorruptState),
    "a record of nothing": (stored(""), CorruptState),
    "a record not UTF-8": (
        statements("UPDATE queues SET record = CAST(x'7b22ff223a317d' AS TEXT)"),
        CorruptState,
    ),
    "a list": (stored("[]"), CorruptState),
    "a field twice": (stored(text().replace('"ticket"', '"due"')), CorruptState),
    "NaN": (ours(last_now=float("nan")), CorruptState),
    "infinite": (stored(text().replace('"last_now": 0', '"last_now": 1e999')), CorruptState),
    "many digits": (stored(text().replace('"last_now": 0', f'"last_now": {"9" * 5000}')), CorruptState),
    "deep": (stored("[" * 100_000 + "]" * 100_000), CorruptState),
    "huge": (stored(text() + " " * locked_file.MAX_BYTES), CorruptState),
    "ticket not whole": (ours(ticket=1.0), CorruptState),
    "ticket negative": (ours(ticket=-1), CorruptState),
    "ticket missing": (stored(text().replace('"ticket"', '"tickets"')), CorruptState),
    "current above ticket": (ours(current=1), CorruptState),
    "record newer": (ours(version=rules.LAYOUT + 1), VersionMismatch),
}  # fmt: skip


async def test_a_record_of_layout_1_is_raised_in_the_step_that_comes_next(
    store: SQLiteStore, path: Path
) -> None:
    old = json.dumps(layouts.LAYOUT_1)
    make(path, {"old": old, "same": old})
    after = await layouts.is_raised(store, "old")
    await at_rest(store)
    kept = rows(path)
    assert json.loads(str(kept["old"])) == after
    assert kept["same"] == old


@pytest.mark.parametrize("name", BAD)
async def test_content_that_is_not_ours_is_refused_and_left(
    store: SQLiteStore, path: Path, name: str
) -> None:
    write, expected = BAD[name]
    write(path)
    path.chmod(0o600)
    before = path.read_bytes()
    for command in (TAKE, Inspect(), Drop(), Finish(settings=EACH_SECOND, nonce="n")):
        with pytest.raises(expected) as raised:
            await store.apply("q", command)
        assert str(raised.value).startswith(store.url)
        assert "give another path" in str(raised.value) or "left as it is" in str(raised.value)
        assert len(str(raised.value)) < 600
    assert any(level == "error" for level, _ in await store.advice())
    assert await at_rest(store) == ["state.db", "state.db.lock"]
    assert path.read_bytes() == before


async def test_a_database_of_somebody_else_is_not_touched_at_all(store: SQLiteStore, path: Path) -> None:
    of_somebody_else(path)
    before = path.read_bytes()
    with pytest.raises(CorruptState, match="another application"):
        await store.apply("q", TAKE)
    with pytest.raises(CorruptState, match="another application"):
        await store.names()
    await at_rest(store)
    assert path.read_bytes() == before


async def test_a_broken_record_does_not_concern_other_queues(store: SQLiteStore, path: Path) -> None:
    ours(ticket="many")(path)
    outcomes: dict[str, list[object]] = {"other": [], "q": []}

    async def take(queue: str) -> None:
        try:
            outcomes[queue].append((await store.apply(queue, TAKE)).count)
        except CorruptState as error:
            outcomes[queue].append("queue 'q' is broken: 'ticket' must be a whole number" in str(error))

    async with anyio.create_task_group() as group:
        with locked_file.SharedFile(path, store.url).locked():
            for number in range(1, 7):
                group.start_soon(take, "q" if number % 2 else "other")
                while len(store._thread._jobs) < number:
                    await checkpoint()
    assert outcomes == {"other": [1, 1, 1], "q": [True, True, True]}
    await at_rest(store)
    assert rows(path)["q"] == text(ticket="many")


async def test_a_name_that_can_be_no_name_is_told(store: SQLiteStore, path: Path) -> None:
    make(path, {"a\nb": text()})
    with pytest.raises(CorruptState, match=r"'a\\nb' can't be the name"):
        await store.names()


async def test_a_newer_version_that_comes_meanwhile_is_noticed(store: SQLiteStore, path: Path) -> None:
    await store.apply("q", TAKE)
    with opened(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(VersionMismatch):
        await store.apply("q", TAKE)


@pytest.mark.parametrize("again", [False, True])
async def test_a_database_that_is_removed_or_replaced_is_not_written_any_more(
    store: SQLiteStore, path: Path, *, again: bool
) -> None:
    """Its log is not applied to the database that replaced it either."""
    await store.apply("q", TAKE)
    await store.apply("old", TAKE)
    path.unlink()
    if again:
        for end in sqlite_queue_database.BESIDE:
            path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
        make(path, {"new": text()})
    answer = await store.apply("q", TAKE)
    assert answer.taken[0].ticket == 1
    assert await SQLiteStore(store.url).names() == (["new", "q"] if again else ["q"])
    assert ("error", 1) not in [(level, 1) for level, _ in await store.advice()]


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Take a ticket from a database of these bytes: it works, or fails and leaves the file unchanged."""
    path = tmp_path / "fuzzed.db"

    async def take(written: bytes) -> None:
        path.write_bytes(written)
        path.chmod(0o600)
        for end in sqlite_queue_database.BESIDE:
            path.with_name(f"{path.name}{end}").unlink(missing_ok=True)
        store = SQLiteStore(f"sqlite://{path}")
        with contextlib.suppress(CorruptState, VersionMismatch):
            await store.apply("q", TAKE, now=10**9)
            await store.apply("r", TAKE, now=10**9)
        await at_rest(store)

    with start_blocking_portal() as portal:
        yield lambda written: portal.call(take, written)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_damage_works_or_is_refused(
    attempt: Callable[[bytes], None], tmp_path: Path, data: st.DataObject
) -> None:
    whole = tmp_path / "whole.db"
    if not whole.exists():
        ours()(whole)
    written = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        page = data.draw(st.integers(0, len(written) // 4096 - 1)) * 4096
        start = page + data.draw(st.integers(0, 120) | st.integers(3_500, 4_095))
        change = data.draw(st.binary(min_size=1, max_size=8))
        written[start : start + len(change)] = change
    attempt(bytes(written[: data.draw(st.just(len(written)) | st.integers(0, len(written)))]))
