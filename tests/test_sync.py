"""Blocking code: threads share one pace, an interrupt leaves nothing behind, a child starts afresh."""

from __future__ import annotations

import os
import pickle
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import anyio
import pytest

import intervalq.sync
from intervalq import QueueClosed, SlotTimeout
from intervalq._queue.threads import WaitingThreads, opens_here
from intervalq._shard.grants import Grant
from intervalq._shard.leases import Leases
from intervalq._shard.shard import Shard
from intervalq._timing.background_loop import Background
from intervalq.errors import ForkedError
from intervalq.store import open_store
from intervalq.sync import IntervalQueue


@pytest.fixture
def queue() -> Iterator[IntervalQueue]:
    with IntervalQueue(f"sync-{secrets.token_hex(4)}", interval=0.02, store="memory://") as queue:
        yield queue


def test_threads_share_one_pace(queue: IntervalQueue) -> None:
    tickets: list[int] = []

    def work() -> None:
        for _ in range(3):
            with queue.slot() as slot:
                tickets.append(slot.ticket)

    threads = [threading.Thread(target=work) for _ in range(8)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # However late they are, this number of starts takes as many intervals, less twice the tolerance.
    assert time.monotonic() - began >= 23 * 0.02 - 2 * 0.002
    assert len(set(tickets)) == 24


def test_results_errors_and_attempts_come_through(queue: IntervalQueue) -> None:
    assert queue.run(lambda: 42) == 42
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError(len(tries))
        return "done"

    with pytest.raises(ValueError, match="1"):
        queue.run(flaky)
    tries.clear()
    with IntervalQueue(queue.name, store="memory://", retries=2, backoff=0.001) as retrying:
        assert retrying.run(flaky) == "done"


def test_background_jobs_and_maps(queue: IntervalQueue) -> None:
    futures = [queue.add(lambda n: n * 2, n) for n in range(4)]
    assert [future.result() for future in futures] == [0, 2, 4, 6]
    assert list(queue.map(str, range(5), ordered=True)) == ["0", "1", "2", "3", "4"]
    results = queue.map(str, range(1_000), window=4)
    assert next(results) == "0"
    results.close()  # type: ignore[attr-defined]


def test_verbs(queue: IntervalQueue) -> None:
    queue.run(lambda: None)
    queue.pause()
    assert queue.inspect().is_held
    with pytest.raises(SlotTimeout), queue.slot(timeout=0.01):
        pass
    queue.resume()
    queue.cool_down(0.01)
    queue.run(lambda: None)
    queue.configure(interval=0.01)
    assert queue.inspect().interval == 0.01
    assert queue.reclaim() == 0
    with queue["key"].slot() as slot:
        assert slot.ticket >= 1  # on a busy machine, the first ones may have passed
    assert pickle.loads(pickle.dumps(queue)).name == queue.name
    queue.drop()


def test_closing_tells_threads_that_wait() -> None:
    queue = IntervalQueue(f"sync-{secrets.token_hex(4)}", interval=3_600, store="memory://")
    queue.run(lambda: None)
    errors: list[Exception] = []

    def work() -> None:
        try:
            queue.run(lambda: None)
        except QueueClosed as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while queue.inspect().waiting < 3:
        pass
    queue.close(drain=False)
    for thread in threads:
        thread.join()
    assert len(errors) == 3


def test_closing_waits_for_a_thread_that_comes_too_late_for_its_slot(
    queue: IntervalQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all others have begun, its job is no longer among the waiting ones, and must be added again."""
    order: list[str] = []
    slots: list[Grant] = []
    asked, mine = threading.Event(), queue._queue._callers

    class Watched(WaitingThreads):
        async def gone(self) -> None:
            asked.set()
            await mine.gone()
            order.append("closed")

    def opens_late(shard: Shard, grant: Grant) -> bool:
        slots.append(grant)
        if len(slots) == 1:
            closing.start()
            assert asked.wait(60)
            return False
        is_open = opens_here(shard, grant)
        order.append("began" if is_open else "late again")
        return is_open

    closing = threading.Thread(target=queue.close)
    watched = Watched()
    monkeypatch.setattr(watched, "waiting", mine.waiting)
    monkeypatch.setattr(queue._queue, "_callers", watched)
    monkeypatch.setattr(intervalq.sync, "opens_here", opens_late)
    assert queue.run(lambda: "done") == "done"
    closing.join()
    assert order[-2:] == ["began", "closed"]


def test_a_forked_child_begins_anew(tmp_path: Path) -> None:
    with IntervalQueue("forked", interval=0.01, store=f"file://{tmp_path}/state.json") as queue:
        queue.run(lambda: None)
        reader, writer = os.pipe()
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                try:
                    with queue.slot() as slot:
                        os.write(writer, f"{slot.ticket}\n".encode())
                finally:
                    os._exit(0)
            children.append(child)
        queue.run(lambda: None)
        for child in children:
            os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            assert len({int(line) for line in lines}) == 3
        assert queue.inspect().ticket >= 5


def test_a_forked_child_leaves_the_slot_of_its_parent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither settles nor ends the slot, because both would use the parent's connection."""
    url = f"file://{tmp_path}/state.json"
    ended: list[int] = []
    with IntervalQueue("forked-in", limits=["1000 tokens/min"], store=url) as queue:
        code = 1
        with queue.slot(cost={"tokens": 100}) as slot:
            child = os.fork()
            if child == 0:
                monkeypatch.setattr(Leases, "ended", lambda _, ticket: ended.append(ticket))
                try:
                    slot.settle(tokens=1)
                except ForkedError:
                    code = 0
            else:
                slot.settle(tokens=30)
        if child == 0:
            try:
                with queue.slot(cost={"tokens": 5}) as own:  # a slot of its own, afterwards
                    own.settle(tokens=3)
                queue.close()
            finally:
                os._exit(code or ended[:1] == [slot.ticket])
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    with IntervalQueue("forked-in", store=url) as queue:
        assert [limit.taken for limit in queue.inspect().limits] == [33]


def test_a_store_object_can_not_be_opened_again_in_a_child() -> None:
    queue = IntervalQueue("forked-object", interval=0.01, store=open_store("memory://"))
    queue.run(lambda: None)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            queue.run(lambda: None)
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_interrupt_while_waiting_gives_the_ticket_back_and_ends_the_process(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    url = f"file://{tmp_path}/state.json"
    script.write_text(
        "from intervalq.sync import IntervalQueue\n"
        f"queue = IntervalQueue('interrupted', interval=3600, store={url!r})\n"
        "queue.run(lambda: None)\n"
        "print('waits', flush=True)\n"
        "try:\n"
        "    queue.run(lambda: None)\n"
        "except KeyboardInterrupt:\n"
        "    queue.close()\n"
        "    print('interrupted')\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    with IntervalQueue("interrupted", store=url) as queue:
        while queue.inspect().ticket < 2:  # its second job holds a ticket
            time.sleep(0)
        process.send_signal(2)
        out, _ = process.communicate()
        assert out.startswith("interrupted")
        assert process.returncode == 0
        state = queue.inspect()
        assert state.next_slot is not None
        assert state.next_slot - state.now < 3_601, "the slot that was not used is free again"


def test_an_interrupt_while_a_job_is_handed_over_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    background, began, ended = Background(), threading.Event(), threading.Event()
    start = background.start

    async def job() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    def interrupted(function: Callable[..., object], *args: object) -> Future[object]:
        monkeypatch.setattr(background, "start", start)
        start(function, *args)
        assert began.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(background, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.call(job)
    assert ended.wait(60)
    background.end()


def test_a_blocking_slot_tells_when_it_is_due(queue: IntervalQueue) -> None:
    with queue.slot() as slot:
        assert abs(slot.due - time.time()) < 3600
        assert "due=" in repr(slot)
