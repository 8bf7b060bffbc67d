"""The lifecycle of a handle (event loop, process, pickling), and the options that it refuses."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq import ConfigMismatch, IntervalQueue, QueueNotFound, SlotTimeout
from intervalq.errors import (
    ForkedError,
    InvalidInterval,
    InvalidName,
    InvalidOption,
    StoreError,
    StoreTimeout,
    UnknownStore,
    WrongLoop,
)
from intervalq.ledger.store import open_ledger_store
from intervalq.store import open_store
from intervalq.tasks.store import open_task_store
from intervalq_stores.memory.tasks import MemoryTaskStore
from virtual_store import FarStore, in_virtual_time


async def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"interval": 0}, InvalidInterval),
        ({"rate": "0/s"}, InvalidInterval),
        ({"interval": 1, "rate": "1/s"}, InvalidOption),
        ({"interval": 1, "burst": 0}, InvalidOption),
        ({"interval": 1, "burst": True}, InvalidOption),
        ({"interval": 1, "lookahead": 0}, InvalidOption),
        ({"interval": 1, "max_running": 0}, InvalidOption),
        ({"interval": 1, "tolerance": 0}, InvalidInterval),
        ({"interval": 1, "tolerance": 1}, InvalidInterval),
        ({"interval": 1, "timeout": -1}, InvalidInterval),
        ({"interval": 1, "retries": -1}, InvalidOption),
        ({"interval": 1, "backoff": "x"}, InvalidInterval),
        ({"burst": 2}, InvalidOption),
        ({"max_running": 2}, InvalidOption),
        ({"tolerance": 0.1}, InvalidOption),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        IntervalQueue("q", **options)


def test_an_option_of_the_wrong_kind_is_refused_with_the_remedy() -> None:
    for interval in ("20/s", "5 per hour"):
        with pytest.raises(InvalidInterval, match="is a rate, not an interval: give it as the rate"):
            IntervalQueue("q", interval=interval)
    wrong: Any = MemoryTaskStore()
    with pytest.raises(InvalidOption, match=r"MemoryTaskStore.* holds no queues: give a URL"):
        IntervalQueue("q", interval=1, store=wrong)


def test_a_name_is_checked_at_once_and_so_is_a_key() -> None:
    with pytest.raises(InvalidName):
        IntervalQueue("../q", interval=1)
    with pytest.raises(InvalidName):
        IntervalQueue("q", interval=1)[""]
    with pytest.raises(TypeError):
        IntervalQueue("q", interval=1)["a"]["b"]


@in_virtual_time
async def test_a_handle_that_disagrees_is_refused_with_the_remedy() -> None:
    store = FarStore()
    await IntervalQueue("q", interval=1, store=store).run(nothing)
    other = IntervalQueue("q", interval=2, burst=3, store=FarStore(store.behind))
    with pytest.raises(ConfigMismatch) as caught:
        await other.run(nothing)
    assert "runs with interval=1s" in str(caught.value)
    assert "this handle has interval=2s, burst=3" in str(caught.value)
    assert "configure" in str(caught.value)
    with pytest.raises(ConfigMismatch):
        await other.pause()
    await other.configure(interval=2, burst=3)
    await other.run(nothing)
    again = IntervalQueue("q", interval=2, burst=3, store=FarStore(store.behind))
    await again.run(nothing)


@in_virtual_time
async def test_a_handle_without_an_interval_takes_the_queue_as_it_is() -> None:
    store = FarStore()
    with pytest.raises(QueueNotFound):
        await IntervalQueue("q", store=store).run(nothing)
    with pytest.raises(QueueNotFound):
        await IntervalQueue("q", store=store).pause()
    with pytest.raises(QueueNotFound):
        await IntervalQueue("q", interval=1, store=store).inspect()
    await IntervalQueue("q", rate="2/s", max_running=3, store=store).run(nothing)
    handle = IntervalQueue("q", store=store)
    await handle.run(nothing)
    state = await handle.inspect()
    assert (state.interval, state.max_running, state.ticket) == (0.5, 3, 2)
    assert state.to_dict()["name"] == "q"


def test_another_event_loop_is_refused_while_the_first_one_lives() -> None:
    queue = IntervalQueue("loops", interval=0.001, store="memory://")

    async def uses() -> None:
        await queue.run(nothing)

    async def uses_and_lends() -> None:
        await queue.run(nothing)
        with pytest.raises(WrongLoop):
            await anyio.to_thread.run_sync(partial(asyncio.run, uses()))

    asyncio.run(uses_and_lends())
    asyncio.run(uses())  # the first loop has ended, so the handle may be used in another


def test_a_handle_in_use_is_refused_after_a_fork() -> None:
    queue = IntervalQueue("forks", interval=0.001, store="memory://")
    asyncio.run(_use(queue))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"no error"
        try:
            asyncio.run(_use(queue))
        except ForkedError:
            answer = b"ForkedError"
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"ForkedError"
    asyncio.run(_use(queue))


async def _use(queue: IntervalQueue) -> None:
    await queue.run(nothing)


def test_a_handle_travels_as_its_settings_and_opens_where_it_lands() -> None:
    queue = IntervalQueue("travels", interval=0.001, store="memory://", burst=2, retry_after=True)
    asyncio.run(_use(queue))
    copy = pickle.loads(pickle.dumps(queue))
    assert copy._options == queue._options
    asyncio.run(_use(copy))
    keyed = pickle.loads(pickle.dumps(queue["key"]))
    assert keyed.name == "travels:key"


def test_a_store_object_can_not_travel() -> None:
    with pytest.raises(TypeError, match="URL"):
        pickle.dumps(IntervalQueue("q", interval=1, store=open_store("memory://")))


def test_secrets_are_not_shown() -> None:
    queue = IntervalQueue("q", interval="1.5s", store="redis://me:hunter2@localhost/0?password=hunter2")
    assert repr(queue) == "IntervalQueue('q', interval='1.5s', store='redis://localhost/0')"


def test_an_unknown_store_is_told_with_those_that_are_known() -> None:
    async def uses() -> None:
        await IntervalQueue("q", interval=1, store="mongodb://me:hunter2@host").run(nothing)

    with pytest.raises(UnknownStore, match=r"mongodb://.*redis") as caught:
        asyncio.run(uses())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["nats:localhost:4222", "localhost:4222", "redis:/0", "memory:", "redis//localhost"]
)
def test_a_mistyped_url_is_no_path(url: str) -> None:
    async def uses() -> None:
        await IntervalQueue("q", interval=1, store=url).run(nothing)

    with pytest.raises(InvalidOption, match="has ://"):
        asyncio.run(uses())


@pytest.mark.parametrize("opens", [open_store, open_task_store, open_ledger_store])
def test_an_empty_url_is_not_the_default(
    opens: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that isn't set would else let each machine pace alone."""
    monkeypatch.setenv("INTERVALQ_STORE", "memory://")
    for url in ("", " "):
        with pytest.raises(InvalidOption, match="the store is empty"):
            opens(url)


def test_without_a_store_the_environment_decides_then_the_users_state_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert open_store().url.endswith("/intervalq/state.db")
    assert open_store().url.startswith("sqlite:///")
    monkeypatch.setenv("INTERVALQ_STORE", "memory://")
    assert open_store().url == "memory://"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("state.db", "sqlite"),
        ("STATE.SQLITE3", "sqlite"),
        ("state.json", "file"),
        ("db", "file"),
        (".db", "file"),
    ],
)
def test_a_plain_path_tells_by_its_end_which_store_it_is(path: str, kind: str, tmp_path: Path) -> None:
    assert open_store(str(tmp_path / path)).url == f"{kind}://{tmp_path}/{path}"


def test_a_python_without_sqlite_says_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    for name in ("_queue_database", "_file", "queues"):
        monkeypatch.delitem(sys.modules, f"intervalq_stores.sqlite.{name}", raising=False)
    with pytest.raises(StoreError, match=r"without its sqlite3 module.*INTERVALQ_STORE"):
        open_store("state.db")


def test_errors_travel_with_their_values() -> None:
    for error in (
        StoreTimeout("redis://h", "gone"),
        ConfigMismatch("q", "a", "b"),
        InvalidName("../"),
        SlotTimeout("q", 2),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
