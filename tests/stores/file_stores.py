"""What tests of the JSON file and of SQLite do alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from file_processes import HOLD, blocked, line, process
from intervalq.errors import StoreFull
from intervalq.rules import Advance, Command, Hold, Inspect, Resume, Settings
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores.json.queues import JSONFileStore
from intervalq_stores.sqlite.queues import SQLiteStore

FileStore = JSONFileStore | SQLiteStore

TAKE = Advance(settings=Settings(interval=1_000_000), nonce="n", take=1)
"""Takes a ticket of a queue with a job a second."""


@pytest.fixture
def json_path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


@pytest.fixture
def json_store(path: Path) -> JSONFileStore:
    return JSONFileStore(path.as_uri())


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def sqlite_store(path: Path) -> SQLiteStore:
    return SQLiteStore(f"sqlite://{path}")


PLANTED = ("link", "dangling link", "hard link", "pipe", "folder", "anybody's", "other's")


def plant(path: Path, what: str, fill: Callable[[Path], object]) -> Path:
    """Plant something in the place of a file, as another user may. Returns a file that must stay as it is."""
    precious = path.with_name("precious")
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        fill(precious)
        if what == "link":
            path.symlink_to(precious)
        elif what == "dangling link":
            path.symlink_to(path.with_name("nothing"))
        else:
            path.hardlink_to(precious)
            if what != "hard link":
                precious.unlink()
            if what == "anybody's":
                path.chmod(0o606)
            if what == "other's":
                try:
                    os.chown(path, 12345, -1)
                except PermissionError:
                    pytest.skip("only root can give files away")
    return precious


async def outcomes_of_a_failing_write(store: FileStore, path: Path) -> list[str]:
    """What three steps that are written together find, of which the second doesn't fit, sorted."""
    outcomes: list[str] = []

    async def attempt(command: Command) -> None:
        try:
            answer = await store.apply("q", command)
        except StoreFull:
            outcomes.append("full")
        else:
            outcomes.append("none" if answer.state is None else "some")

    commands: list[Command] = [Inspect(), TAKE, Inspect()]
    async with anyio.create_task_group() as group:
        with SharedFile(path, store.url).locked():
            for number, command in enumerate(commands, 1):
                group.start_soon(attempt, command)
                while len(store._thread._jobs) < number:
                    await checkpoint()
    return sorted(outcomes)


async def a_cancelled_step_is_not_done(store: FileStore, path: Path) -> None:
    with process(HOLD, path) as holder:
        assert line(holder) == "held"
        async with anyio.create_task_group() as group:
            group.start_soon(store.apply, "q", TAKE)
            await blocked(store)
            group.cancel_scope.cancel()
        assert holder.poll() is None
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


async def only_the_end_of_the_hold_wakes(
    store: FileStore, other: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply("q", TAKE)
    await store.apply("q", Hold())
    woken = False

    async def listen() -> None:
        nonlocal woken
        await wait()
        woken = True

    looks: list[str] = []
    is_held = store._is_held

    def look(queue: str) -> bool:
        looks.append(queue)
        return is_held(queue)

    monkeypatch.setattr(store, "_is_held", look)
    with anyio.fail_after(20):
        async with store.wakeups("q") as wait, anyio.create_task_group() as group:
            group.start_soon(listen)
            await store.apply("other", TAKE)
            while not looks:
                await checkpoint()
            assert not woken
            await other.apply("q", Resume())
    assert woken
