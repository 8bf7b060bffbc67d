"""The commands that insert and show durable tasks, as people and as programs use them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest

from cli import tasks_shown
from cli.command_line import CommandLine, help_of
from cli.tasks_shown import claimed, die, lines, sizes, url, values
from intervalq._watch.task import many
from intervalq.cli._tasks.command import tasks as group
from intervalq.tasks import Tasks

tasks = tasks_shown.tasks


# --- insert -------------------------------------------------------------------------------------------


def test_insert_and_look(tasks: Callable[..., Any]) -> None:
    assert re.fullmatch(r"no queues in sqlite:///\S+\.db\n", tasks("queues").stdout)
    assert tasks("list").stdout.startswith("no tasks in ")
    assert tasks("list", "mails").stdout.startswith("no tasks of queue 'mails' in ")
    id_ = tasks("insert", "mails", '{"to": "ann"}').stdout.strip()
    assert tasks("insert", "mails", "--text", "[hi]", "--id", "1001", "--delay", "1h").stdout == "1001\n"
    first, second = lines(tasks("list", "mails", "--json"))
    assert (first["id"], first["value"], first["queue"], first["version"]) == (id_, {"to": "ann"}, "mails", 0)
    assert (second["id"], second["value"]) == ("1001", "[hi]")
    assert second["at"] - second["created"] == pytest.approx(3600)
    assert lines(tasks("show", "1001", "--json")) == [second]
    assert len(lines(tasks("list", "--json", "--limit", "1"))) == 1
    shown = tasks("list").stdout
    assert id_ in shown
    assert '{"to": "ann"}' in shown
    assert "59m" in shown or "1h00m" in shown
    output = tasks("show", id_).stdout
    assert ("not before" in output) == ("59m" in output or "1h00m" in output)
    assert f"task  {id_}\n" in output
    assert '"to": "ann"' in output
    (queue,) = lines(tasks("queues", "--json"))
    assert queue == {
        "name": "mails", "size": 2, "claimed": 0, "ready": 1, "future": 1, "inbox": 0, "most_claims": 0,
        "exact": True,
    }  # fmt: skip
    assert "mails" in tasks("queues").stdout
    assert tasks("queues", "--prefix", "x").stdout.startswith("no queues that begin with 'x' in ")


def test_options_of_an_insert(tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", "1", "--at", "2030-01-31T08:00:00+01:00", "--key", "k", "--inbox", "1")
    tasks("insert", "q", "2", "--at", "0", "--key", "k", "--inbox", "1")
    assert "inbox of key 'k'" in tasks("insert", "q", "3", "--key", "k", "--inbox", "1", code=1).stderr
    first, second = sorted(lines(tasks("list", "q", "--json")), key=lambda task: task["created"])
    assert (first["at"], second["at"]) == (1896073200, 0)
    assert (first["key"], first["waiting"], second["waiting"]) == ("k", False, True)
    tasks("insert", "q", "4", "--key", "k", "--replace")
    assert values(tasks, "q") == [4]
    once = tasks("insert", "q", "5", "--dedupe-key", "d")
    twice = tasks("insert", "q", "6", "--dedupe-key", "d", "--json")
    assert lines(twice) == [{"id": once.stdout.strip(), "inserted": False}]
    assert "nothing was inserted" in twice.stderr
    tasks("insert", "q", "--id", "x", "7")
    assert "'x' exist already" in tasks("insert", "q", "8", "--id", "x", code=1).stderr


def test_values_from_standard_input(tasks: Callable[..., Any]) -> None:
    reported = tasks("insert", "q", stdin="".join(f"{number}\n" for number in range(2500)))
    assert reported.stdout == "2500 tasks inserted\n"
    assert values(tasks, "q") == list(range(2500))
    assert lines(tasks("insert", "t", "-", "--text", "--json", stdin="a b\n\nc")) == [{"inserted": 3}]
    assert values(tasks, "t") == ["a b", "", "c"]
    assert tasks("insert", "r", stdin="\n1\n\n").stdout == "1 task inserted\n"


def test_a_bad_line_ends_it(tasks: Callable[..., Any]) -> None:
    text = "".join(f"{number}\n" for number in range(1500))
    ran = tasks("insert", "q", stdin=f"{text}no json\n7\n", code=2)
    assert "standard input, line 1501: 'no json' is not JSON" in ran.stderr
    assert ran.stdout == "1500 tasks inserted\n"
    assert values(tasks, "q") == list(range(1500))


def test_lines_with_a_follow_up_are_one_batch(tasks: Callable[..., Any]) -> None:
    text = "".join(f"{number}\n" for number in range(2500))
    options = ("--key", "k", "--concurrency-per-key", "2", "--follow-up", "then", '"all"')
    ran = tasks("insert", "q", *options, "--json", stdin=text)
    (answer,) = lines(ran)
    (then,) = lines(tasks("list", "then", "--json"))
    assert answer == {"inserted": 2500, "follow_up": then["id"]}
    assert (then["value"], then["awaits"], then["key"]) == ("all", 2500, None)
    assert {task["follow_up"] for task in lines(tasks("list", "q", "--json"))} == {then["id"]}
    ran = tasks("insert", "t", "--text", "--follow-up", "end", "x", stdin="a b\n\n")
    (end,) = lines(tasks("list", "end", "--json"))
    assert ran.stdout == f"2 tasks inserted, and their follow-up {end['id']}\n"
    assert values(tasks, "t") == ["a b", ""]
    part = lines(tasks("list", "t", "--json"))[0]
    assert f"follow-up  {end['id']}\n" in tasks("show", part["id"]).stdout


@pytest.mark.parametrize(
    ("args", "stdin", "code", "message"),
    [
        ((), "1\nno json\n2\n", 2, "standard input, line 2: 'no json' is not JSON"),
        ((), "\n", 2, "in front of the pipe has failed; nothing was inserted"),
        (("--key", "k", "--inbox", "1"), "1\n2\n3\n", 1, "inbox of key 'k'"),
    ],
)
def test_a_batch_of_lines_is_inserted_all_or_none(
    tasks: Callable[..., Any], args: tuple[str, ...], stdin: str, code: int, message: str
) -> None:
    ran = tasks("insert", "q", *args, "--follow-up", "then", "0", stdin=stdin, code=code)
    assert message in ran.stderr
    assert sizes(tasks) == {}


def test_ctrl_c_inserts_nothing_of_a_batch(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    process = intervalq.start("tasks", "insert", "q", "--follow-up", "q", "0", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write("1\n" * 100_000)  # more than a pipe holds: it reads
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    assert "stopping" in process.stderr.readline()
    process.stdin.close()
    assert process.wait() == 130
    assert process.stdout.read() == "0 tasks inserted\n"
    assert "interrupted: nothing was inserted" in process.stderr.read()
    assert sizes(tasks) == {}


def test_a_refused_batch_is_said(tasks: Callable[..., Any]) -> None:
    ran = tasks("insert", "q", "--key", "k", "--inbox", "3", stdin="1\n2\n3\n4\n5\n6\n", code=1)
    found = re.search("lines ([1-5]) to [4-6] were not inserted, none after that was", ran.stderr)
    assert found, ran.stderr
    assert ran.stdout == f"{many(int(found[1]) - 1)} inserted\n"
    assert values(tasks, "q") == list(range(1, int(found[1])))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["q", "hello"], "give --text"),
        (["q", "NaN"], "must be JSON"),
        (["q", "[" * 100_000], "is not JSON"),
        (["q", "\udcff", "--text"], "not UTF-8"),
        (["a  b", "1"], "not a queue name"),
        (["q", "1", "--at", "2030-01-01T00:00"], "no time zone"),
        (["q", "1", "--at", "soon"], "is not a time"),
        (["q", "1", "--delay", "1h", "--at", "1"], "not both"),
        (["q", "1", "--delay", "soon"], "is not a duration"),
        (["q", "1", "--inbox", "3"], "--key"),
        (["q", "--id", "x"], "give a VALUE"),
        (["q", "1", "--follow-up", "r", "2"], "give no VALUE"),
        (["q", "--follow-up", "r", "no json"], "is not JSON"),
        (["q", "1", "--key", ""], "1 to 128"),
        (["q", "1", "--store", "memory://"], "gone when this command ends"),
        (["q", "1", "--store", "nowhere://"], "entry-point group intervalq.task_stores"),
        (["q", "1", "--store", "file:///state.json"], "for durable tasks use one of the others"),
        (["q" * 121, "1"], "use 1 to 120 of"),
    ],
)
def test_wrong_inserts(tasks: Callable[..., Any], args: list[str], message: str) -> None:
    ran = tasks("insert", *args, code=2)
    assert message.replace("--key", "key") in ran.stderr.replace("--key", "key")
    assert len(ran.stderr.splitlines()) == 1
    assert sizes(tasks) == {}


def test_ctrl_c_ends_an_insert(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    process = intervalq.start("tasks", "insert", "q", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.flush()
    assert intervalq.until(lambda: sizes(tasks) == {"q": 2})
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stdout == "2 tasks inserted\n"
    assert "ends with line 2\n" in stderr


# --- looks --------------------------------------------------------------------------------------------


async def test_claims_and_sessions(intervalq: CommandLine, tasks: Callable[..., Any]) -> None:
    assert tasks("sessions").stdout.startswith("no sessions in ")
    id_ = tasks("insert", "q", "1").stdout.strip()
    async with claimed(intervalq, "q") as claim:
        (session,) = lines(tasks("sessions", "--json"))
        assert (session["id"], session["pid"]) == (claim.claimant, os.getpid())
        assert (session["consumer"], session["expiry"]) == (None, 5.0)
        assert 0 <= time.time() - session["started"] < 1000
        assert session["started"] <= session["beaten"]
        assert session["id"] in tasks("sessions").stdout
        assert "claimed" in tasks("list", "q").stdout
        output = tasks("show", id_).stdout
        assert f"session {claim.claimant} (" in output
        assert f":{os.getpid()})" in output
    assert lines(tasks("show", id_, "--json"))[0]["claims"] == 1


def test_a_task_that_is_not_there(tasks: Callable[..., Any]) -> None:
    assert "there is no task 'x'" in tasks("show", "x", code=1).stderr


def test_values_cannot_command_a_terminal(tasks: Callable[..., Any]) -> None:
    tasks("insert", "q", "--text", "\x1b[2J\u202e", "--key", "\u202ek", "--id", "x")
    for look in (["list"], ["list", "--json"], ["show", "x"], ["show", "x", "--json"]):
        output = tasks(*look).stdout
        assert "\x1b" not in output
        assert "\u202e" not in output


# --- help -----------------------------------------------------------------------------------------------


def examples() -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        assert command.epilog is not None
        yield from (line.strip() for line in command.epilog.splitlines() if "intervalq " in line)


@pytest.mark.parametrize("example", sorted(set(examples())))
async def test_examples_work(intervalq: CommandLine, tasks: Callable[..., Any], example: str) -> None:
    if "insert" not in example:
        async with Tasks(url(intervalq)) as handle:
            for id_, queue in (("1001", "mails"), ("1002", "mails"), ("1003", "spam")):
                await handle.insert(queue, 1, id=id_)
        await die(intervalq, "spam", "ill")
    if '"$claim"' in example:
        intervalq.environment["claim"] = json.loads(tasks("claim", "mails").stdout)["claim"]
    if shutil.which("jq") is None:  # what the examples need of it
        jq = intervalq.folder / "jq"
        jq.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.load(sys.stdin)[sys.argv[2][1:]])\n")
        jq.chmod(0o755)
        intervalq.environment["PATH"] += f"{os.pathsep}{intervalq.folder}"
    ran = subprocess.run(
        ["bash", "-c", example],
        cwd=intervalq.folder,
        env=intervalq.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)


def test_help(tasks: Callable[..., Any]) -> None:
    overview = tasks("--help").stdout
    assert "..." not in overview.replace("[ARGS]...", ""), "a summary was cut short"
    for name in group.list_commands(click.Context(group)):
        assert f"\n  {name} " in overview
        assert "Examples:\n" in help_of("tasks", name)
