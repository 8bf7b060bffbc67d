from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends import both_backends
from intervalq.errors import StoreFull, StoreReadOnly, StoreUnavailable
from intervalq.rules import Inspect
from intervalq_stores._files import locked_file
from intervalq_stores.json.queues import JSONFileStore
from small_disks import mounted
from stores import file_stores
from stores.file_stores import TAKE, outcomes_of_a_failing_write

anyio_backend = both_backends
path = file_stores.json_path
store = file_stores.json_store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "64k") as disk:
        yield disk


async def test_a_full_disk_leaves_the_old_state_whole(small_disk: Path) -> None:
    path = small_disk / "state.json"
    store = JSONFileStore(path.as_uri())
    await store.apply("q", TAKE)
    before = path.read_bytes()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(StoreFull, match="make room"):
        await store.apply("q", TAKE)
    assert path.read_bytes() == before
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", "state.json", "state.json.lock"]
    assert (await store.apply("q", Inspect())).state is not None
    filler.unlink()
    assert (await store.apply("q", TAKE)).taken[0].ticket == 2


async def test_a_disk_that_takes_no_writes_is_told(small_disk: Path) -> None:
    path = small_disk / "state.json"
    store = JSONFileStore(path.as_uri())
    await store.apply("q", TAKE)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreReadOnly, match="give another path"):
        await store.apply("q", TAKE)
    assert await store.names() == ["q"]
    assert any(level == "error" for level, _ in await store.advice())


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
async def test_any_failure_of_the_disk_leaves_the_old_state_whole(
    store: JSONFileStore, path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.apply("q", TAKE)
    before = path.read_bytes()
    original = getattr(os, call)

    def broken(*arguments: object, **more: object) -> object:
        if call == "open" and not str(arguments[0]).endswith(".tmp"):
            return original(*arguments, **more)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        with pytest.raises(StoreUnavailable, match="can't be written"):
            await store.apply("q", TAKE)
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]
    assert (await store.apply("q", TAKE)).taken[0].ticket == 2


async def test_when_the_writing_fails_only_steps_that_changed_nothing_stand(
    store: JSONFileStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked_file, "MAX_BYTES", 100)
    outcomes = await outcomes_of_a_failing_write(store, path)
    assert outcomes == ["full", "full", "none"]  # the last one found what was not kept
    assert not path.exists()
