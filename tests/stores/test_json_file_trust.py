from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from backends import both_backends
from intervalq.errors import InsecurePath
from intervalq_stores._files import advice as files_advice
from intervalq_stores._files import locked_file
from intervalq_stores.json.queues import JSONFileStore
from stores import file_stores
from stores.file_stores import PLANTED, TAKE, plant

anyio_backend = both_backends
path = file_stores.json_path
store = file_stores.json_store

PRECIOUS = '{"intervalq": 1, "queues": {}}'


@pytest.mark.parametrize("name", ["state.json", "state.json.lock"])
@pytest.mark.parametrize("what", PLANTED)
async def test_files_that_others_may_have_planted_are_refused(
    store: JSONFileStore, path: Path, name: str, what: str
) -> None:
    precious = plant(path.with_name(name), what, lambda file: file.write_text(PRECIOUS))
    with pytest.raises(InsecurePath, match=f"{name}'.*: |anybody may write"):
        await store.apply("q", TAKE)
    if precious.exists():
        assert precious.read_text() == PRECIOUS
    assert not path.with_name("nothing").exists()
    assert any(level == "error" for level, _ in await store.advice())


async def test_a_folder_that_anybody_may_write_is_refused_unless_it_is_sticky(
    store: JSONFileStore, path: Path
) -> None:
    path.parent.chmod(0o777)
    with pytest.raises(InsecurePath, match="chmod o-w"):
        await store.apply("q", TAKE)
    assert list(path.parent.iterdir()) == []
    path.parent.chmod(0o1777)
    await store.apply("q", TAKE)


# --- doctor -----------------------------------------------------------------------------------------


async def test_advice_of_a_store_that_is_well(store: JSONFileStore, path: Path) -> None:
    before = await store.advice()
    assert {level for level, _ in before} == {"ok"}
    assert list(path.parent.iterdir()) == []
    await store.apply("q", TAKE)
    found = await store.advice()
    assert {level for level, _ in found} == {"ok"}
    assert any("1 queue" in sentence for _, sentence in found)


async def test_advice_says_who_holds_the_lock(store: JSONFileStore, path: Path) -> None:
    with locked_file.SharedFile(path, store.url).locked():
        warnings = [sentence for level, sentence in await store.advice() if level == "warning"]
        assert len(warnings) == 1
        assert f"is held by process {os.getpid()} on " in warnings[0]


def test_network_file_systems_are_told_by_the_longest_mount_point(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    table = tmp_path / "mountinfo"
    point = str(folder).replace(" ", "\\040")
    table.write_text(
        f"1 1 0:1 / / rw shared:1 - ext4 /dev/x rw\n2 1 0:2 / {point} rw - tmpfs t rw\nbroken\n"
        f"3 2 0:3 / {point} rw shared:2 master:1 - nfs4 server:/x rw\n4 1 0:4 / {point}b rw - xfs /dev/y rw\n"
    )
    assert files_advice.file_system(folder, table) == "nfs4"
    assert files_advice.file_system(tmp_path, table) == "ext4"
    assert [level for level, _ in files_advice._disk(folder, table)] == ["error"]
    assert [level for level, _ in files_advice._disk(tmp_path, table)] == ["ok"]
    assert [level for level, _ in files_advice._disk(tmp_path, tmp_path / "none")] == ["warning"]


async def test_a_file_that_its_group_may_write_is_warned_of_once(
    store: JSONFileStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store.apply("q", TAKE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not caplog.records
    path.chmod(0o660)
    for _ in range(2):
        await store.advice()
    assert [record.getMessage().count("its group may write") for record in caplog.records] == [1]


async def test_a_folder_that_another_group_may_write_is_warned_of_once(
    store: JSONFileStore, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warnings() -> list[int]:
        return [record.getMessage().count("its group may replace files") for record in caplog.records]

    path.parent.chmod(0o770)
    group = path.parent.stat().st_gid
    monkeypatch.setattr(os, "getegid", lambda: group)  # of this user alone, as many systems make it
    await store.apply("q", TAKE)
    assert warnings() == []
    monkeypatch.setattr(os, "getegid", lambda: group + 1)
    path.parent.chmod(0o1770)
    await store.apply("q", TAKE)
    assert warnings() == []
    path.parent.chmod(0o770)
    for _ in range(2):
        await store.apply("q", TAKE)
    assert warnings() == [1]
