"""`intervalq work` runs the workers of a module, ends when it is told to, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

import anyio
import pytest

from cli.command_line import CommandLine, ends
from intervalq.tasks import Tasks, WorkerSession
from intervalq.tasks.rules import QueueStats

APP = """
import os, threading, time
import anyio
from intervalq.tasks import Task, Tasks

tasks = Tasks("tasks.db", expiry=0.5)

def say(*words):
    os.write(1, f"{' '.join(map(str, words))}\\n".encode())

@tasks.worker("quick", max_attempts=2, backoff=0.001, concurrency=1)
async def quick(task: Task) -> None:
    say("did", task.value, os.getpid())
    if task.value == "fails":
        raise ValueError("\\x1b[31mno\\nreally")
    if task.value == "kills":
        os._exit(9)

@tasks.worker("slow")
async def slow(task: Task) -> None:
    say("began", os.getpid())
    await anyio.sleep_forever()

@tasks.worker("finishing")
async def finishing(task: Task) -> None:
    say("began", os.getpid())
    await anyio.to_thread.run_sync(lambda: open(task.value).read())  # until the test opens it, too

@tasks.worker("thread")
def thread(task: Task) -> None:
    say("began", os.getpid())
    threading.Event().wait()

@tasks.worker("blocks")
async def blocks(task: Task) -> None:
    say("began", os.getpid())
    time.sleep(1000)
"""


@pytest.fixture
def app(intervalq: CommandLine) -> CommandLine:
    """The command line in a folder with a module of workers."""
    intervalq.write("app.py", APP)
    return intervalq


def insert(app: CommandLine, queue: str, *values: Any) -> None:
    async def do() -> None:
        async with Tasks(app.folder / "tasks.db") as handle:
            await handle.modify(*(handle.new(queue, value) for value in values))

    anyio.run(do)


def left(app: CommandLine) -> tuple[dict[str, QueueStats], list[WorkerSession]]:
    """The queues that have tasks, and the sessions."""

    async def do() -> tuple[list[QueueStats], list[WorkerSession]]:
        async with Tasks(app.folder / "tasks.db") as handle:
            return await handle.queues(), await handle.sessions()

    queues, sessions = anyio.run(do)
    return {queue.name: queue for queue in queues}, sessions


def summary(stderr: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(stderr.splitlines()[-1])
    return found


def began(process: subprocess.Popen[str]) -> int:
    """Wait until a task has begun, and return the id of its process."""
    assert process.stdout is not None
    word, pid = process.stdout.readline().split()
    assert word == "began"
    return int(pid)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_until_empty(app: CommandLine, processes: str) -> None:
    insert(app, "quick", *range(50), "fails")
    ran = app("work", "app:tasks", "--until-empty", "--processes", processes)
    assert sorted(line.split()[1] for line in ran.stdout.splitlines()) == sorted(
        [*map(str, range(50)), "fails", "fails"]
    )
    assert ran.stderr.splitlines()[-1] == "intervalq: 50 done, 1 failed, 1 dead, 0 given back"
    assert "failed: ValueError" in ran.stderr
    assert "is dead: ValueError" in ran.stderr
    assert "\x1b" not in ran.stderr
    queues, sessions = left(app)
    assert list(queues) == ["quick.dead"]
    assert sessions == []


def test_the_summary_for_programs(app: CommandLine) -> None:
    insert(app, "quick", 1)
    ran = app("work", "app", "--until-empty", "--json")
    others = dict.fromkeys(("failed", "dead", "given_back", "snoozed", "cancelled", "lost"), 0)
    assert summary(ran.stderr) == {"done": 1, **others}


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_signal_lets_what_runs_end(app: CommandLine, processes: str, sent: signal.Signals) -> None:
    app.fifo("pipe")
    insert(app, "finishing", "pipe")
    process = app.start("work", "app", "--processes", processes, "--json")
    worker = began(process)
    process.send_signal(sent)
    (app.folder / "pipe").write_text("go on")
    _, stderr = process.communicate()
    assert process.returncode == 0
    assert summary(stderr)["done"] == 1
    assert ends(worker)
    assert left(app) == ({}, [])


@pytest.mark.parametrize("queue", ["slow", "thread"])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_what_does_not_end_in_time_is_given_back(app: CommandLine, processes: str, queue: str) -> None:
    insert(app, queue, 1)
    process = app.start("work", "app", "--processes", processes, "--grace", "10ms", "--json")
    worker = began(process)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    assert process.returncode == 0
    assert summary(stderr)["given_back"] == 1
    assert "given back" in stderr
    assert ends(worker)
    queues, sessions = left(app)
    assert (queues[queue].ready, queues[queue].claimed, sessions) == (1, 0, [])


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_signal_ends_it_at_once(app: CommandLine, processes: str) -> None:
    insert(app, "slow", 1)
    process = app.start("work", "app", "--processes", processes, "--grace", "1h")
    worker = began(process)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert "stopping: running tasks may continue for 1h00m" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert ends(worker)
    queues, sessions = left(app)
    assert (queues["slow"].ready, sessions) == (1, [])


def test_a_blocked_event_loop_does_not_keep_it(app: CommandLine) -> None:
    insert(app, "blocks", 1)
    process = app.start("work", "app", "--grace", "1h")
    began(process)
    while process.poll() is None:  # signals of the same moment are one, and it can't say what it received
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_task_that_kills_its_process_ends_in_the_dead_letter_queue(app: CommandLine) -> None:
    insert(app, "quick", "kills")
    process = app.start("work", "app", "--processes", "2", "--until-empty")
    _, stderr = process.communicate()
    assert process.returncode == 0
    assert stderr.count("ended with exit code 9: it is replaced in") == 2
    queues, sessions = left(app)
    assert list(queues) == ["quick.dead"]
    assert sessions == []


def test_a_process_that_was_killed_is_replaced(app: CommandLine) -> None:
    insert(app, "slow", 1)
    process = app.start("work", "app", "--processes", "2")
    os.kill(first := began(process), signal.SIGKILL)
    assert began(process) != first
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    process.kill()
    assert process.stderr is not None
    assert "died of signal 9 (Killed): it is replaced in 500ms" in process.stderr.readline()


def test_processes_end_when_their_parent_was_killed(app: CommandLine) -> None:
    insert(app, "slow", 1)
    process = app.start("work", "app", "--processes", "2", "--grace", "10ms")
    worker = began(process)
    process.kill()
    assert ends(worker)
    assert app.until(lambda: not left(app)[1])
    assert left(app)[0]["slow"].ready == 1


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("nosuch", 2, "there is no module nosuch, neither in"),
        ("app:nosuch", 2, "module app has no nosuch; it has tasks"),
        ("app:os", 2, "app:os is not a Tasks object but"),
        ("app.py", 2, "nor installed; the module of the file app.py is app"),
        ("./app.py", 2, "is not MODULE:NAME"),
        ("idle", 2, "idle:tasks has no workers"),
        ("broken", 1, "module broken can't be imported: ZeroDivisionError: division by zero ("),
        ("bad", 1, "module bad can't be imported: SyntaxError: '(' was never closed ("),
        ("lacks", 1, "module lacks can't be imported: ModuleNotFoundError: No module named 'nosuch'"),
        ("away", 1, "postgresql://127.0.0.1:1/x: "),
    ],
)
def test_what_can_not_be_run(app: CommandLine, target: str, code: int, message: str) -> None:
    app.write("idle.py", "from intervalq.tasks import Tasks", "tasks = Tasks()")
    app.write("broken.py", "", "1 / 0")
    app.write("bad.py", "x = (")
    app.write("lacks.py", "import nosuch")
    away = "tasks = Tasks('postgresql://user:secret@127.0.0.1:1/x')"
    app.write("away.py", "from intervalq.tasks import Tasks", away, "tasks.worker('q')(print)")
    ran = app("work", target, code=code)
    assert message in ran.stderr
    assert "secret" not in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [("nosuch", 2, "there is no module nosuch"), ("memory", 2, "can't be shared by several processes")],
)
def test_what_several_processes_can_not_run(app: CommandLine, target: str, code: int, message: str) -> None:
    app.write(
        "memory.py",
        "from intervalq.tasks import Tasks",
        "tasks = Tasks('memory://')",
        "tasks.worker('q')(print)",
    )
    ran = app("work", target, "--processes", "3", code=code)
    assert ran.stderr.count(message) == 1
    assert len(ran.stderr.splitlines()) == 1


def test_a_module_that_logs_elsewhere_is_left_alone(app: CommandLine) -> None:
    app.write("app.py", APP, "import logging", "logging.basicConfig(filename='log.txt')")
    insert(app, "quick", "fails")
    ran = app("work", "app", "--until-empty")
    assert len(ran.stderr.splitlines()) == 1
    assert "is dead: ValueError" in (app.folder / "log.txt").read_text()


def test_wrong_use(app: CommandLine) -> None:
    assert "--processes" in app("work", "app", "--processes", "0", code=2).stderr
    assert "give grace as" in app("work", "app", "--grace", "soon", code=2).stderr
    assert "Missing argument" in app("work", code=2).stderr
