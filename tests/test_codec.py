"""A codec's values: no store contains the plain text, and a value that can't be read is never lost."""

from __future__ import annotations

import json
import pickle
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from cryptography.fernet import Fernet, InvalidToken

import raw_data
from cli.command_line import CommandLine
from intervalq._spec.codec import MARK, Codec
from intervalq.errors import InvalidOption, InvalidTask, UnreadableValue
from intervalq.ledger import Ledger
from intervalq.ledger.rules import Ended, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.tasks import Claim, Tasks
from intervalq.tasks import sync as blocking
from intervalq.tasks.rules import Change, Modify
from servers import Server

Look: TypeAlias = Callable[[], bytes]

TASK_STORES = ["memory", "sqlite", "redis", "valkey", "cluster", "postgres", "pgbouncer", "nats"]
LEDGER_STORES = [*(kind for kind in TASK_STORES if kind != "nats"), "file"]


class Encrypted:
    """A codec such as a user would write."""

    def __init__(self, key: bytes) -> None:
        self._fernet = Fernet(key)

    def encode(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decode(self, data: bytes) -> bytes:
        return self._fernet.decrypt(data)


KEY, OTHER = Encrypted(Fernet.generate_key()), Encrypted(Fernet.generate_key())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def command_line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, own_nats: Callable[..., Server]
) -> Iterator[tuple[str, Look | None]]:
    """The URL of a store, and a function that reads its raw contents (none for this process's memory)."""
    kind: str = request.param
    if kind == "memory":
        yield f"memory://{secrets.token_hex(4)}", None
    elif kind == "nats":
        server = own_nats()
        yield server.url, lambda: raw_data.of_server(server)
    elif kind in {"sqlite", "file"}:
        url = f"{kind}://{tmp_path}/state"
        yield url, lambda: raw_data.of_file(url)
    elif kind in {"postgres", "pgbouncer"}:
        direct: str = request.getfixturevalue("postgres_url")
        yield request.getfixturevalue(f"{kind}_url"), lambda: raw_data.of_postgres(direct)
    else:
        url = request.getfixturevalue("redis_cluster_url" if kind == "cluster" else f"{kind}_url")
        yield url, lambda: raw_data.of_redis(url)


async def all_ways_in(url: str, codec: Codec | None, word: str, queue: str) -> None:
    """Write a value into a store in every possible way, and leave it there."""
    async with Tasks(url, codec=codec) as tasks:
        await tasks.insert(queue, {"inserted": word})
        await tasks.insert(queue, [word, "of a key"], key="k", dedupe_key="d")
        await tasks.put(queue, [word] * 3)
        await tasks.modify(tasks.new(f"{queue}-modified", word))
        await tasks.insert(f"{queue}-claimed", 1)
        claim = await tasks.claim(f"{queue}-claimed")
        await claim.ack(tasks.new(f"{queue}-followed", word), claim.change(word, queue=f"{queue}-moved"))
        await tasks.insert(f"{queue}-failed", word)
        await tasks.put(f"{queue}-failed", [word])
        for _ in range(2):
            failed = await tasks.claim(f"{queue}-failed")
            assert failed.value == word
            await failed.term("it said no")
        found = {
            json.dumps(task.value)
            for name in ("", "-modified", "-followed", "-moved", "-failed.dead")
            for task in await tasks.tasks(f"{queue}{name}")
        }
        assert {json.loads(text) if text[0] == '"' else text for text in found} == {
            word, json.dumps({"inserted": word}), json.dumps([word, "of a key"])
        }  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("place", TASK_STORES, indirect=True)
async def test_no_store_of_tasks_has_the_plain_text(place: tuple[str, Look | None]) -> None:
    url, look = place
    hidden, open_ = secrets.token_hex(8), secrets.token_hex(8)
    await all_ways_in(url, KEY, hidden, f"q{hidden}q"[1:9])
    await all_ways_in(url, None, open_, f"q{open_}q"[1:9])
    if look is not None:
        lies = look()
        assert lies.count(open_.encode()) >= 9  # so that a leak would be seen
        assert hidden.encode() not in lies
        assert lies.count(MARK.encode()) >= 9


@pytest.mark.anyio
@pytest.mark.parametrize("place", TASK_STORES, indirect=True)
async def test_what_can_not_be_read_is_not_lost(place: tuple[str, Look | None]) -> None:
    """A worker with another key fails, and the tasks wait unchanged in the dead-letter queue."""
    url, _ = place
    queue = secrets.token_hex(4)
    wrong = Tasks(url, codec=OTHER)
    done: list[object] = []

    @wrong.worker(queue, max_attempts=2, backoff=0)
    async def never(task: Claim) -> None:
        done.append(task.value)

    async with Tasks(url, codec=KEY) as tasks:
        await tasks.insert(queue, "one", key="k")
        await tasks.put(queue, ["two"])
        async with wrong, anyio.create_task_group() as group:
            group.start_soon(wrong.run)
            with anyio.fail_after(60):
                while len(await tasks.tasks(f"{queue}.dead")) < 2:
                    await anyio.sleep(0.01)
            wrong.stop()
        assert done == []
        dead = await tasks.tasks(f"{queue}.dead")
        assert sorted(task.value for task in dead) == ["one", "two"]
        for task in dead:
            assert (
                f"UnreadableValue: the value of task {task.id} of queue '{queue}' can't be read" in task.error
            )
            assert "InvalidToken" in task.error
            await tasks.modify(task.change(queue=queue))
        for _ in dead:
            claim = await tasks.claim(queue)
            done.append(claim.value)
            await claim.ack()
        assert sorted(map(str, done)) == ["one", "two"]


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("json_text", "codec", "message"),
    [
        (f'"{MARK}{"A" * 8}"', None, "was written with a codec, and this handle has none"),
        (f'"{MARK}{"A" * 8}"', KEY, "raised InvalidToken, as it does for another key or damaged data"),
        (f'"{MARK}AAA"', KEY, "was damaged in the store"),
        (f'"{MARK}\\n"', KEY, "was damaged in the store"),
        (f'"{MARK}"', KEY, "raised InvalidToken"),
        ("secret not JSON", KEY, "it is not JSON"),
        ("[" * 100_000, None, "it is not JSON"),
    ],
)
async def test_a_value_that_can_not_be_read_says_whose_it_is(
    place: tuple[str, Look | None],
    json_text: str,
    codec: Codec | None,
    message: str,
    command_line: CommandLine,
) -> None:
    url, _ = place
    async with Tasks(url, codec=codec) as tasks:
        id_ = await tasks.insert("q", 1)
        await tasks._apply(Modify(changes=(Change(id_, 1, json=json_text),), force=True))
        claim = await tasks.claim("q")
        with pytest.raises(UnreadableValue, match=message) as raised:
            claim.value  # noqa: B018 - it raises
        assert f"task {id_} of queue 'q'" in str(raised.value)
        assert "secret" not in str(raised.value)
        assert claim.open
        again = pickle.loads(pickle.dumps(raised.value))
        assert (again.what, str(again)) == (raised.value.what, str(raised.value))
        shown = command_line("tasks", "show", id_, "--store", url, "--json")
        assert json.loads(shown.stdout)["value"] == json_text.strip('"')
        for command in (["show", id_], ["list", "q"]):
            command_line("tasks", *command, "--store", url)


async def put_row(url: str, name: str, text: str) -> None:
    store = open_ledger_store(url)
    await store.apply(name, Record("s", 1_000_000, (Ended("row", text),)))
    await store.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("place", LEDGER_STORES, indirect=True)
async def test_no_ledger_has_the_plain_text(place: tuple[str, Look | None]) -> None:
    pytest.importorskip("pyarrow")
    from pyspark.sql.types import StringType, StructField, StructType

    from intervalq.spark._paced import validate
    from intervalq.spark._paced.handoff import Stamp
    from intervalq.spark._paced.ledger_client import Claims
    from intervalq.spark._paced.row_ends import End
    from spark.stages import USUAL

    url, look = place
    hidden, open_, name = (secrets.token_hex(8) for _ in range(3))
    schema = StructType([StructField("body", StringType())])
    for word, codec in ((hidden, KEY), (open_, None)):
        store = open_ledger_store(url)
        options = {**USUAL, "key": "id", "run": name, "ledger": url, "codec": codec}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validate, "_check_store", lambda _: None)  # memory:// belongs to this process
            job = validate.job_maker(lambda row, ctx: row, **options)(schema)
        made = [
            Claims(store, job, fits=lambda _, answer: {**answer}, fail=lambda _: None)  # type: ignore[dict-item]
            for _ in range(2)
        ]
        (mine,) = await made[0].claim((word[::-1],))
        assert mine.kind == "mine"
        ends = made[0].ends
        written = await ends.written(word[::-1], Stamp(), ends.kept(word[::-1], {"body": word}))
        await made[0].record([Ended(word[::-1], written)])
        (known,) = await made[1].claim((word[::-1],))
        assert await made[1].ends.read(word[::-1], known.value) == End({"body": word}, Stamp(), None)
        await store.aclose()
    if look is not None:
        lies = look()
        assert open_.encode() in lies
        assert hidden.encode() not in lies
        assert hidden[::-1].encode() in lies  # a key is not a value
    async with Ledger(name, url, codec=KEY) as ledger:
        values = {row.key: row.value["answer"] for row in [row async for row in ledger.rows()]}
        assert values == {hidden[::-1]: {"body": hidden}, open_[::-1]: {"body": open_}}
    for codec, reported in ((OTHER, "InvalidToken"), (None, "has none")):
        async with Ledger(name, url, codec=codec) as ledger:
            rows = [row async for row in ledger.rows()]
            assert len(rows) == 2
            row = next(row for row in rows if row.key == hidden[::-1])
            with pytest.raises(UnreadableValue, match=f"of ledger '{name}' can't be read: .*{reported}"):
                row.value  # noqa: B018
    async with Ledger(name, url) as ledger:
        await ledger.drop()


def test_a_ledger_of_encoded_rows_is_exported_as_it_lies(tmp_path: Path, command_line: CommandLine) -> None:
    url = f"sqlite://{tmp_path}/app.db"
    anyio.run(put_row, url, "run", f'"{MARK}AAAA"')
    exported = command_line("ledger", "export", "run", "--store", url)
    assert json.loads(exported.stdout)["value"] == f"{MARK}AAAA"


def test_code_that_blocks_has_it_too(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/app.db"
    with blocking.Tasks(url, codec=KEY) as tasks, blocking.Tasks(url) as plain:
        tasks.insert("q", "hidden")
        plain.insert("q", "open")
        assert sorted(task.value for task in tasks.tasks("q")) == ["hidden", "open"]
        with pytest.raises(UnreadableValue, match="this handle has none"):
            [task.value for task in plain.tasks("q")]
        assert plain.tasks("q", values=False)[0].value is None
    assert b"hidden" not in raw_data.of_file(url)


def test_a_handle_travels_with_its_codec() -> None:
    again = pickle.loads(pickle.dumps(Tasks("memory://", codec=Backwards())))
    assert again.new("q", "abc").json == Tasks("memory://", codec=Backwards()).new("q", "abc").json


class Backwards:
    """A codec without encryption that always writes the same bytes."""

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


def test_wrong_codecs_are_refused() -> None:
    wrong: Any
    for wrong in (Fernet(Fernet.generate_key()), "rot13", object()):
        for make in (lambda: Tasks("memory://", codec=wrong), lambda: Ledger("run", codec=wrong)):  # noqa: B023
            with pytest.raises(InvalidOption, match=r"codec= has no (encode|decode)\(\)"):
                make()

    class Text(Backwards):
        def encode(self, data: bytes) -> Any:
            return data.decode()

        def decode(self, data: bytes) -> Any:
            return data.decode()

    with pytest.raises(InvalidOption, match=r"encode\(\) returned 'str'"):
        Tasks("memory://", codec=Text()).new("q", 1)

    async def read() -> None:
        async with Tasks("memory://texts", codec=Backwards()) as tasks:
            await tasks.insert("q", 1)
        async with Tasks("memory://texts", codec=Text()) as tasks:
            (task,) = await tasks.tasks("q")
            with pytest.raises(UnreadableValue, match="something other than UTF-8 bytes"):
                task.value  # noqa: B018

    anyio.run(read)


def test_an_error_of_encode_is_its_users_own() -> None:
    class Broken(Backwards):
        def encode(self, data: bytes) -> bytes:
            raise InvalidToken

    with pytest.raises(InvalidToken):
        Tasks("memory://", codec=Broken()).new("q", 1)


def test_the_limit_is_of_what_is_stored() -> None:
    tasks = Tasks("memory://", codec=Backwards(), max_bytes=30)
    assert tasks.new("q", "x" * 4).json == f'"{MARK}Inh4eHgi"'
    with pytest.raises(InvalidTask, match="takes 34 bytes as the codec wrote it, but 30 are allowed"):
        tasks.new("q", "x" * 10)


def test_a_value_can_not_pass_for_an_encoded_one() -> None:
    with pytest.raises(InvalidTask, match="can't begin with 'intervalq-codec:'"):
        Tasks("memory://").new("q", f"{MARK}x")
    assert Tasks("memory://").new("q", [f"{MARK}x"])
    assert Tasks("memory://", codec=KEY).new("q", f"{MARK}x")
