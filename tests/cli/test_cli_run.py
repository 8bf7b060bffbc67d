"""`intervalq run` with real processes: the commands that it runs, its results, and how runs continue."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cli.command_line import FIELDS, CommandLine

FAST = ("--name", "q", "--interval", "10ms")


def jobs(results: list[dict[str, Any]]) -> list[Any]:
    return sorted(result["job"] for result in results)


def test_lines_go_into_a_command(intervalq: CommandLine) -> None:
    ran = intervalq("run", *FAST, "--json", "--", "echo", "got", "{}", stdin="a b\n\n it's \n")
    assert {result["job"]: result["stdout"] for result in ran.results} == {
        "a b": "got a b\n",
        " it's ": "got  it's \n",
    }


def test_lines_are_commands(intervalq: CommandLine) -> None:
    commands = ["echo 'two words' x", "sh -c 'echo out; echo err >&2; exit 3'", "pwd", "cat"]
    intervalq.write("jobs.txt", *commands)
    ran = intervalq("run", "jobs.txt", *FAST, code=1)
    assert {r["job"]: (r["exit_code"], r["stdout"], r["stderr"]) for r in ran.results} == {
        commands[0]: (0, "two words x\n", ""),
        commands[1]: (3, "out\n", "err\n"),
        commands[2]: (0, f"{intervalq.folder}\n", ""),
        commands[3]: (0, "", ""),  # it has no input of its own
    }


def test_json_lines_fill_fields(intervalq: CommandLine) -> None:
    users = [{"id": 1, "name": "Ann Lee"}, {"id": 2, "name": "Bo"}]
    intervalq.write("users.jsonl", *map(json.dumps, users))
    ran = intervalq("run", "users.jsonl", *FAST, "--", "echo", "{id}:{name}")
    assert min(ran.results, key=lambda r: int(r["job"]["id"]))["job"] == users[0]
    assert sorted(result["stdout"] for result in ran.results) == ["1:Ann Lee\n", "2:Bo\n"]


def test_jobs_cost_what_their_lines_say(intervalq: CommandLine) -> None:
    lines = "".join(f'{{"tokens": {tokens}}}\n' for tokens in (10, 20, 30))
    limits = ("--limit", "99/h", "--limit", "1000 tokens/h")
    costs = ("--cost", "tokens={tokens}", "--cost", "2")
    intervalq(
        "run", "--name", "q", "--interval", "20ms", *limits, *costs, "--", "echo", "{tokens}", stdin=lines
    )
    found = json.loads(intervalq("status", "q", "--json").stdout)
    assert [each["taken"] for each in found["limits"]] == [6, 60]


def test_a_queue_that_has_only_limits_has_no_interval(intervalq: CommandLine) -> None:
    """Its record has an interval of a microsecond, which no user may see."""
    intervalq("exec", "--name", "q", "--limit", "99/h", "--", "true")
    ran = intervalq("run", "--name", "q", "--shards", "1", "--json", "--", "true", stdin="1\n2\n")
    assert {name for name, value in ran.report.items() if value is None} == {
        "interval", "rate_possible", "rate_share", "gaps_short",
    }  # fmt: skip
    assert ran.report["starts"] == 2
    assert "(no interval, 0 outstanding)" in intervalq("pause", "q").stdout


def test_results_have_these_fields_and_times_on_one_clock(intervalq: CommandLine) -> None:
    process = intervalq.start(
        "run", "-", "--name", "q", "--interval", "20ms", "--shards", "3", "--output", "r.jsonl", "--json",
        "--", "echo", "{}",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    lines: list[str] = []
    output = intervalq.folder / "r.jsonl"

    def all_have_ended() -> bool:
        return output.exists() and output.read_text().count("\n") == len(lines)

    while len({result["shard"] for result in intervalq.read("r.jsonl")} if output.exists() else ()) < 3:
        more = [str(len(lines) + number) for number in range(20)]  # some shards begin later than others
        process.stdin.write("".join(f"{line}\n" for line in more))
        process.stdin.flush()
        lines += more
        intervalq.until(all_have_ended)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (0, "")
    results = intervalq.read("r.jsonl")
    assert jobs(results) == sorted(lines)
    for result in results:
        assert list(result) == FIELDS
        assert result["shard"] in {1, 2, 3}
        assert result["attempt"] == 1
        assert result["exit_code"] == 0
        assert result["due"] <= result["started"] <= result["ended"]
    assert len({result["ticket"] for result in results}) == len(results)
    by_ticket = sorted(results, key=lambda result: result["ticket"])
    for one, after in pairwise(by_ticket):
        # If a job was late, its slot is the time of its grant: less than an interval after the one before.
        assert after["due"] > one["due"]
    report = json.loads(stderr.splitlines()[-1])
    assert report["jobs"] == report["starts"] == len(lines)
    by_start = sorted(results, key=lambda result: result["started"])
    assert report["in_order"] == (by_start == by_ticket)
    assert report["rate_possible"] == 50
    assert report["failed"] == report["not_run"] == 0
    assert report["shards"] == 3
    assert report["calls_per_job"] > 0
    assert report["slots_unused"] >= 0


def test_the_report_is_for_people_unless_asked_for_otherwise(intervalq: CommandLine) -> None:
    ran = intervalq("run", *FAST, "--", "echo", stdin="1\n2\n3\n")
    output = dict(line.strip().split("  ", 1) for line in ran.stderr.splitlines())
    assert output["jobs"] == "3"
    assert set(output) == {"jobs", "rate", "gaps", "too short", "order", "slots unused"}


def test_input_is_read_as_it_comes(intervalq: CommandLine) -> None:
    process = intervalq.start("run", *FAST, "--", "echo", stdin=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in range(3):  # the next line is written when the previous one has its result
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["job"] == str(number)
    process.stdin.close()
    assert process.wait() == 0


def test_programs_that_cannot_be_started_are_results(intervalq: CommandLine) -> None:
    (intervalq.folder / "data").write_text("no program")
    ran = intervalq("run", *FAST, stdin="nosuchprogram -x\n./data\n''\n", code=1)
    got = {result["job"]: result for result in ran.results}
    assert got["nosuchprogram -x"]["exit_code"] == 127
    assert got["nosuchprogram -x"]["stderr"] == "intervalq: nosuchprogram: not found\n"
    assert got["./data"]["exit_code"] == 126
    assert "Permission denied" in got["./data"]["stderr"]
    assert got["''"]["exit_code"] in {126, 127}


def test_output_that_is_no_text_or_too_long_is_kept_in_part(intervalq: CommandLine) -> None:
    long = f"{1 << 20} of {3 << 20} bytes"
    ran = intervalq(
        "run", *FAST,
        stdin=f"printf '\\377ok'\nsh -c 'head -c {3 << 20} /dev/zero | tr \"\\\\0\" x >&2'\n",
    )  # fmt: skip
    short, cut = sorted(ran.results, key=lambda result: len(result["stderr"]))
    assert short["stdout"] == "\ufffdok"
    assert cut["stderr"].startswith("xxx")
    assert long in cut["stderr"]
    assert len(cut["stderr"]) < (1 << 20) + 200


def test_a_program_that_leaves_another_behind_has_ended(intervalq: CommandLine) -> None:
    output = intervalq.fifo("pid")
    process = intervalq.start("run", *FAST, "--", "sh", "-c", 'eval "$0"', stdin=-1)
    assert process.stdin is not None
    process.stdin.write("cat /dev/zero > /dev/null & echo $! > pid; echo done\n")
    process.stdin.close()
    pid = int(output())
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["stdout"] == "done\n"
    assert process.wait() == 0
    os.kill(pid, signal.SIGKILL)


def test_failed_jobs_are_tried_again_in_slots_of_their_own(intervalq: CommandLine) -> None:
    script = "test -e $0 || { touch $0; exit 1; }"
    ran = intervalq(
        "run", *FAST, "--retries", "1", "--json", "--", "sh", "-c", script, stdin="a\nb\n/no/such/folder\n",
        code=1,
    )  # fmt: skip
    got = {result["job"]: (result["exit_code"], result["attempt"]) for result in ran.results}
    assert got == {"a": (0, 2), "b": (0, 2), "/no/such/folder": (1, 2)}
    assert ran.report["starts"] == 6
    assert ran.report["jobs"] == 3
    assert ran.report["failed"] == 1


def test_at_most_so_many_run_at_a_time(intervalq: CommandLine) -> None:
    script = "mkdir busy && rmdir busy"
    ran = intervalq("run", *FAST, "--max-running", "1", "--", "sh", "-c", script, stdin="1\n2\n3\n4\n5\n6\n")
    assert [result["exit_code"] for result in ran.results] == [0] * 6


@pytest.mark.parametrize("lookahead", ["1", "40", "all"])
def test_any_lookahead_runs_them_all(intervalq: CommandLine, lookahead: str) -> None:
    lines = [str(number) for number in range(100, 150)]
    ran = intervalq(
        "run", *FAST, "--lookahead", lookahead, "--burst", "5", "--tolerance", "9ms", "--", "echo",
        stdin="\n".join(lines),
    )  # fmt: skip
    assert jobs(ran.results) == lines


def test_a_queue_that_exists_lends_its_interval(intervalq: CommandLine) -> None:
    intervalq("run", *FAST, "--", "echo", stdin="1\n")
    ran = intervalq("run", "--name", "q", "--json", "--", "echo", stdin="2\n")
    assert ran.report["interval"] == 0.01
    refused = intervalq("run", "--name", "q", "--rate", "1/m", "--", "echo", stdin="2\n", code=1)
    assert refused.stderr.startswith("intervalq: queue 'q' runs with interval=10ms")
    refused = intervalq("run", "--name", "new", "--", "echo", stdin="2\n", code=1)
    assert "no queue 'new'" in refused.stderr


@pytest.mark.parametrize(
    ("lines", "command", "message"),
    [
        (["true", "echo 'a"], [], "line 2: has a quote that is never closed"),
        (['{"a": 1}', '{"b": 1}'], ["touch", "{a}"], "line 2: has no field 'a'; it has 'b'"),
        (["true", "", "echo \0"], [], "line 3: has a NUL character"),
    ],
)
def test_a_bad_line_of_a_file_is_found_before_anything_starts(
    intervalq: CommandLine, lines: list[str], command: list[str], message: str
) -> None:
    intervalq.write("jobs.txt", *lines)
    args = ["run", "jobs.txt", *FAST] + (["--", *command] if command else [])
    ran = intervalq(*args, code=2)
    assert ran.stderr.startswith(f"intervalq: jobs.txt, {message}")
    assert ran.stdout == ""
    assert not (intervalq.folder / "state.json").exists(), "no queue was made"


def test_a_bad_line_of_a_stream_ends_it(intervalq: CommandLine) -> None:
    ran = intervalq("run", *FAST, stdin="echo 1\necho 'x\necho 2\n", code=2)
    assert jobs(ran.results) == ["echo 1"]
    *_, bad, rest = ran.stderr.splitlines()
    assert bad == "intervalq: standard input, line 2: has a quote that is never closed"
    assert rest.startswith("intervalq: not run: the rest of standard input; to continue, ")


def test_a_redirected_file_is_checked_as_well(intervalq: CommandLine) -> None:
    path = intervalq.folder / intervalq.write("jobs.txt", "echo 1", "echo 'x")
    with path.open() as file:
        process = intervalq.start("run", *FAST, stdin=file)
        assert process.wait() == 2
    assert process.stdout is not None
    assert process.stdout.read() == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--name", "a b", "--interval", "1s"], "is not a queue name"),
        (["--name", "q", "--interval", "soon"], "'soon' is not a duration: give interval as"),
        (["--name", "q", "--interval", "1s", "--rate", "1/s"], "not both"),
        (["--name", "q", "--rate", "soon"], "is not a rate"),
        (["--name", "q", "--interval", "1s", "--lookahead", "-1"], "--lookahead '-1' must be"),
        (["--name", "q", "--interval", "1s", "--lookahead", "½"], "--lookahead '\\xbd' must be"),
        (["--name", "q", "--interval", "1s", "--tolerance", "2s"], "too much tolerance"),
        (["--name", "q", "--interval", "1s", "--store", "nosuch://x"], "no store is registered"),
        (["--name", "q", "--interval", "1s", "--store", "memory://"], "a store in memory can't pace"),
        (["--name", "q", "--interval", "1s", "--shards", "0"], "--shards"),
        (["--name", "q", "--interval", "1s", "--"], "command after --"),
        (["--interval", "1s"], "--name"),
        (["echo", "{}", "--name", "q", "--interval", "1s"], "a command needs -- in front of it"),
        (["--name", "q", "--interval", "1s", "--resume", "nosuchfile"], "nosuchfile"),
    ],
)
def test_wrong_use_is_said_in_a_line(intervalq: CommandLine, args: list[str], message: str) -> None:
    ran = intervalq("run", *args, stdin="true\n", code=2)
    assert message in ran.stderr.splitlines()[-1]


def test_no_secret_of_a_url_is_shown_and_none_is_an_argument(intervalq: CommandLine) -> None:
    url = "redis://user:s3cr3t@127.0.0.1:1/0"
    intervalq.environment["INTERVALQ_STORE"] = url
    for args in (["run", *FAST], ["status"], ["doctor"], ["exec", *FAST, "--", "true"], ["pause", "q"]):
        ran = intervalq(*args, code=1)
        assert "127.0.0.1" in ran.stdout + ran.stderr
        assert "s3cr3t" not in ran.stdout + ran.stderr


def test_processes_of_shards_get_no_secret_as_an_argument(intervalq: CommandLine) -> None:
    url = (intervalq.folder / "s3cr3t.json").as_uri()
    output = intervalq.fifo("arguments")
    shown = "cat /proc/$PPID/cmdline > arguments"
    process = intervalq.start("run", *FAST, "--store", url, "--", "sh", "-c", shown, stdin=-1)
    assert process.stdin is not None
    process.stdin.write("1\n")
    process.stdin.close()
    assert "s3cr3t" not in output()
    assert process.wait() == 0


def test_a_reader_that_leaves_ends_the_run_quietly(intervalq: CommandLine) -> None:
    process = intervalq.start("run", *FAST, "--", "echo", stdin=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write("1\n")
    process.stdin.flush()
    process.stdout.readline()
    process.stdout.close()
    process.stdin.write("2\n")
    process.stdin.close()
    assert process.wait() == 1
    output = process.stderr.read()
    assert "Traceback" not in output
    assert "Broken" not in output


def test_a_full_disk_is_an_error(intervalq: CommandLine) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        process = intervalq.start("run", *FAST, "--", "echo", stdin=-1, stdout=full)
        _, output = process.communicate("1\n")
    assert process.returncode == 1
    assert "intervalq: standard output: No space left on device" in output


def test_a_file_that_cannot_be_written_is_an_error(intervalq: CommandLine) -> None:
    ran = intervalq("run", *FAST, "--output", "no/such/r.jsonl", "--", "echo", stdin="1\n", code=1)
    assert ran.stderr == "intervalq: no/such/r.jsonl: No such file or directory\n"


def test_results_may_go_into_a_pipe(intervalq: CommandLine) -> None:
    results = intervalq.fifo("results")
    process = intervalq.start("run", *FAST, "--output", "results", "--", "echo", stdin=-1)
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.close()
    assert [json.loads(line)["exit_code"] for line in results().splitlines()] == [0, 0]
    assert process.wait() == 0


def test_a_store_that_is_away_is_an_error(intervalq: CommandLine) -> None:
    ran = intervalq("run", *FAST, "--store", "/dev/null/x.json", "--", "echo", stdin="1\n", code=1)
    assert ran.stderr.startswith("intervalq: file:///dev/null/x.json: ")
    assert len(ran.stderr.splitlines()) == 1


def test_a_held_queue_is_said_to_be(intervalq: CommandLine) -> None:
    intervalq("run", *FAST, "--", "echo", stdin="1\n")
    intervalq("pause", "q")
    process = intervalq.start("run", *FAST, "--", "echo", stdin=-1)
    assert process.stdin is not None
    assert process.stderr is not None
    assert process.stdout is not None
    process.stdin.write("2\n")
    process.stdin.close()
    assert process.stderr.readline() == "intervalq: queue q is held (paused): jobs start when that ends\n"
    intervalq("resume", "q")
    assert json.loads(process.stdout.readline())["job"] == "2"
    assert process.wait() == 0


def test_redis_paces_as_well(intervalq: CommandLine, redis_url: str) -> None:
    name = intervalq.folder.name
    lines = [str(number) for number in range(20)]
    ran = intervalq(
        "run", "--name", name, "--interval", "10ms", "--store", redis_url, "--json", "--", "echo",
        stdin="\n".join(lines),
    )  # fmt: skip
    assert jobs(ran.results) == sorted(lines)
    assert ran.report["starts"] == 20
    intervalq("drop", name, "--yes", "--store", redis_url)


def test_plain_prints_what_jobs_wrote(intervalq: CommandLine) -> None:
    script = 'printf "out %s\\n" "$1"; printf "err %s\\n" "$1" >&2'
    command = ("run", "--name", "q", "--rate", "50/s", "--plain", "--no-progress")
    done = intervalq(*command, "--", "sh", "-c", script, "sh", "{}", stdin="1\n2\n")
    assert sorted(done.stdout.splitlines()) == ["out 1", "out 2"]
    assert {"err 1", "err 2"} <= {*done.stderr.splitlines()}
    both = intervalq(*command, "--output", "results.jsonl", "--", "sh", "-c", script, "sh", "{}", stdin="3\n")
    assert both.stdout == "out 3\n"
    [result] = (intervalq.folder / "results.jsonl").read_text().splitlines()
    assert (json.loads(result)["stdout"], json.loads(result)["stderr"]) == ("out 3\n", "err 3\n")
