"""What may happen to a store's files under an active queue, and what the queue's callers see of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

import servers
from faults.work import Work, stands_still, working
from intervalq import errors
from intervalq_stores._files.store import FileStore
from small_disks import mounted


@pytest.fixture(params=["file", "sqlite"])
def scheme(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "state"


@pytest.fixture
def url(scheme: str, path: Path) -> str:
    return f"{scheme}://{path}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "256k") as disk:
        yield disk


def regressions(work: Work) -> list[int]:
    return [handle._shard().regressions for handle in work.handles]


def back_up(scheme: str, path: Path, copy: Path) -> None:
    """Copy the files, as a backup does."""
    if scheme == "file":
        shutil.copyfile(path, copy)
    else:
        with (
            contextlib.closing(sqlite3.connect(path, timeout=60)) as there,
            contextlib.closing(sqlite3.connect(copy)) as here,
        ):
            there.backup(here)
    copy.chmod(0o600)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Open a file, as a process does that changes it."""
    with Path(f"{path}.lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clear(path: Path) -> None:
    """Remove the state, and the files that SQLite keeps beside it."""
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)


async def go_on(work: Work) -> None:
    """The same handles serve callers that begin anew."""
    async with anyio.create_task_group() as group:
        work.go(group)
        await work.more(2)
        await work.stop()


# --- what a queue works through ---------------------------------------------------------------------


@pytest.mark.parametrize("everything", [False, True])
async def test_files_that_are_removed_are_made_anew(
    url: str, path: Path, everything: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call still ends, and each handle reports the loss."""
    async with working([url] * 2) as work:
        for times in range(1, 4):
            if everything:  # also the lock, while processes hold it or wait for it
                shutil.rmtree(path.parent.rename(path.parent.with_name(f"gone-{times}")))
            else:
                with locked(path):
                    clear(path)
            while not all(count >= times for count in regressions(work)):
                await work.more(1)
        await work.stop()
        work.check(losses=3)
        assert all(count <= 3 for count in regressions(work))
    assert "was lost or dropped" in caplog.text


async def test_a_backup_that_is_restored_is_brought_forward(
    scheme: str, url: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = path.with_name("backup")
    async with working([url] * 2) as work:
        back_up(scheme, path, copy)
        await work.more(5)
        before = max(start.ticket for start in work.starts)
        with locked(path):
            clear(path)
            os.replace(copy, path)  # noqa: PTH105
        await work.more(5)
        await work.stop()
        work.check(losses=1, healed=True)
        assert sum(regressions(work)) >= 1
        assert len({start.generation for start in work.starts}) == 1
        assert max(start.ticket for start in work.starts) > before
    assert "the store lost writes that it had acknowledged" in caplog.text


# --- what a queue waits for -------------------------------------------------------------------------


async def test_calls_wait_while_the_disk_is_full(scheme: str, small_disk: Path) -> None:
    async with working([f"{scheme}://{small_disk}/state"] * 2) as work:
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                pass
        if scheme == "file":  # SQLite has a log, with free space that was used before
            await stands_still(work)
        filler.unlink()
        await work.more(2)
        await work.stop()
        work.check()
        assert regressions(work) == [0, 0]


@pytest.mark.parametrize("scheme", ["file"])  # a disk with an open file of SQLite can't be made read-only
async def test_calls_wait_while_the_disk_is_read_only(scheme: str, small_disk: Path) -> None:
    def remount(how: str) -> None:
        command = ["mount", "-o", f"remount,{how}", str(small_disk)]  # fails while a process writes
        servers.until(lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0)

    async with working([f"{scheme}://{small_disk}/state"] * 2) as work:
        remount("ro")
        await stands_still(work)
        remount("rw")
        await work.more(2)
        await work.stop()
        work.check()
        assert regressions(work) == [0, 0]


async def test_calls_wait_while_another_holds_the_lock(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileStore, "patience", 0.3)
    async with working([url] * 2) as work:
        with locked(path):
            await stands_still(work)
        await work.more(2)
        await work.stop()
        work.check()
        assert regressions(work) == [0, 0]


# --- what ends calls with an error ------------------------------------------------------------------


def _spoil(path: Path) -> None:
    clear(path)
    path.write_bytes(b'{"no": "queues"' * 400)
    path.chmod(0o600)


def _open_to_all(path: Path) -> None:
    path.parent.chmod(0o777)


def _link(path: Path) -> None:
    os.replace(path, f"{path}.moved")  # noqa: PTH105
    path.symlink_to(f"{path}.moved")


HARMS: dict[str, tuple[Callable[[Path], None], type[errors.StoreError]]] = {
    "spoiled": (_spoil, errors.CorruptState),
    "in a folder that is open to all": (_open_to_all, errors.InsecurePath),
    "a link": (_link, errors.InsecurePath),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_files_that_can_not_be_trusted_end_calls_until_they_are_mended(
    scheme: str, url: str, path: Path, harm: str
) -> None:
    """They are left unchanged; afterwards the queue continues from a backup, and counters never go back."""
    do, kind = HARMS[harm]
    copy = path.with_name("backup")
    async with working([url] * 2) as work:
        with locked(path):
            back_up(scheme, path, copy)
            do(path)
            status = path.lstat()
        await work.until(lambda: len(work.errors) == 6)
        assert {type(error) for _, error in work.errors} == {kind}
        after = path.lstat()  # reading it may have changed its time of access, and nothing else
        assert after.st_ino == status.st_ino
        if harm == "spoiled":
            assert (after.st_size, after.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
        path.parent.chmod(0o700)
        clear(path)
        os.replace(copy, path)  # noqa: PTH105
        await go_on(work)
        work.check(losses=1, healed=True, failed=6)
        assert len({start.generation for start in work.starts}) == 1
