"""What observes jobs may fail, and jobs go on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._observe.log import Writer
from intervalq._observe.starts import observe
from intervalq._page.html import save
from intervalq._shard.grants import Grant
from intervalq.sync import IntervalQueue as BlockingQueue
from virtual_store import BACKENDS, FarStore, in_virtual_time


class Failing:
    def __init__(self) -> None:
        self.told = 0

    def began(self, grant: Grant, started: float, waited: float) -> None:
        del grant, started, waited
        self.told += 1
        raise OSError("there is no room for another thread")

    def undone(self, grant: Grant) -> None:
        del grant
        raise OSError("likewise")


@BACKENDS
@in_virtual_time
async def test_jobs_go_on_if_what_observes_them_fails(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    del backend
    queue, failing = IntervalQueue("q", store=FarStore(), rate="10/s", max_running=1), Failing()
    observe(queue._shard(), failing)
    with anyio.fail_after(2):
        for _ in range(3):
            async with queue.slot():
                pass
    assert failing.told == 3
    assert caplog.text.count("jobs go on") == 1
    await queue.close()


@in_virtual_time
async def test_a_log_that_cannot_be_opened_is_refused_each_time(tmp_path: Path) -> None:
    queue = IntervalQueue("q", store=FarStore(), rate="10/s", log=tmp_path / "no folder" / "log")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            async with queue.slot():
                pass
    await queue.close()


_CHILD = """
import multiprocessing, sys
from intervalq.sync import IntervalQueue

def child(path):
    queue = IntervalQueue("q", store="memory://", rate="1000/s", log=path)
    for _ in range(5):
        with queue.slot():
            pass

process = multiprocessing.get_context("fork").Process(target=child, args=(sys.argv[1],))
process.start()
process.join()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it can't fork")
def test_a_child_process_that_ends_leaves_all_lines(tmp_path: Path) -> None:
    """Its handle isn't closed, and `multiprocessing` runs no functions of `atexit` there."""
    path = tmp_path / "log"
    subprocess.run([sys.executable, "-c", _CHILD, str(path)], check=True, timeout=60)
    assert path.read_text().count('"started"') >= 5


def test_a_log_is_open_only_while_it_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So it may be moved, as for a rotation; and what can't be written at the moment is written later."""
    (folder := tmp_path / "logs").mkdir()
    path, writer = folder / "starts", Writer(str(folder / "starts"))
    for number, moved, to in ((0, path, folder / "old"), (1, folder, tmp_path / "away")):
        writer.put(({}, number))
        assert writer.flush()
        moved.rename(to)
    for number in (2, 3):
        writer.put(({}, number))
        assert writer.flush(), "it tries again"
    (tmp_path / "away").rename(folder)
    assert writer.flush()
    assert not writer.flush()
    assert (folder / "old").read_text() == '{"ticket": 0, "undone": true}\n'
    assert [json.loads(line)["ticket"] for line in path.read_text().splitlines()] == [1, 2, 3]
    assert caplog.text.count("can't be written") == 1
    if Path("/proc/self/fd").exists():
        assert not [each for each in Path("/proc/self/fd").iterdir() if "starts" in os.path.realpath(each)]


def test_only_the_owner_can_read_what_is_written(tmp_path: Path) -> None:
    """Names of queues and keys are nobody else's business."""
    before = os.umask(0)
    try:
        with BlockingQueue("q", store="memory://", rate="1000/s", log=tmp_path / "log") as queue:
            queue.run(int)
        save(tmp_path / "page.html", b"page")
    finally:
        os.umask(before)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {
        "log": 0o600,
        "page.html": 0o600,
    }
