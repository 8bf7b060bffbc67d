"""Records of layouts 2 to 5, as an older release left them: what each store makes of them now."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest

from intervalq import keyed, rules
from intervalq.keyed import Common
from intervalq.rules import (
    LAYOUT,
    RENAMED,
    Advance,
    Configure,
    HighWaterMark,
    Hold,
    Inspect,
    Limit,
    Settings,
    Slot,
    State,
)
from intervalq.store import Pairing, Store, open_store
from intervalq_stores.postgres.queues import SCHEMA
from intervalq_stores.sqlite._file import SCHEMA as SQLITE
from servers import Server, redis_client
from stores.postgres_sessions import sql

FILES: Final = Path(__file__).parent
NOW: Final = 1_700_000_020_000_000
SECOND: Final = 1_000_000

RECORDS: Final[dict[str, dict[str, Any]]] = json.loads((FILES / "records_layout_5.json").read_text())
"""The records in each of the files `records_layout_5.*`.

They are plain ones with waiting jobs, with leases, and paused; with limits, in fixed windows, with an
automatic interval, and both; and those of key `ada` and of all keys.

In the file for Postgres, functions have no bodies: the tables are upgraded, and all functions replaced.
"""

AFTER: Final = (
    (0, Inspect()),
    (
        0,
        Advance(
            generation="g", take=2, high_water_mark=HighWaterMark(4, NOW, 0), reach=SECOND, lease=9 * SECOND
        ),
    ),
    (1_000, Configure(max_running=5, limits=(Limit(7, 60 * SECOND, "words"),))),
    (1_000, Hold(length=SECOND)),
    (3 * SECOND, Advance(generation="g", take=1, lease=9 * SECOND)),
)
"""How each of them goes on: how much later, and by which command."""

Kept = Callable[[str], dict[str, Any]]


def _json(path: Path) -> tuple[str, Kept]:
    path.write_text(json.dumps({"intervalq": 1, "queues": RECORDS}))
    return f"file://{path}", lambda queue: json.loads(path.read_text())["queues"][queue]


def _sqlite(path: Path) -> tuple[str, Kept]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(SQLITE)
        rows = [(queue, json.dumps(record)) for queue, record in RECORDS.items()]
        connection.executemany("INSERT INTO queues (name, record) VALUES (?, ?)", rows)

    def kept(queue: str) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            (text,) = connection.execute("SELECT record FROM queues WHERE name = ?", [queue]).fetchone()
        record: dict[str, Any] = json.loads(text)
        return record

    return f"sqlite://{path}", kept


def _redis(url: str) -> tuple[str, Kept]:
    def kept(queue: str) -> dict[str, Any]:
        with redis_client(url) as client:
            found = client.hgetall(f"intervalq:{{{queue}}}")
        return {name.decode(): value.decode() for name, value in found.items()}

    with redis_client(url) as client:
        for words in (FILES / "records_layout_5.redis.jsonl").read_text().splitlines():
            client.execute_command(*(word.encode("latin-1") for word in json.loads(words)))
    return url, kept


def _postgres(url: str) -> tuple[str, Kept]:
    def kept(queue: str) -> dict[str, Any]:
        [(row,)] = sql(url, "select to_json(q) from intervalq.queues q where name = %s", queue)
        record: dict[str, Any] = row
        return record

    sql(url, (FILES / "records_layout_5.postgres.sql").read_text())
    return url, kept


@pytest.fixture(params=["json", "sqlite", "redis", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, Kept]]:
    """A store with these records, and a function that reads what it keeps of a queue."""
    kind: str = request.param
    if kind == "redis":
        server: Server = request.getfixturevalue("own_redis")()
        url, kept = _redis(server.url)
    elif kind == "postgres":
        url, kept = _postgres(request.getfixturevalue("empty_postgres_url"))
    else:
        path = tmp_path / "records"
        url, kept = _json(path) if kind == "json" else _sqlite(path)
        path.chmod(0o600)
    async with aclosing(open_store(url)) as store:
        yield store, kept


async def test_they_go_on_as_by_the_rules_with_the_names_of_today(opened: tuple[Store, Kept]) -> None:
    store, kept = opened
    assert await store.names() == sorted(RECORDS)
    for queue, record in RECORDS.items():
        state: State | None = State.from_dict(record)
        now, before = NOW, kept(queue)
        for later, command in AFTER:
            now += later
            state, expected = rules.apply(state, command, now)
            assert await store.apply(queue, command, now) == expected, (queue, command)
            if command == Inspect():
                assert kept(queue) == before, "a look writes nothing"
        assert state is not None
        after = kept(queue)
        assert int(after["version"]) == state.to_dict()["version"] == LAYOUT > int(before["version"])
        assert not {*RENAMED} & {*after}
        assert {*RENAMED.values()} <= {*after}


async def test_keys_under_one_rate_go_on_and_both_records_have_the_names_of_today(
    opened: tuple[Store, Kept],
) -> None:
    store, kept = opened
    assert isinstance(store, Pairing)
    own, common = (State.from_dict(RECORDS[name]) for name in ("keys:ada", "keys"))
    settings = Settings(SECOND // 10, limits=common.settings.limits)
    known = Common(record="keys", settings=settings, own_pace=True, generation="c")
    slots = (Slot(own.ticket, own.due),)
    command = Advance(generation="g", slots=slots, take=1, reach=SECOND, units=((1, 1),))
    _, _, expected = keyed.apply_keyed(own, common, command, known, NOW + 2 * SECOND)
    assert await store.apply_keyed("keys:ada", command, known, NOW + 2 * SECOND) == expected
    assert expected.answer.begun, "so the common record is written, too"
    for name in ("keys:ada", "keys"):
        assert not {*RENAMED} & {*kept(name)}


async def test_a_schema_of_before_is_upgraded_once(empty_postgres_url: str) -> None:
    url, _ = _postgres(empty_postgres_url)
    async with aclosing(open_store(url)) as store:
        assert await store.names() == sorted(RECORDS)
    assert sql(url, "select number from intervalq.version") == [(SCHEMA,)]
    assert sql(url, "select distinct version from intervalq.queues order by 1") == [(2,), (3,), (4,), (5,)]
    assert not sql(url, "select from pg_proc where proname = '_layout_of'")
