"""What a program pays for at its start: the modules that are loaded until its first job has begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import pytest

STEPS: Final = """
import json, sys, asyncio
shown = {}
def loaded(step, before=set(sys.modules)):
    shown[step] = sorted({*sys.modules} - before)
    before |= {*sys.modules}

import intervalq
loaded("package")
import anyio, anyio.lowlevel, anyio.to_thread
loaded("anyio")
from intervalq import IntervalQueue
loaded("class")
async def main():
    async with IntervalQueue("q", rate="10/s") as queue:
        async with queue.slot():
            loaded("slot")
asyncio.run(main())
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The modules that each step of a program loads, without those that asyncio has."""
    home = str(tmp_path_factory.mktemp("home"))
    environment = {name: value for name, value in os.environ.items() if name != "INTERVALQ_STORE"}
    environment |= {"HOME": home, "XDG_STATE_HOME": home, "LOCALAPPDATA": home}
    command = [sys.executable, "-c", STEPS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    shown: dict[str, list[str]] = json.loads(done.stdout)
    return shown


def ours(names: list[str]) -> list[str]:
    return [name for name in names if name.partition(".")[0] in ("intervalq", "intervalq_stores")]


def others(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} - {"intervalq", "intervalq_stores"}


def test_the_package_loads_none_of_its_parts(loaded: dict[str, list[str]]) -> None:
    assert ours(loaded["package"]) == ["intervalq", "intervalq._lazy"]
    assert others(loaded["package"]) <= {"__future__"}


def test_the_class_loads_only_what_every_queue_needs(loaded: dict[str, list[str]]) -> None:
    own = ours(loaded["class"])
    assert "intervalq.rules" in own
    assert len(own) <= 50
    unused = (
        "_keys.store _queue.inspect keyed sync _observe _timing.background_loop tasks schedules cli testing"
    )
    assert not {f"intervalq.{name}" for name in unused.split()} & {*own}
    assert [name for name in own if name.startswith("intervalq._shard.")] == ["intervalq._shard.wait_queue"]
    assert others(loaded["class"]) <= {
        "_bisect", "_blake2", "_ctypes", "_datetime", "_hashlib", "_random", "_sha2", "_sha512", "_winapi",
        "bisect", "ctypes", "datetime", "fnmatch", "hashlib", "ipaddress", "nt", "ntpath", "pathlib",
        "random", "urllib",
    }  # fmt: skip


def test_the_first_slot_of_the_default_store_loads_only_that_store(loaded: dict[str, list[str]]) -> None:
    own = [name for name in ours(loaded["slot"]) if name.startswith("intervalq_stores")]
    assert "intervalq_stores.sqlite.queues" in own
    assert len(own) <= 20
    assert len([name for name in ours(loaded["slot"]) if "_shard." not in name]) <= len(own) + 7
    unused = {"click", "hypothesis", "idna", "json", "multiprocessing", "pytest", "rich", "trio"}
    assert not others(loaded["slot"]) & unused
