"""The disk of the power-cut tests forgets what was not synced, and nothing else."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.disk import Disk
from faults.needs import need_fuse


@pytest.fixture
def disk() -> Iterator[Disk]:
    need_fuse()
    with Disk() as made:
        yield made


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def _saved(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    _sync(path)
    return path


def _there(disk: Disk) -> dict[str, bytes]:
    found = (path for path in disk.path.rglob("*") if path.is_file())
    return {str(path.relative_to(disk.path)): path.read_bytes() for path in found}


def test_a_cut_takes_back_what_was_written_since_the_last_sync(disk: Disk) -> None:
    for name, change in CONTENTS.items():
        saved = _saved(disk.path / name, bytes(10_000))
        with saved.open("r+b", buffering=0) as file:
            change(file.fileno())
            assert os.pread(file.fileno(), 20_000, 0) != bytes(10_000), name
    disk.cut()
    assert _there(disk) == dict.fromkeys(CONTENTS, bytes(10_000))


def _map(file: int) -> None:
    with mmap.mmap(file, 10_000) as memory:
        memory[5_000] = 1


def _write_anew(file: int) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, b"new" * 5_000, 0)


CONTENTS: dict[str, Callable[[int], object]] = {
    "over": lambda file: os.pwrite(file, b"new" * 1_000, 4_000),
    "append": lambda file: os.pwrite(file, b"new", 10_000),
    "shrink": lambda file: os.ftruncate(file, 5_000),
    "anew": _write_anew,
    "grow": lambda file: os.ftruncate(file, 20_000),
    "allocate": lambda file: os.posix_fallocate(file, 0, 20_000),
    "map": _map,
}


def test_what_was_synced_is_kept_however_that_was_done(disk: Disk) -> None:
    for how, sync in {"fsync": os.fsync, "fdatasync": os.fdatasync}.items():
        with (disk.path / how).open("wb", buffering=0) as file:
            file.write(b"kept")
            sync(file.fileno())
            file.write(b" and lost")
    for how, flag in {"O_SYNC": os.O_SYNC, "O_DSYNC": os.O_DSYNC}.items():
        descriptor = os.open(disk.path / how, os.O_WRONLY | os.O_CREAT | flag)
        os.write(descriptor, b"kept")
        os.close(descriptor)
    with _saved(disk.path / "mapped", b"lost").open("r+b") as mapped, mmap.mmap(mapped.fileno(), 4) as memory:
        memory[:] = b"kept"
        memory.flush()
    disk.cut()
    kept = _there(disk)
    assert kept == dict.fromkeys(("fsync", "fdatasync", "O_SYNC", "O_DSYNC", "mapped"), b"kept")
    disk.cut()
    assert _there(disk) == kept, "what was kept once is kept"


def test_names_are_kept_by_the_next_sync_and_contents_are_not(disk: Disk) -> None:
    for name in ("renamed", "replaced", "removed"):
        _saved(disk.path / name, name.encode())
    (disk.path / "empty").write_bytes(b"never synced")
    (disk.path / "removed").unlink()
    _sync(disk.path)  # all before this is kept, and nothing after it
    (disk.path / "new").write_bytes(b"new")
    (disk.path / "renamed").rename(disk.path / "replaced")
    (disk.path / "folder").mkdir()
    (disk.path / "folder" / "file").touch()
    disk.cut()
    assert _there(disk) == {"renamed": b"renamed", "replaced": b"replaced", "empty": b""}
    assert not (disk.path / "folder").exists()


def test_a_file_that_was_removed_while_it_is_open_can_be_used_and_comes_back_as_it_was(disk: Disk) -> None:
    with _saved(disk.path / "file", b"old").open("r+b", buffering=0) as file:
        (disk.path / "file").unlink()
        os.ftruncate(file.fileno(), 0)
        file.write(b"new")
        assert os.pread(file.fileno(), 10, 0) == b"new"
        assert os.fstat(file.fileno()).st_size == 3
    disk.cut()
    assert _there(disk) == {"file": b"old"}


def test_a_strict_disk_keeps_a_name_only_when_its_folder_is_synced() -> None:
    need_fuse()
    with Disk(strict=True) as disk:
        for name in ("one", "two"):
            (disk.path / name).mkdir()
        _sync(disk.path)
        for name in ("one", "two"):
            _saved(disk.path / name / "file", b"synced")
        _sync(disk.path / "one")
        _saved(disk.path / "one" / "last", b"synced")
        (disk.path / "one" / "file").rename(disk.path / "two" / "moved")
        disk.cut()
        assert _there(disk) == {"one/file": b"synced"}


def test_nothing_is_kept_from_the_moment_on_when_the_power_fails(disk: Disk) -> None:
    file = _saved(disk.path / "file", b"old")
    disk.fail()
    _saved(file, b"new")
    _saved(disk.path / "other", b"new")
    _sync(disk.path)
    disk.cut()
    assert _there(disk) == {"file": b"old"}
    _saved(file, b"new")
    disk.cut()
    assert _there(disk) == {"file": b"new"}


def test_nothing_is_left_of_a_disk_that_somebody_still_uses() -> None:
    need_fuse()
    with Disk() as disk:
        file = os.open(disk.path / "open", os.O_WRONLY | os.O_CREAT)
    assert str(disk.path) not in Path("/proc/mounts").read_text()
    assert not disk.path.exists()
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.write(file, b"x")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.close(file)
