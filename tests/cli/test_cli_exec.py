"""`intervalq exec` waits for its turn, then becomes another program."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from cli.command_line import CommandLine

SLOW = ("exec", "--name", "q", "--interval", "1h")


def test_it_becomes_the_command(intervalq: CommandLine) -> None:
    script = "echo $$; cat; echo err >&2; exit 5"
    process = intervalq.start(*SLOW, "--", "sh", "-c", script, stdin=-1)
    stdout, stderr = process.communicate("input\n")
    assert stdout == f"{process.pid}\ninput\n", "the same process, with its input"
    assert stderr == "err\n"
    assert process.returncode == 5


def test_signals_are_as_the_command_expects_them(intervalq: CommandLine) -> None:
    ran = intervalq(*SLOW, "--", "sh", "-c", "kill -PIPE $$; echo ignored", code=-signal.SIGPIPE)
    assert ran.stdout == ""


def test_commands_begin_an_interval_apart(intervalq: CommandLine) -> None:
    before = time.time()
    processes = [
        intervalq.start("exec", "--name", "q", "--interval", "100ms", "--", "echo", "1") for _ in range(5)
    ]
    assert [process.communicate()[0] for process in processes] == ["1\n"] * 5
    state = json.loads(intervalq("status", "q", "--json").stdout)
    assert state["ticket"] >= 5
    assert state["next_slot"] - before >= 0.5, "five slots were used since"


def test_the_slot_stays_used(intervalq: CommandLine) -> None:
    assert intervalq(*SLOW, "--", "echo", "1").stdout == "1\n"
    ran = intervalq(*SLOW, "--timeout", "10ms", "--", "echo", "2", code=75)
    assert ran.stdout == ""
    assert ran.stderr.startswith("intervalq: no slot of queue 'q' came within 0.01 s")


def test_who_gives_up_leaves_no_empty_slot(intervalq: CommandLine) -> None:
    intervalq(*SLOW, "--", "true")
    for _ in range(3):
        intervalq(*SLOW, "--timeout", "10ms", "--", "true", code=75)
    output = intervalq("status", "q").stdout
    assert "in 1h00m" in output or "in 59m" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_wait(intervalq: CommandLine, number: signal.Signals) -> None:
    intervalq(*SLOW, "--", "true")
    process = intervalq.start(*SLOW, "--", "echo", "2")
    waits = intervalq.until(lambda: "1 outstanding" in intervalq("status", "q").stdout)
    assert waits
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr) == (128 + number, "", "")
    output = intervalq("status", "q").stdout
    assert "in 1h00m" in output or "in 59m" in output


def test_a_command_that_is_not_there_is_known_before_the_wait(intervalq: CommandLine) -> None:
    ran = intervalq(*SLOW, "--", "nosuchprogram", "-x", code=127)
    assert ran.stderr == "intervalq: nosuchprogram: not found\n"
    (intervalq.folder / "data").write_text("no program")
    assert intervalq(*SLOW, "--", "./data", code=126).stderr == "intervalq: ./data: can't be executed\n"
    assert intervalq("status").stdout.startswith("no queues in ")


def test_a_command_that_cannot_run_after_all(intervalq: CommandLine) -> None:
    program = intervalq.folder / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o700)
    ran = intervalq(*SLOW, "--", "./broken", code=127)
    assert ran.stderr == "intervalq: ./broken: No such file or directory\n"
    assert os.access(program, os.X_OK)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["exec", "--name", "q", "--interval", "1s"], "give the command to run after --"),
        (["exec", "--name", "q", "--interval", "1s", "--"], "give a command after --"),
        (
            ["exec", "--name", "q", "--interval", "1s", "--timeout", "x", "--", "true"],
            "is not a duration: give timeout as",
        ),
        (
            ["exec", "--name", "q", "--store", "memory://", "--interval", "1s", "--", "true"],
            "store in memory",
        ),
    ],
)
def test_wrong_use(intervalq: CommandLine, args: list[str], message: str) -> None:
    assert message in intervalq(*args, code=2).stderr


LIMITED = ("exec", "--name", "llm", "--limit", "9/h", "--limit", "1_000 tokens/h")


def test_a_command_takes_what_it_costs(intervalq: CommandLine) -> None:
    intervalq(*LIMITED, "--cost", "tokens=700", "--cost", "2", "--", "true")
    taken = [each["taken"] for each in json.loads(intervalq("status", "llm", "--json").stdout)["limits"]]
    assert taken == [2, 700]
    intervalq(*LIMITED, "--cost", "tokens=301", "--timeout", "10ms", "--", "true", code=75)
    intervalq(*LIMITED, "--cost", "tokens=300", "--timeout", "5s", "--", "true")


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        (["x"], "must be a whole number, or UNIT=N"),
        (["=5"], "must be a whole number, or UNIT=N"),
        (["tokens="], "must be a whole number, or UNIT=N"),
        (["0"], "cost=0 must be"),
        (["1", "2"], "the slots of a job twice"),
        (["tokens=1", "tokens=2"], "the tokens of a job twice"),
        (["bytes=1"], "no limit of 'bytes'"),
        (["tokens=1_001"], "more than the limit of 1000 tokens/h"),
    ],
)
def test_costs_that_none_can_have(costs: list[str], says: str, intervalq: CommandLine) -> None:
    words = [word for cost in costs for word in ("--cost", cost)]
    assert says in intervalq(*LIMITED, *words, "--", "true", code=2).stderr
