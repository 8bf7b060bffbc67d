"""Files of a store that are removed or replaced while it is in use: no process continues in the old ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from backends import both_backends
from databases import TAKING
from file_processes import line, process
from intervalq.errors import StoreUnavailable
from intervalq.ledger.rules import Ended, Record
from intervalq.rules import Advance, HighWaterMark, Inspect, Settings, Slot, State
from intervalq.tasks.rules import Insert, Modify
from intervalq_stores._files import worker_thread
from intervalq_stores.json.queues import JSONFileStore
from intervalq_stores.sqlite.ledgers import SQLiteLedgerStore
from intervalq_stores.sqlite.queues import SQLiteStore
from intervalq_stores.sqlite.tasks import SQLiteTaskStore

anyio_backend = both_backends

INTERVAL = 1_000_000
SETTINGS = Settings(interval=INTERVAL)
TAKE = Advance(settings=SETTINGS, nonce="first", take=1)
START = 10**9
ENDINGS = ("", "-wal", "-shm")


@pytest.fixture(params=["file", "sqlite"])
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "state.db"


@pytest.fixture
def kept_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep an idle store's files open, however slow the machine is."""
    monkeypatch.setattr(worker_thread, "_LINGER", 60)


def opened(scheme: str, path: Path) -> JSONFileStore | SQLiteStore:
    return JSONFileStore(path.as_uri()) if scheme == "file" else SQLiteStore(f"sqlite://{path}")


def remove(path: Path, endings: tuple[str, ...] = ENDINGS) -> None:
    for ending in endings:
        Path(f"{path}{ending}").unlink(missing_ok=True)


def back_up(scheme: str, path: Path) -> Path:
    """Copy the files, as a backup does."""
    copy = path.with_name("backup")
    if scheme == "file":
        shutil.copyfile(path, copy)
    else:
        with (
            contextlib.closing(sqlite3.connect(path)) as there,
            contextlib.closing(sqlite3.connect(copy)) as to,
        ):
            there.backup(to)
    copy.chmod(0o600)
    return copy


def traced(connection: sqlite3.Connection | None, statement: str, do: Callable[[], None]) -> None:
    """Call a function right before this connection next executes such a statement."""
    waiting = [do]

    def callback(executed: str) -> None:
        if executed.startswith(statement) and waiting:
            waiting.pop()()

    assert connection is not None
    connection.set_trace_callback(callback)


# --- a record that is gone --------------------------------------------------------------------------

REMOVALS: dict[str, Callable[[Path], object]] = {
    "the state": lambda path: remove(path, ("",)),
    "all but the lock": remove,
    "all": lambda path: remove(path, (*ENDINGS, ".lock")),
    "the folder": lambda path: shutil.rmtree(path.parent),
    "the folder, which is moved": lambda path: path.parent.rename(path.parent.with_name("moved")),
}


@pytest.mark.usefixtures("kept_open")
@pytest.mark.parametrize("removal", REMOVALS)
async def test_a_record_that_is_removed_is_made_anew_once_and_with_a_quiet_interval(
    scheme: str, path: Path, removal: str
) -> None:
    """No slot of the old record is granted, whichever process asks, and in whichever order."""
    one, two, new = (opened(scheme, path) for _ in range(3))
    old = (await one.apply("q", Advance(settings=SETTINGS, nonce="old", take=3), START)).taken
    await two.apply("q", Inspect(), START)
    REMOVALS[removal](path)

    def use(slot: Slot, nonce: str) -> Advance:
        return Advance(settings=SETTINGS, nonce=nonce, generation="old", slots=(slot,), reach=0)

    now = old[1].due  # so that the second one is in time by the old record
    first = await one.apply("q", use(old[1], "anew"), now)
    second = await two.apply("q", use(old[2], "never"), now + INTERVAL // 2)
    third = await new.apply("q", Advance(settings=SETTINGS, nonce="never", take=1), now + INTERVAL // 2)
    for answer in (first, second, third):
        assert answer.state is not None
        assert answer.state.generation == "anew"
        assert answer.granted == ()
    assert (first.missed, second.missed) == ((2,), (3,))
    taken = [*first.taken, *second.taken, *third.taken]
    assert taken == [Slot(number, now + number * INTERVAL) for number in (1, 2, 3)]
    for store in (one, two, new):
        await store.aclose()


@pytest.mark.usefixtures("kept_open")
async def test_an_older_copy_in_its_place_is_what_all_go_on_with(scheme: str, path: Path) -> None:
    one, two, new = (opened(scheme, path) for _ in range(3))
    await one.apply("q", TAKE, START)
    copy = back_up(scheme, path)
    last = (await two.apply("q", TAKE, START)).taken[0]
    await one.apply("q", Inspect(), START)
    remove(path)
    os.replace(copy, path)  # noqa: PTH105
    mark = HighWaterMark(*last[:2])
    known = Advance(settings=SETTINGS, nonce="never", generation="first", take=1, high_water_mark=mark)
    answers = [await store.apply("q", known, START) for store in (one, two, new, two, one)]
    assert [answer.healed for answer in answers] == [True, False, False, False, False]
    assert [answer.taken[0].ticket for answer in answers] == [3, 4, 5, 6, 7]
    for store in (one, two, new):
        await store.aclose()


# --- SQLite: what is removed in the middle of a step ------------------------------------------------


async def test_a_step_whose_files_are_removed_before_it_is_kept_is_not_done(path: Path) -> None:
    store = SQLiteStore(f"sqlite://{path}")
    await store.apply("q", TAKE)

    def step(state: State | None, _: int) -> tuple[State | None, None]:
        assert state is not None
        remove(path)
        return replace(state, ticket=9), None

    with pytest.raises(StoreUnavailable, match=r"removed or replaced .* nothing was written"):
        await store.update("q", step, None)
    assert await store.names() == []
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


@pytest.mark.usefixtures("kept_open")
async def test_a_database_replaced_as_a_step_begins_is_not_taken_for_the_one_that_is_open(path: Path) -> None:
    """Otherwise this process would continue in the old database, and all others in the new one."""
    store, new = (SQLiteStore(f"sqlite://{path}") for _ in range(2))
    await store.apply("q", TAKE)
    copy = back_up("sqlite", path)

    def put_back() -> None:
        remove(path)
        os.replace(copy, path)  # noqa: PTH105

    traced(store._database._connection, "BEGIN", put_back)
    with pytest.raises(StoreUnavailable, match=r"removed or replaced .* nothing was written"):
        await store.apply("q", TAKE)
    tickets = [(await one.apply("q", TAKE)).taken[0].ticket for one in (new, store, new, store)]
    assert tickets == [2, 3, 4, 5]
    for one in (store, new):
        await one.aclose()


async def test_a_database_removed_as_soon_as_it_is_made_is_told(path: Path) -> None:
    store = SQLiteStore(f"sqlite://{path}")
    await store.names()  # creates nothing
    install = store._file.install

    def made(write: Callable[[Path, int], None]) -> None:
        install(write)
        path.unlink()

    store._file.install = made  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await store.apply("q", TAKE)
    store._file.install = install  # type: ignore[method-assign]
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


async def test_a_transaction_of_tasks_in_a_database_that_is_removed_is_not_said_to_be_kept(
    path: Path,
) -> None:
    store = SQLiteTaskStore(f"sqlite://{path}")
    insert = Modify(inserts=(Insert("q", "1", "id"),))
    await store.apply(Modify(inserts=(Insert("q", "1", "other"),)))

    async def work() -> None:
        async with store.transaction("serializable") as transaction:
            await transaction.apply(insert)
            remove(path)

    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await work()
    await store.apply(insert)
    assert [row.id for row in (await store.page(None, "", 10))[0]] == ["id"]


@pytest.mark.usefixtures("kept_open")
async def test_a_row_of_a_ledger_in_a_database_that_is_removed_is_not_said_to_be_kept(path: Path) -> None:
    store = SQLiteLedgerStore(f"sqlite://{path}")
    row = Record("s", 3_600_000_000, (Ended("a", "1"),))
    await store.apply("run", row)
    traced(store._database._connection, "SAVEPOINT", lambda: remove(path))
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await store.apply("run", row)
    assert await store.names() == []
    assert (await store.apply("run", row)).found
    await store.aclose()


# --- SQLite: the index of the log -------------------------------------------------------------------


async def test_processes_go_on_together_when_the_index_of_the_log_is_removed(path: Path) -> None:
    """A process has one index for all its connections: while one uses the old, no new one can be created."""
    stores = [SQLiteStore(f"sqlite://{path}") for _ in range(2)]
    take = f"{TAKING}\nwhile sys.stdin.readline(): take()"
    tickets: list[int] = []

    async def ask(store: SQLiteStore) -> None:
        tickets.append((await store.apply("q", TAKE)).taken[0].ticket)

    async def ask_both() -> None:
        async with anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(ask, store)

    with ExitStack() as stack:
        others = [stack.enter_context(process(take, path)) for _ in range(2)]

        def tell(number: int) -> None:
            other = others[number]
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
            tickets.append(int(line(other)))

        await ask_both()
        tell(0)
        for _ in range(3):
            remove(path, ("-shm",))
            tell(1)
            await ask_both()
            tell(0)
            await ask_both()
            tell(1)
    assert sorted(tickets) == [*range(1, len(tickets) + 1)]  # each once
    for store in stores:
        await store.aclose()
