"""`intervalq tasks lock` runs a command while it holds a lock, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from cli import tasks_shown
from cli.command_line import CommandLine, ends, help_of

tasks = tasks_shown.tasks
Run = Callable[..., Any]

WAITS = 'echo $$ > pid; read line < gate; echo "$line"'
"""A command that says which process it is, and ends when somebody opens the gate."""


@pytest.fixture
def holder(intervalq: CommandLine, tasks: Run) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command under the lock `l`, and waits until it runs."""
    os.mkfifo(intervalq.folder / "gate")
    os.mkfifo(intervalq.folder / "pid")

    def start(*options: str, script: str = WAITS) -> subprocess.Popen[str]:
        process = intervalq.start("tasks", "lock", "l", *options, "--", "sh", "-c", script)
        process.command = int((intervalq.folder / "pid").read_text())  # type: ignore[attr-defined]  # for the tests
        return process

    return start


def open_gate(intervalq: CommandLine, text: str = "on") -> None:
    (intervalq.folder / "gate").write_text(f"{text}\n")


def fence_of(tasks: Run, *options: str) -> int:
    return int(tasks("lock", "l", *options, "--", "sh", "-c", "echo $INTERVALQ_FENCE").stdout)


def test_the_command_has_its_input_its_output_and_its_exit_code(tasks: Run) -> None:
    ran = tasks("lock", "l", "--", "sh", "-c", "cat; echo err >&2; exit 5", stdin="input\n", code=5)
    assert (ran.stdout, ran.stderr) == ("input\n", "err\n")
    tasks("lock", "l", "--", "sh", "-c", "kill -9 $$", code=128 + 9)
    tasks("lock", "l", "--", "sh", "-c", "kill -PIPE $$; echo ignored", code=128 + signal.SIGPIPE)


def test_each_later_holder_has_a_higher_number(tasks: Run) -> None:
    fences = [fence_of(tasks) for _ in range(3)]
    assert fences == sorted(set(fences))


def test_a_lock_that_is_taken(intervalq: CommandLine, tasks: Run, holder: Run) -> None:
    process = holder()
    for timeout in ("0", "20ms"):
        ran = tasks("lock", "l", "--timeout", timeout, "--", "echo", "never", code=75)
        assert ran.stdout == ""
        assert ran.stderr.startswith("intervalq: somebody else holds the lock 'l':")
    tasks("lock", "other", "--timeout", "0", "--", "true")
    open_gate(intervalq)
    assert process.communicate()[0] == "on\n"
    assert process.returncode == 0
    tasks("lock", "l", "--timeout", "0", "--", "true")


def test_one_command_runs_at_a_time(intervalq: CommandLine, tasks: Run) -> None:
    del tasks  # it sets the store
    (intervalq.folder / "count").write_text("0\n")
    script = "n=$(cat count); [ -e busy ] && exit 3; touch busy; rm busy; echo $((n + 1)) > count"
    processes = [intervalq.start("tasks", "lock", "l", "--", "sh", "-c", script) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert (intervalq.folder / "count").read_text() == "4\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_frees_the_lock(
    intervalq: CommandLine, tasks: Run, holder: Run, number: signal.Signals
) -> None:
    script = f"sleep 1000 & echo $! > other; {WAITS}"
    process = holder("--expiry", "1h", script=script)
    process.send_signal(number)
    assert process.communicate()[0] == ""  # the shell may complain that it was interrupted
    assert process.returncode == 128 + number
    assert ends(process.command)
    assert ends(int((intervalq.folder / "other").read_text())), "what the command had started goes on"
    tasks("lock", "l", "--timeout", "0", "--", "true")


def test_a_second_signal_kills_a_command_that_goes_on(
    intervalq: CommandLine, tasks: Run, holder: Run
) -> None:
    process = holder(script="trap 'echo again > pid' TERM; echo $$ > pid; while :; do read line < gate; done")
    process.send_signal(signal.SIGTERM)
    assert (intervalq.folder / "pid").read_text() == "again\n"
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    tasks("lock", "l", "--timeout", "0", "--", "true")


def test_a_signal_ends_the_wait(intervalq: CommandLine, tasks: Run, holder: Run) -> None:
    process = holder()
    other = intervalq.start("tasks", "lock", "l", "--", "echo", "never")
    # It waits once it has asked the store, which it does with its handlers in place.
    assert intervalq.until(lambda: has_handlers(other.pid))
    other.send_signal(signal.SIGINT)
    assert other.communicate() == ("", "")
    assert other.returncode == 130
    open_gate(intervalq)
    assert process.wait() == 0


def has_handlers(pid: int) -> bool:
    """Whether a process handles all signals that end it; of SIGINT alone, Python always does."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return all(caught >> (number - 1) & 1 for number in (signal.SIGHUP, signal.SIGTERM))


def test_a_killed_holder_takes_its_command_along(intervalq: CommandLine, tasks: Run, holder: Run) -> None:
    """Processes that the command has started end as well. The lock is free when it expires."""
    script = f"trap '' TERM; sleep 1000 & echo $! > other; echo $INTERVALQ_FENCE > fence; {WAITS}"
    process = holder("--expiry", "3s", script=script)
    fence = int((intervalq.folder / "fence").read_text())
    process.kill()
    assert ends(process.command)
    assert ends(int((intervalq.folder / "other").read_text()))
    assert fence_of(tasks, "--timeout", "60s") > fence
    assert process.communicate() == ("", "")


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_command_whose_lock_is_lost_is_ended(
    intervalq: CommandLine, tasks: Run, holder: Run, stubborn: bool
) -> None:
    process = holder("--expiry", "1s", script=f"trap '' TERM; {WAITS}" if stubborn else WAITS)
    process.send_signal(signal.SIGSTOP)
    fence_of(tasks, "--timeout", "60s")  # it expires, because its holder stands still
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate()
    assert process.returncode == 1
    assert stdout == ""
    assert stderr.startswith(
        "intervalq: the lock 'l' couldn't be refreshed before it expired, so its command"
    )
    assert ends(process.command)


def test_a_killed_guard_takes_the_command_along(tasks: Run, holder: Run) -> None:
    process = holder("--expiry", "1h")
    (guard,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(guard), signal.SIGKILL)
    process.communicate()
    assert process.returncode == 137
    assert ends(process.command)
    tasks("lock", "l", "--timeout", "0", "--", "true")


def test_at_a_terminal_the_command_reads_from_it_and_gets_its_signals(
    intervalq: CommandLine, tasks: Run
) -> None:
    master, slave = pty.openpty()
    folder = intervalq.folder
    os.mkfifo(folder / "ready")
    # It starts no program: one that is being started may lose the signal, and the shell would wait for it.
    script = 'trap "exit 7" INT; read line; echo "$line" > ready; read line; exit 8'
    process = intervalq.start(
        "tasks", "lock", "l", "--", "sh", "-c", script,
        stdin=slave, start_new_session=True, preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.write(master, b"typed\n")
    assert (folder / "ready").read_text() == "typed\n"
    os.write(master, b"\x03")  # Ctrl-C
    assert process.wait(60) == 7
    os.close(master)
    os.close(slave)
    tasks("lock", "l", "--timeout", "0", "--", "true")


@pytest.mark.parametrize("store", ["redis_url", "postgres_url", "pgbouncer_url", "nats_url"])
def test_every_store_has_locks(intervalq: CommandLine, request: pytest.FixtureRequest, store: str) -> None:
    url = request.getfixturevalue(store)
    intervalq.environment["INTERVALQ_STORE"] = url
    name = f"suite-{os.getpid()}-{store}"
    inner = [sys.executable, "-m", "intervalq", "tasks", "lock", name, "--timeout", "0", "--", "true"]
    ran = intervalq("tasks", "lock", name, "--", *inner, code=75)
    assert "somebody else holds" in ran.stderr
    first, second = (
        int(intervalq("tasks", "lock", name, "--", "sh", "-c", "echo $INTERVALQ_FENCE").stdout)
        for _ in range(2)
    )
    assert first < second


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["l"], 2, "give the command to run after --"),
        (["l", "--"], 2, "give a command after --"),
        (["--", "true"], 2, "Missing argument 'NAME'"),
        (["", "--", "true"], 2, "name"),
        (["l", "--expiry", "0", "--", "true"], 2, "expiry"),
        (["l", "--timeout", "soon", "--", "true"], 2, "is not a duration"),
        (["l", "--store", "memory://", "--", "true"], 2, "tasks in memory are gone"),
        (["l", "--", "nosuchprogram"], 127, "nosuchprogram: not found"),
        (["l", "--", "./data"], 126, "./data: can't be executed"),
        (["l", "--", "./broken"], 127, "./broken: No such file"),
    ],
)
def test_wrong_use(intervalq: CommandLine, tasks: Run, args: list[str], code: int, message: str) -> None:
    (intervalq.folder / "data").write_text("no program")
    broken = intervalq.folder / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o700)
    assert message in tasks("lock", *args, code=code).stderr


def test_the_help_names_the_variable_and_the_exit_codes() -> None:
    text = help_of("tasks", "lock")
    assert "INTERVALQ_FENCE" in text
    assert "75" in text
