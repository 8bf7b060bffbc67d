from __future__ import annotations

import random
import re
import select
import signal
import subprocess
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from backends import both_backends
from databases import TAKING, at_rest, make, names, opened, refusal, text, whole
from file_processes import HOLD, line, process
from intervalq.errors import StoreUnavailable
from intervalq.rules import Hold, Inspect
from intervalq_stores._files.locked_file import SharedFile
from intervalq_stores.sqlite import _queue_database as sqlite_queue_database
from intervalq_stores.sqlite.queues import SQLiteStore
from stores import file_stores
from stores.file_stores import TAKE, a_cancelled_step_is_not_done

anyio_backend = both_backends
path = file_stores.sqlite_path
store = file_stores.sqlite_store


# --- the lock ---------------------------------------------------------------------------------------


async def test_a_holder_that_hangs_is_named_and_nothing_is_done(store: SQLiteStore, path: Path) -> None:
    await store.apply("other", TAKE)
    store.patience = 0.05
    with process(HOLD, path) as holder:
        assert line(holder) == "held"
        for _ in range(3):
            reported = await refusal(lambda: store.apply("q", TAKE))
            assert re.search(rf"the holder is process {holder.pid} on .*end it", reported)
        store.patience = 60
        assert await store.names() == ["other"]
        warnings = [sentence for level, sentence in await store.advice() if level == "warning"]
        assert [f"is held by process {holder.pid} on " in sentence for sentence in warnings] == [True]
    assert (await store.apply("q", Inspect())).state is None
    assert (await store.apply("q", TAKE)).taken[0].ticket == 1


async def test_one_that_waits_can_be_cancelled_and_its_step_is_not_done(
    store: SQLiteStore, path: Path
) -> None:
    await a_cancelled_step_is_not_done(store, path)


async def test_a_lock_file_removed_in_the_middle_of_a_step_stops_the_writing(
    store: SQLiteStore, path: Path
) -> None:
    await store.apply("q", TAKE)
    write = store._database.write

    def unlocked(changes: dict[str, sqlite_queue_database.Change], sweep: int | None) -> None:
        path.with_name("state.db.lock").unlink(missing_ok=True)
        write(changes, sweep)

    store._database.write = unlocked  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await store.apply("q", TAKE)
    store._database.write = write  # type: ignore[method-assign]
    assert (await store.apply("q", TAKE)).taken[0].ticket == 2


# --- other programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
async def test_a_program_that_holds_the_database_is_told_apart_from_ours(
    store: SQLiteStore, path: Path, lock: str
) -> None:
    await store.apply("q", TAKE)
    store.patience = 0.1
    with opened(path) as other:
        other.execute(lock)
        for _ in range(2):
            reported = await refusal(lambda: store.apply("q", TAKE))
            assert re.search(r"another program held the database.*nothing was done", reported)
        assert not SharedFile(path, "x").is_locked() or store._thread._thread is not None
        assert await store.names() == ["q"]  # reading does no harm in this mode
    store.patience = 60
    assert (await store.apply("q", TAKE)).taken[0].ticket == 2


async def test_not_even_a_look_is_possible_at_one_that_is_locked_up(store: SQLiteStore, path: Path) -> None:
    make(path, {"q": text()})
    store.patience = 0.05
    with opened(path) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        for call in (lambda: store.apply("q", TAKE), store.names):
            assert "another program held the database" in await refusal(call)


async def test_steps_go_on_when_the_other_program_is_done(store: SQLiteStore, path: Path) -> None:
    await store.apply("q", TAKE)
    answers = []

    async def take() -> None:
        answers.append(await store.apply("q", TAKE))

    with opened(path) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as group:
            group.start_soon(take)
            with anyio.fail_after(60):
                while not store._foreign:
                    await checkpoint()
                with SharedFile(path, "x").locked():  # it doesn't hold our own lock while it waits
                    pass
            with anyio.CancelScope() as left:
                left.cancel()
                await store.apply("r", TAKE)
            other.execute("ROLLBACK")
    assert answers[0].taken[0].ticket == 2
    assert await store.names() == ["q"]


async def test_one_that_reads_for_long_holds_up_nobody(store: SQLiteStore, path: Path) -> None:
    await store.apply("q", TAKE)
    with opened(path) as other:
        other.execute("BEGIN")
        before = other.execute("SELECT record FROM queues").fetchall()
        for _ in range(3):
            await store.apply("q", TAKE)
        assert other.execute("SELECT record FROM queues").fetchall() == before


# --- the end of a process ---------------------------------------------------------------------------


def test_a_process_that_ends_leaves_one_file(path: Path) -> None:
    with process(f"{TAKING}\ntake(3)", path) as worker:
        assert worker.communicate()[0] == "1 2 3\n"
        assert worker.returncode == 0
    assert names(path.parent) == ["state.db", "state.db.lock"]


def test_a_process_can_exit_while_it_waits(path: Path) -> None:
    script = f"""{TAKING}
store.patience = 0.05
try:
    take()
except Exception as error:
    print(type(error).__name__, flush=True)
"""
    make(path, {})
    with process(HOLD, path) as holder:
        assert line(holder) == "held"
        with process(script, path) as waiting:
            assert line(waiting) == "StoreTimeout"
            assert waiting.wait(60) == 0
    with opened(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with process(script, path) as waiting:
            assert line(waiting) == "StoreTimeout"
            assert waiting.wait(60) == 0


# --- many processes ---------------------------------------------------------------------------------

KILLS = 40


def test_processes_killed_at_random_never_break_the_database_nor_share_a_ticket(path: Path) -> None:
    draw = random.Random(7)
    acknowledged: list[int] = []
    script = f"{TAKING}\nwhile True: take(1)"

    with ExitStack() as stack:

        def start() -> subprocess.Popen[str]:
            return stack.enter_context(process(script, path))

        def end(worker: subprocess.Popen[str]) -> None:
            worker.kill()
            worker.wait()
            assert worker.stdout is not None
            # What it wrote before, without an incomplete last line.
            acknowledged.extend(map(int, worker.stdout.read().rpartition("\n")[0].split()))

        workers = [start() for _ in range(3)]
        for _ in range(KILLS):
            for _ in range(draw.randrange(1, 25)):
                outputs = [worker.stdout for worker in workers if worker.stdout]
                ready, _, _ = select.select(outputs, [], [], 60)
                assert ready, "nobody gets on"
                acknowledged.extend(int(line(worker)) for worker in workers if worker.stdout in ready)
            index = draw.randrange(3)
            end(workers[index])
            workers[index] = start()
        for worker in workers:
            end(worker)

    assert len(set(acknowledged)) == len(acknowledged)
    assert len(acknowledged) > KILLS
    assert whole(path)
    store = SQLiteStore(f"sqlite://{path}")
    assert anyio.run(store.apply, "q", TAKE).taken[0].ticket > max(acknowledged)
    anyio.run(at_rest, store)
    assert names(path.parent) == ["state.db", "state.db.lock"]


def test_processes_have_their_turns_one_after_the_other(tmp_path: Path) -> None:
    """Turns are counted, not time: a waiter that sleeps and polls would be overtaken by hundreds.

    On a busy machine the lock's own queue lets some dozens pass, so there are three attempts.
    """
    worst = [_most_overtaken(tmp_path / f"{attempt}.db") for attempt in range(3)]
    assert min(worst) <= 100, worst


def _most_overtaken(path: Path) -> int:
    """The most tickets that others took between two of one process, while four processes take tickets."""
    make(path, {})
    script = f"{TAKING}\ntake(1); sys.stdin.readline(); take(400)"
    with ExitStack() as stack:
        workers = [stack.enter_context(process(script, path)) for _ in range(4)]
        for worker in workers:
            assert line(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        taken = [[int(ticket) for ticket in line(worker).split()] for worker in workers]
    assert sorted(ticket for own in taken for ticket in own) == list(range(5, 1605))
    first, last = max(own[0] for own in taken), min(own[-1] for own in taken)
    return max(b - a for own in taken for a, b in pairwise(own) if first <= a and b <= last)


def test_a_database_that_was_being_made_when_its_maker_died_is_made_anew(path: Path) -> None:
    script = f"""{TAKING}
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
take()
"""
    with process(script, path) as maker:
        assert maker.wait(60) == -signal.SIGKILL
    assert names(path.parent) == [f"state.db.{maker.pid}.tmp", "state.db.lock"]
    with process(f"{TAKING}\ntake()", path) as worker:
        assert line(worker) == "1"
    store = SQLiteStore(f"sqlite://{path}")
    anyio.run(store.apply, "q", Hold())
    anyio.run(at_rest, store)
    assert names(path.parent) == ["state.db", "state.db.lock"]
