from __future__ import annotations

import threading
from pathlib import Path

import pytest

from databases import TAKING, names, whole
from file_processes import line, process
from intervalq_stores.sqlite._fork_guard import FORK_GUARD


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def test_a_forked_child_uses_the_store_too(path: Path) -> None:
    script = f"""{TAKING}
take()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
take()
"""
    with process(script, path) as parent:
        assert [line(parent) for _ in range(3)] == ["1", "2", "3"]
        assert parent.wait(60) == 0
    assert names(path.parent) == ["state.db", "state.db.lock"]


def test_a_parent_that_closes_does_not_take_the_log_away_from_its_child(path: Path) -> None:
    """A child that took its parent's locks for its own would continue to write to a removed log."""
    script = f"""{TAKING}
async def close():
    await store.aclose()
    while store._thread._thread is not None:
        await anyio.lowlevel.checkpoint()
take()
in_parent, in_child = os.pipe(), os.pipe()
if child := os.fork():
    take()
    os.write(in_child[1], b"x")
    os.read(in_parent[0], 1)
    anyio.run(close)
    os.write(in_child[1], b"x")
    os.waitpid(child, 0)
    take()
else:
    os.read(in_child[0], 1)
    take(50)
    os.write(in_parent[1], b"x")
    os.read(in_child[0], 1)
    take(50)
    os.kill(os.getpid(), signal.SIGKILL)  # it closes nothing: what it did must be in the log that others see
"""
    with process(script, path) as parent:
        output = parent.communicate()[0].split()
    assert [int(ticket) for ticket in output] == list(range(1, 104))
    assert whole(path)


def test_forks_in_the_midst_of_steps_leave_parent_and_children_able_to_work(path: Path) -> None:
    """If a fork happened while a thread is inside SQLite, some child would wait for ever for a mutex."""
    script = f"""{TAKING}
take()  # all is imported: the locks of imports are held in a child as well
forks = 60
more = threading.Event()
def busy():
    while not more.is_set():
        take(20)
thread = threading.Thread(target=busy)
thread.start()
for _ in range(forks):
    if not (child := os.fork()):
        take()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
more.set()
thread.join()
"""
    with process(script, path) as parent:
        output, errors = parent.communicate(timeout=250)
    assert parent.returncode == 0, errors
    tickets = sorted(map(int, output.split()))
    assert tickets == list(range(1, len(tickets) + 1))
    assert len(output.splitlines()) > 60
    assert whole(path)


def test_a_child_forked_while_the_disk_hangs_says_that_it_can_not_use_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"""{TAKING}
from intervalq_stores.sqlite._fork_guard import FORK_GUARD
from intervalq.errors import StoreError
FORK_GUARD.patience = 0.01
take()
inside, done = threading.Event(), threading.Event()
def hang():
    with FORK_GUARD.inside():
        inside.set()
        done.wait()
threading.Thread(target=hang).start()
inside.wait()
child = os.fork()
if not child:
    try:
        take()
    except StoreError as error:
        os.write(1, f"{{error}}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
done.set()
take()
"""
    with process(script, path) as parent:
        assert line(parent) == "1"
        assert "forked while SQLite was at work" in line(parent)
        assert line(parent) == "2"
        assert parent.wait(60) == 0


def test_the_gate_lets_nobody_in_during_a_fork() -> None:
    entered = threading.Event()

    def enter() -> None:
        with FORK_GUARD.inside():
            entered.set()

    FORK_GUARD.before()
    thread = threading.Thread(target=enter)
    thread.start()
    try:
        assert not entered.is_set()
        assert FORK_GUARD._inside == 0
    finally:
        FORK_GUARD.after_in_parent()
        thread.join(60)
    assert entered.is_set()
    assert not FORK_GUARD.spoiled
