"""Damaged rows of tasks and ledgers are read or refused by name, and nothing hangs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import nats
import psycopg
import pytest
from click.testing import CliRunner

from intervalq.cli._app import app
from intervalq.errors import IntervalqError
from intervalq.ledger import Ledger
from intervalq.ledger.rules import Claim, Ended, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Row
from servers import Server, redis_client

EVIL = "\x1b]0;owned\x07\x9b31m\u202e\r\n"
HUGE = 2**63 - 1
JSONS = [json.dumps(EVIL), f'"{EVIL}"', EVIL, "[" * 100_000, "", "9" * 5_000, "1e999", "NaN", "{}{}"]
JSONS += [f'["\x9b31m\u202e{"x" * 9_000}"]', f"\x1b[31m{'x' * 9_000}"]  # these are shown as they are stored


async def used(url: str, queue: str) -> None:
    """Use tasks in all the ways in which people and workers do."""
    tasks = Tasks(url)

    async def settle() -> None:
        claim = await tasks.try_claim(queue, lease=60)
        if claim is not None:
            assert repr(claim).isprintable()
            await claim.nak(error="no")

    async def look() -> None:
        for task in await tasks.tasks():
            task.value  # noqa: B018
            assert repr(task).isprintable()

    @tasks.worker(queue, max_attempts=2, backoff=0)
    async def work(_task: object) -> None:
        tasks.stop()

    async def run() -> None:
        with anyio.move_on_after(0.1):
            await tasks.run(grace=0)

    calls: list[Callable[[], Awaitable[object]]] = [
        look, lambda: tasks.tasks(queue), tasks.queues, tasks.sessions, settle, settle,
        lambda: tasks.insert(queue, 1, key="k"), run,
    ]  # fmt: skip
    with anyio.fail_after(60):
        async with tasks:
            for call in calls:
                with suppress_printable():
                    await call()


@contextmanager
def suppress_printable() -> Iterator[None]:
    """Ignore documented errors, but check that their message has no control characters."""
    try:
        yield
    except IntervalqError as error:
        assert str(error).isprintable()


async def checked(url: str, queue: str, id_: str, caplog: pytest.LogCaptureFixture) -> None:
    await anyio.to_thread.run_sync(shown, url, *looks(queue, id_))
    await used(url, queue)
    await anyio.to_thread.run_sync(shown, url, *looks(queue, id_))
    for record in caplog.records:
        assert record.getMessage().isprintable(), record.getMessage()


def shown(url: str, *commands: list[str]) -> None:
    """Show everything, and check that nothing has control characters or breaks."""
    for command in commands:
        done = CliRunner().invoke(app, [*command, "--store", url])
        with suppress_printable():
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception  # `main` shows the package's errors in one line
        for text in (done.stdout, done.stderr):
            assert all(line.isprintable() for line in text.split("\n")), (command, text)


def looks(queue: str, id_: str) -> list[list[str]]:
    both = [["tasks", "queues"], ["tasks", "list", queue], ["tasks", "show", id_], ["tasks", "sessions"]]
    return [*both, *([*command, "--json"] for command in both)]


EACH = ("version", "at", "claims", "attempt", "created")
TEXTS = ("queue", "json", "key", "session", "error")
SQLITE: dict[str, tuple[str, Any]] = {
    **{f"{column} is bytes": (column, b"\xff\x00") for column in TEXTS},
    **{
        f"{column} is text": (column, "x")
        for column in (*EACH, "place", "modified", "until", "ready", "begun")
    },
    **{f"{column} is huge": (column, HUGE) for column in EACH},
    **{f"{column} is far below": (column, -HUGE) for column in EACH},
    **{f"{column} is real": (column, 1.5) for column in EACH},
    **{f"{column} is evil": (column, EVIL) for column in (*TEXTS, "dedupe", "id")},
    **{f"json is {json_text[:9]!a}": ("json", json_text) for json_text in JSONS},
}


@pytest.mark.anyio
@pytest.mark.parametrize("damage", SQLITE)
async def test_sqlite(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite://{tmp_path}/app.db"
    column, value = SQLITE[damage]
    async with Tasks(url) as tasks:
        id_ = await tasks.insert("q", {"a": 1})
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        connection.execute(f"update intervalq_tasks set {column} = ?", [value])
    await checked(url, "q", id_, caplog)


SESSIONS = {"host": b"\xff", "pid": "x", "consumer": EVIL, "expiry": "x", "started": HUGE, "beaten": 1.5}


@pytest.mark.anyio
@pytest.mark.parametrize("column", SESSIONS)
async def test_sessions_in_sqlite(tmp_path: Path, column: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"sqlite://{tmp_path}/app.db"
    async with Tasks(url) as tasks:
        id_ = await tasks.insert("q", 1)
        await tasks.claim("q")
        with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
            connection.execute(f"update intervalq_sessions set {column} = ?", [SESSIONS[column]])
        await checked(url, "q", id_, caplog)


PACKED = [b"", b"x", b"\xff" * 200, b"\x00" * 66, b"\x00" * 65, b"{}", EVIL.encode() * 9]


@pytest.mark.anyio
@pytest.mark.parametrize("packed", PACKED, ids=ascii)
async def test_redis(
    own_redis: Callable[..., Server], packed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_redis().url
    async with Tasks(url) as tasks:
        id_ = await tasks.insert("q", {"a": 1})
        await tasks.insert("q", 2, key="k")
    with redis_client(url) as client:
        for id_of_it in client.hkeys("intervalq:{tasks}:tasks"):
            client.hset("intervalq:{tasks}:tasks", id_of_it, packed)
    await checked(url, "q", id_, caplog)


@pytest.mark.anyio
@pytest.mark.parametrize("part", ["index", "sessions", "marks", "meta"])
@pytest.mark.parametrize("damaged", [b"", b"\xff" * 80, EVIL.encode()], ids=["empty", "high", "evil"])
async def test_other_parts_of_redis(
    own_redis: Callable[..., Server], part: str, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_redis().url
    async with Tasks(url) as tasks:
        id_ = await tasks.insert("q", {"a": 1}, dedupe_key="d")
        await tasks.claim("q")
        await tasks.insert("q", 2)
        key = f"intervalq:{{tasks}}:{part}"
        with redis_client(url) as client:
            if client.type(key) == b"hash":
                for field in client.hkeys(key):
                    client.hset(key, field, damaged)
            elif client.type(key) == b"zset":
                client.zadd(key, {damaged: 0})
            else:
                client.set(key, damaged)
        await checked(url, "q", id_, caplog)


META = [
    *('{"at": "x"}', '{"at": 1e30}', f'{{"at": {10**400}}}', '{"e": 5}', '{"d": []}', "[]", "x", "[" * 9_000),
    json.dumps({"e": EVIL, "d": EVIL}),
]


@pytest.mark.anyio
@pytest.mark.parametrize("meta", META, ids=lambda text: ascii(text[:12]))
async def test_nats(own_nats: Callable[..., Server], meta: str, caplog: pytest.LogCaptureFixture) -> None:
    url = own_nats().url
    async with Tasks(url) as tasks:
        id_ = await tasks.insert("q", {"a": 1})
        client = await nats.connect(url)
        for subject in ("w.q.one", "k.q.key.0", "w.q.=1B=5B", "w.=1Bq.two"):
            headers = {"Iq-Task": meta, "Iq-Over": "x"}
            await client.jetstream().publish(f"intervalq.tasks.{subject}", b'"\x1b\xff', headers=headers)
        await client.close()
    await checked(url, "q", id_, caplog)


@pytest.mark.anyio
@pytest.mark.parametrize("json_text", JSONS, ids=lambda text: ascii(text[:9]))
async def test_postgres(empty_postgres_url: str, json_text: str, caplog: pytest.LogCaptureFixture) -> None:
    async with Tasks(empty_postgres_url) as tasks:
        id_ = await tasks.insert("q", {"a": 1})
        await tasks.put("q", [1])
    with psycopg.connect(empty_postgres_url) as connection:
        rows = "json = %s, error = %s, key = null, at = %s, attempt = 2147483647, queue = %s"
        values = [json_text, EVIL, HUGE, EVIL]
        connection.execute(f"update intervalq.tasks set {rows}".encode(), values)
        connection.execute(
            "insert into intervalq.sessions (id, host, pid, consumer, expiry, started)"
            " values (%s, %s, 1, %s, 1, 1)",
            [EVIL, EVIL, EVIL],
        )
    await checked(empty_postgres_url, "q", id_, caplog)


NOTICES = [
    *("x", "[]", "[[]]", '[["t"]]', '[["t", 1]]', '[["r", 1, 2]]', "{", "[" * 7_000, "7", '[["t", null]]'),
    json.dumps([["t", *Row("id", 1, "q", 1, "1")[:1], "x", *Row("id", 1, "q", 1, "1")[2:]]]),
    *('[["x"]]', '[["x", "id"]]', '[["x", "id", "x"]]', '[["x", "id", null]]'),
]


@pytest.mark.anyio
async def test_notices_of_others_in_postgres(empty_postgres_url: str) -> None:
    """Anybody who may connect to a database may send such notices; a waiting worker still gets its tasks."""
    async with Tasks(empty_postgres_url) as tasks, anyio.create_task_group() as group:
        claims: list[Any] = []

        async def claim() -> None:
            claims.append(await tasks.claim("q"))

        group.start_soon(claim)
        with anyio.fail_after(60):
            while not await tasks.sessions():
                await anyio.sleep(0.01)
            (session,) = await tasks.sessions()
            for _ in range(3):
                with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
                    for text in NOTICES:
                        for whom in (session.id, "*"):
                            connection.execute("select pg_notify('intervalq_tasks', %s)", [f"{whom} {text}"])
                    row = Row("forged", 1, "q", 1, '"forged"', claims=1, created=1, session=session.id)
                    forged = json.dumps([["t", *row]])
                    connection.execute("select pg_notify('intervalq_tasks', %s)", [f"* {forged}"])
            await tasks.insert("q", 1)
            while not claims:
                await anyio.sleep(0.01)
        assert claims[0].value == 1
        await claims[0].ack()


ROWS: dict[str, tuple[str, Any]] = {
    **{f"{column} is bytes": (column, b"\xff\x00") for column in ("key", "stage", "session", "value")},
    **{f"{column} is text": (column, "x") for column in ("attempt", "at", "stage")},
    **{f"{column} is huge": (column, HUGE) for column in ("attempt", "at")},
    **{f"{column} is real": (column, 1.5) for column in ("attempt", "at")},
    **{f"{column} is evil": (column, EVIL) for column in ("key", "stage", "session", "value")},
}


async def made(url: str) -> None:
    store = open_ledger_store(url)
    await store.apply("run", Record("s", 60_000_000, (Ended("done", "1"),)))
    await store.apply("run", Claim("s", 60_000_000, ("held",)))
    await store.aclose()


async def checked_ledger(url: str) -> None:
    async with Ledger("run", url) as ledger:
        for call in (ledger.info, lambda: listed(ledger), lambda: ledger.forget(["done"]), ledger.cancel):
            with suppress_printable():
                await call()
    store = open_ledger_store(url)
    for command in (Claim("t", 1_000_000, ("done", "held", "new")), Record("t", 1, (Ended("held", "2"),))):
        with suppress_printable():
            await store.apply("run", command)
    with suppress_printable():
        await store.names()
    await store.aclose()
    commands = [["ledger", "show", "run"], ["ledger", "list"], ["ledger", "export", "run"]]
    await anyio.to_thread.run_sync(shown, url, *commands)


async def listed(ledger: Ledger) -> None:
    async for row in ledger.rows():
        row.value  # noqa: B018


@pytest.mark.anyio
@pytest.mark.parametrize("damage", ROWS)
async def test_ledgers_in_sqlite(tmp_path: Path, damage: str) -> None:
    url = f"sqlite://{tmp_path}/app.db"
    await made(url)
    column, value = ROWS[damage]
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        where = "where key = 'done'" if column == "key" else ""
        connection.execute(f"update intervalq_ledger_rows set {column} = ? {where}", [value])
    await checked_ledger(url)


@pytest.mark.anyio
@pytest.mark.parametrize("column", ["created", "expires", "cancelled", "done", "failed", "lapses"])
@pytest.mark.parametrize("value", ["x", 1.5, HUGE, b"x"], ids=str)
async def test_figures_of_ledgers_in_sqlite(tmp_path: Path, column: str, value: Any) -> None:
    url = f"sqlite://{tmp_path}/app.db"
    await made(url)
    table = "intervalq_ledger_sessions" if column == "lapses" else "intervalq_ledgers"
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        connection.execute(f"update {table} set {column} = ?", [value])
    await checked_ledger(url)


@pytest.mark.anyio
@pytest.mark.parametrize("damaged", [b"", b"x", b"\xff" * 80, EVIL.encode(), b"done"], ids=ascii)
@pytest.mark.parametrize("part", ["meta", "sessions", "open", "rows"])
async def test_ledgers_in_redis(own_redis: Callable[..., Server], part: str, damaged: bytes) -> None:
    url = own_redis().url
    await made(url)
    key = f"intervalq:{{run}}:ledger:{part}"
    with redis_client(url) as client:
        if client.type(key) == b"hash":
            for field in client.hkeys(key):
                client.hset(key, field, damaged)
            client.hset(key, damaged, damaged)
        else:
            client.zadd(key, {damaged: 0})
    await checked_ledger(url)
