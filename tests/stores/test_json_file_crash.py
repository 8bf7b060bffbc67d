from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from backends import both_backends
from databases import refusal
from file_processes import HOLD, blocked, line, process
from intervalq.errors import StoreUnavailable
from intervalq.rules import Inspect, State
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores.json._queue_document import Document
from intervalq_stores.json.queues import JSONFileStore
from stores import file_stores
from stores.file_stores import TAKE, a_cancelled_step_is_not_done

anyio_backend = both_backends
path = file_stores.json_path
store = file_stores.json_store


# --- the lock ---------------------------------------------------------------------------------------


async def test_a_holder_that_hangs_is_named_and_nothing_is_done(store: JSONFileStore, path: Path) -> None:
    store.patience = 0.05
    with process(HOLD, path) as holder:
        assert line(holder) == "held"
        for _ in range(3):
            reported = await refusal(lambda: store.apply("q", TAKE))
            assert re.search(rf"the holder is process {holder.pid} on .*end it", reported)
        assert await store.names() == []
    store.patience = 60  # the kernel releases the lock of a process that was killed
    assert (await store.apply("q", Inspect())).state is None
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


async def test_one_that_waits_can_be_cancelled_and_its_step_is_not_done(
    store: JSONFileStore, path: Path
) -> None:
    await a_cancelled_step_is_not_done(store, path)


def test_a_process_can_exit_while_it_waits_for_the_lock(path: Path) -> None:
    script = """
import sys, anyio
from intervalq.errors import StoreTimeout
from intervalq.rules import Inspect
from intervalq_stores.json.queues import JSONFileStore
async def main():
    store = JSONFileStore(sys.argv[1])
    store.patience = 0.01
    try:
        await store.apply("q", Inspect())
    except StoreTimeout:
        print("timeout", flush=True)
anyio.run(main)
"""
    with process(HOLD, path) as holder:
        assert line(holder) == "held"
        with process(script, path.as_uri()) as waiting:
            assert line(waiting) == "timeout"
            assert waiting.wait(60) == 0
            assert holder.poll() is None


async def test_steps_of_one_process_share_the_lock_and_are_done_one_by_one(
    store: JSONFileStore, path: Path
) -> None:
    tickets: list[int] = []

    async def take() -> None:
        tickets.append((await store.apply("q", TAKE)).taken[0].ticket)

    with process(HOLD, path) as holder:
        assert line(holder) == "held"
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(take)
            await blocked(store)
            holder.kill()
    assert sorted(tickets) == list(range(1, 51))


async def test_the_lock_is_given_up_though_a_child_has_its_descriptor(path: Path) -> None:
    file = SharedFile(path, "x")
    with file.locked():
        copy = os.dup(file._lock)  # what a forked child has
    try:
        assert not file.is_locked()
    finally:
        os.close(copy)


def test_a_forked_child_does_not_keep_the_lock_of_a_parent_that_was_killed(path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from intervalq_stores._files.locked_file import SharedFile
with SharedFile(Path(sys.argv[1]), "x").locked():
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    print("child", flush=True)
    sys.stdin.read()
    os._exit(0)
"""
    with process(script, path) as parent:
        assert line(parent) == "child"
        assert parent.wait(60) == -signal.SIGKILL
        assert not SharedFile(path, "x").is_locked()


def test_a_forked_child_uses_the_store_too(path: Path) -> None:
    script = """
import os, sys, anyio
from intervalq.rules import Advance, Settings
from intervalq_stores.json.queues import JSONFileStore
store = JSONFileStore(sys.argv[1])
async def take():
    answer = await store.apply("q", Advance(settings=Settings(1), nonce="n", take=1))
    os.write(1, f"{answer.taken[0].ticket}\\n".encode())
anyio.run(take)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
anyio.run(take)
"""
    with process(script, path.as_uri()) as parent:
        assert [line(parent) for _ in range(3)] == ["1", "2", "3"]
        assert parent.wait(60) == 0


async def test_a_lock_file_that_somebody_removed_is_made_again(store: JSONFileStore, path: Path) -> None:
    """Processes that wait for the removed lock must not continue if they get it: others hold the new one."""
    lock = path.with_name("state.json.lock")
    with ExitStack() as stack:
        old = stack.enter_context(process(HOLD, path))
        assert line(old) == "held"
        async with anyio.create_task_group() as group:
            group.start_soon(store.apply, "q", TAKE)
            await blocked(store)
            lock.unlink()
            new = stack.enter_context(process(HOLD, path))
            assert line(new) == "held"
            old.kill()
            old.wait()
            store.patience = 0.05
            assert f"process {new.pid}" in await refusal(lambda: store.apply("r", TAKE))
            assert not path.exists()
            new.kill()
    assert await store.names() == ["q"]


def test_a_lock_file_removed_in_the_middle_of_a_step_stops_the_writing(path: Path) -> None:
    file = SharedFile(path, "x")
    with file.locked():
        file.replace(b"old")
    lock = path.with_name("state.json.lock")
    with file.locked():
        lock.unlink()
        with SharedFile(path, "x").locked(), pytest.raises(StoreUnavailable, match="nothing was written"):
            file.replace(b"new")
    assert path.read_bytes() == b"old"
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]


# --- the kill storm ---------------------------------------------------------------------------------

WORKER = """
import os, sys, anyio
from intervalq.rules import Advance, Settings
from intervalq_stores.json.queues import JSONFileStore
async def main():
    store = JSONFileStore(sys.argv[1])
    store.patience = 120
    take = Advance(settings=Settings(1_000), nonce="n", take=1)
    while True:
        os.write(1, b"%d\\n" % (await store.apply("q", take)).taken[0].ticket)
anyio.run(main)
"""
KILLS = 40


def test_processes_killed_at_random_never_break_the_file_nor_share_a_ticket(path: Path) -> None:
    draw = random.Random(7)
    acknowledged: list[int] = []

    def state() -> State | None:
        return Document(SharedFile(path, "x").read(), "x").get("q")

    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            return stack.enter_context(process(WORKER, path.as_uri()))

        workers = [start() for _ in range(3)]
        for _ in range(KILLS):
            for _ in range(draw.randrange(1, 25)):
                outputs = [worker.stdout for worker in workers if worker.stdout]
                ready, _, _ = select.select(outputs, [], [], 60)
                assert ready, "nobody gets on"
                for worker in workers:
                    if worker.stdout in ready:
                        acknowledged.append(int(line(worker)))
                        found = state()
                        assert found is not None
                        assert found.ticket >= acknowledged[-1]
            index = draw.randrange(3)
            workers[index].kill()
            workers[index].wait()
            acknowledged.extend(map(int, _rest(workers[index])))
            workers[index] = start()
        for worker in workers:
            worker.kill()
            worker.wait()
            acknowledged.extend(map(int, _rest(worker)))

    assert len(set(acknowledged)) == len(acknowledged)
    assert len(acknowledged) > KILLS
    anyio.run(JSONFileStore(path.as_uri()).apply, "q", TAKE)
    found = state()
    assert found is not None
    assert found.ticket > max(acknowledged)
    assert sorted(p.name for p in path.parent.iterdir()) == ["state.json", "state.json.lock"]
    json.loads(path.read_text())


def _rest(worker: subprocess.Popen[str]) -> list[str]:
    """The rest of what it wrote before it was killed, without an incomplete last line."""
    assert worker.stdout is not None
    return worker.stdout.read().rpartition("\n")[0].split()


def test_leftovers_of_a_writer_that_died_are_removed_by_the_next(path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from intervalq_stores._files.locked_file import SharedFile
file = SharedFile(Path(sys.argv[1]), "x")
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
with file.locked():
    file.replace(b"half")
"""
    with process(script, path) as writer:
        assert writer.wait(60) == -signal.SIGKILL
    assert path.with_name(f"state.json.{writer.pid}.tmp").read_bytes() == b"half"
    assert not path.exists()
    with SharedFile(path, "x").locked():
        assert [p.name for p in path.parent.iterdir()] == ["state.json.lock"]
