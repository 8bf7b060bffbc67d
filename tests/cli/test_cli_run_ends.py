"""Runs that end early, and continue: Ctrl-C, killed parents and shards, --resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from cli.command_line import CommandLine, ends
from servers import until


def succeeded(results: list[dict[str, Any]]) -> list[str]:
    return sorted(result["job"] for result in results if result["exit_code"] == 0)


def numbers(most: int) -> list[str]:
    return sorted(str(number) for number in range(most))


def finish(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str]:
    stdout, stderr = process.communicate(timeout=120)
    assert "Traceback" not in stderr, stderr
    return [json.loads(line) for line in stdout.splitlines()], stderr


def status(intervalq: CommandLine) -> Any:
    return json.loads(intervalq("status", "q", "--json").stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_jobs_that_run_end_and_no_others_begin(intervalq: CommandLine, number: signal.Signals) -> None:
    started = intervalq.fifo("started")
    go = intervalq.folder / "go"
    os.mkfifo(go)
    intervalq.write("jobs.txt", *numbers(20))
    process = intervalq.start(
        "run", "jobs.txt", "--name", "q", "--interval", "1h", "--", "sh", "-c", "echo > started; cat go",
        start_new_session=True,
    )  # fmt: skip
    started()
    os.killpg(process.pid, number)  # as a terminal does: to the whole foreground process group
    assert process.stderr is not None
    output = process.stderr.readline()
    assert (
        output == f"intervalq: no more jobs start; waiting for 1 to end; a second {number.name} kills them\n"
    )
    go.write_text("went\n")
    results, output = finish(process)
    assert process.returncode == 128 + number
    assert [(result["exit_code"], result["stdout"]) for result in results] == [(0, "went\n")]
    assert "intervalq: not run: 19 jobs; to continue, run the same command with --resume FILE" in output


@pytest.mark.parametrize(("shards", "changed"), [(1, False), (4, False), (4, True)])
def test_unused_tickets_are_given_back(intervalq: CommandLine, shards: int, changed: bool) -> None:
    """The slots of all shards go back together, as each alone could free only the last; a job still runs."""
    started = intervalq.fifo("started")
    os.mkfifo(intervalq.folder / "go")
    intervalq.write("jobs.txt", *numbers(20))
    process = intervalq.start(
        "run", "jobs.txt", "--name", "q", "--interval", "1h", "--shards", f"{shards}", "--lookahead", "10",
        "--", "sh", "-c", "echo > started; cat go",
    )  # fmt: skip
    started()
    until(lambda: status(intervalq)["outstanding"] >= shards)
    if changed:
        intervalq("configure", "q", "--interval", "59m")
        until(lambda: status(intervalq)["outstanding"] >= shards)
    process.send_signal(signal.SIGTERM)
    until(lambda: status(intervalq)["next_slot"] - status(intervalq)["now"] <= 3600)
    (intervalq.folder / "go").write_text("on\n")
    finish(process)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_second_interrupt_kills_and_leaves_nothing(intervalq: CommandLine, jobs: int) -> None:
    """The run ended by the interrupt, even if every job had begun."""
    who = intervalq.fifo("who")
    intervalq.write("jobs.txt", *numbers(jobs))
    script = "trap '' TERM; sleep 1000 & echo $PPID $$ $! > who; wait; wait"
    process = intervalq.start("run", "jobs.txt", "--name", "q", "--interval", "1h", "--", "sh", "-c", script)
    pids = [int(pid) for pid in who().split()]
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    results, _ = finish(process)
    assert process.returncode == 130
    assert [result["exit_code"] for result in results] == [-signal.SIGKILL]
    assert all(ends(pid) for pid in pids)


def test_an_interrupt_keeps_what_failed_until_then(intervalq: CommandLine) -> None:
    started = intervalq.fifo("started")
    process = intervalq.start(
        "run", "--name", "q", "--interval", "10ms", "--retries", "100", "--", "sh", "-c", 'eval "$0"',
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("echo > started; exit 7\n")
    process.stdin.flush()
    started()
    process.send_signal(signal.SIGINT)
    results, _ = finish(process)
    assert [result["exit_code"] for result in results] == [7]


def test_a_run_whose_parent_was_killed_goes_on_from_its_results(intervalq: CommandLine) -> None:
    who = intervalq.fifo("who")
    intervalq.write("jobs.txt", *numbers(60))
    script = "[ $0 != 20 ] || [ -e go ] || { echo $PPID $$ > who; sleep 1000; }"
    run = ["run", "jobs.txt", "--name", "q", "--interval", "10ms"]
    process = intervalq.start(*run, "--output", "r.jsonl", "--", "sh", "-c", script)
    shard, job = (int(pid) for pid in who().split())
    until(lambda: (intervalq.folder / "r.jsonl").read_text() != "")  # it may learn of jobs after they end
    process.kill()
    assert ends(shard)
    assert ends(job)
    process.wait()
    before = intervalq.read("r.jsonl")
    assert 0 < len(before) < 60
    with (intervalq.folder / "r.jsonl").open("a") as file:
        file.write('{"job": "5", "sha')  # as if it had been killed while it wrote
    (intervalq.folder / "go").touch()
    ran = intervalq(*run, "--resume", "r.jsonl", "--json", "--", "sh", "-c", script)
    assert "its last line was cut off" in ran.stderr
    assert ran.stdout == ""
    after = intervalq.read("r.jsonl")
    assert after[: len(before)] == before
    assert succeeded(after) == numbers(60)
    assert ran.report["skipped"] == len(before)
    assert ran.report["jobs"] == 60 - len(before)


def test_resume_runs_what_failed_or_is_missing_and_counts_attempts(intervalq: CommandLine) -> None:
    run = ["run", "--name", "q", "--interval", "10ms"]
    command = ["--", "sh", "-c", "[ $0 != b ] || [ -e mended ]"]
    intervalq(*run, "--output", "r.jsonl", *command, stdin="a\nb\na\n", code=1)
    (intervalq.folder / "mended").touch()
    ran = intervalq(*run, "--resume", "r.jsonl", "--output", "more.jsonl", *command, stdin="a\nb\na\nc\na\n")
    got = [(result["job"], result["attempt"]) for result in intervalq.read("more.jsonl")]
    assert sorted(got) == [("a", 1), ("b", 2), ("c", 1)]
    assert "3, 2 already done" in ran.stderr
    assert len(intervalq.read("r.jsonl")) == 3, "the file that it went on from is as it was"


def test_resume_from_something_else_is_an_error(intervalq: CommandLine) -> None:
    intervalq.write("notes.txt", "buy milk", "call Ann")
    ran = intervalq("run", "--name", "q", "--interval", "1s", "--resume", "notes.txt", stdin="true\n", code=2)
    assert ran.stderr == (
        "intervalq: notes.txt, line 1: is not a JSON object; --resume takes what --output wrote\n"
    )


def test_when_a_shard_dies_the_others_go_on(intervalq: CommandLine) -> None:
    who = intervalq.fifo("who")
    go = intervalq.folder / "go"
    os.mkfifo(go)
    intervalq.write("jobs.txt", *numbers(40))
    script = "[ $0 != 10 ] || { cat go; echo $PPID $$ > who; exec sleep 1000; }"
    command = ("run", "jobs.txt", "--name", "q", "--interval", "10ms", "--output", "results.jsonl")
    process = intervalq.start(*command, "--", "sh", "-c", script)
    output = intervalq.folder / "results.jsonl"
    # Only after many others have ended is it certain that the parent knows the process of this one.
    intervalq.until(lambda: output.exists() and output.read_text().count("\n") >= 30)
    go.write_text("")
    shard, job = (int(pid) for pid in who().split())
    os.kill(shard, signal.SIGKILL)
    _, printed = finish(process)
    results = intervalq.read("results.jsonl")
    assert process.returncode == 1
    assert ends(job), "nobody would hear of its end"
    assert sorted(result["job"] for result in results) == numbers(40)
    lost = next(result for result in results if result["job"] == "10")
    assert lost["exit_code"] is None
    assert lost["stderr"] == (
        f"intervalq: shard {lost['shard']} died of signal 9 (Killed) while this job ran; "
        "how the job ended is not known\n"
    )
    assert lost["started"] <= lost["ended"]
    assert f"intervalq: shard {lost['shard']} died of signal 9 (Killed)\n" in printed


def test_a_shard_that_is_told_to_end_lets_its_jobs_end(intervalq: CommandLine) -> None:
    who = intervalq.fifo("who")
    go = intervalq.folder / "go"
    os.mkfifo(go)
    intervalq.write("jobs.txt", *numbers(40))
    script = "[ $0 != 10 ] || { echo $PPID > who; cat go; }"
    process = intervalq.start(
        "run", "jobs.txt", "--name", "q", "--interval", "10ms", "--", "sh", "-c", script
    )
    os.kill(int(who()), signal.SIGTERM)
    assert process.stderr is not None
    # On a busy machine, a warning about the store's clock may come first.
    assert any("it received SIGTERM" in reported for reported in iter(process.stderr.readline, ""))
    go.write_text("went\n")
    results, _ = finish(process)
    assert process.returncode == 0
    assert succeeded(results) == numbers(40)


def test_without_shards_a_run_is_over(intervalq: CommandLine) -> None:
    intervalq.write("jobs.txt", *numbers(40))
    process = intervalq.start(
        "run", "jobs.txt", "--name", "q", "--interval", "10ms", "--shards", "1", "--", "sh", "-c",
        "[ $0 != 10 ] || kill -9 $PPID",
    )  # fmt: skip
    results, output = finish(process)
    assert process.returncode == 1
    assert len(results) < 40
    assert f"intervalq: not run: {40 - len(results)} jobs; to continue" in output
