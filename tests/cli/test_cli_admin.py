"""Commands on whole queues, as people and as programs use them."""

from __future__ import annotations

import json
import os
import pty
from typing import Any

import pytest

from cli.command_line import CommandLine
from intervalq import QueueState


def used(intervalq: CommandLine, name: str = "api", interval: str = "100ms") -> None:
    """Create a queue by using it once."""
    intervalq("exec", "--name", name, "--interval", interval, "--", "true")


def state(intervalq: CommandLine, name: str = "api") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(intervalq("status", name, "--json").stdout)
    assert set(found) == {field for field in QueueState.__slots__ if not field.startswith("_")}
    return found


def test_status_of_a_queue(intervalq: CommandLine) -> None:
    used(intervalq)
    tickets = state(intervalq)["ticket"]  # one, or more if the command was too late for its first slot
    assert state(intervalq)["current"] == tickets >= 1
    output = intervalq("status", "api").stdout
    assert "interval  100ms (10/s)\n" in output
    assert f"tickets  {tickets} issued, begun up to {tickets}, none outstanding\n" in output


def test_status_of_a_queue_with_limits(intervalq: CommandLine) -> None:
    used(intervalq, "plain")
    limits = ("--limit", "2/h", "--limit", "300 tokens/d", "--limit", "9 bytes/day from utc")
    intervalq("exec", "--name", "api", *limits, "--", "true")
    found = state(intervalq)
    assert [(each["limit"], each["taken"], each["left"]) for each in found["limits"]] == [
        ("2/h", 1, 1),
        ("300 tokens/d", 0, 300),
        ("9 bytes/d from utc", 0, 9),
    ]
    assert found["binds"] is None
    printed = intervalq("status", "api").stdout
    assert "limit  2/h: 1 taken, 1 left\n" in printed
    assert "waits for  nothing\n" in printed
    intervalq("exec", "--name", "api", *limits, "--", "true")
    assert state(intervalq)["binds"] == "2/h"
    printed = intervalq("status", "api").stdout
    assert "limit  2/h: 2 taken, 0 left, room for another one in " in printed
    assert "waits for  the limit 2/h\n" in printed
    for command in ("status", "top"):
        printed = intervalq(command).stdout
        assert "left" in printed
        assert "0 of 2/h" in printed
        assert "300 of 300 tokens/d" in printed
        assert "9 of 9 bytes/d from utc" in printed


def test_status_of_all_queues(intervalq: CommandLine) -> None:
    assert intervalq("status").stdout.startswith("no queues in ")
    assert json.loads(intervalq("status", "--json").stdout) == []
    used(intervalq, "one")
    used(intervalq, "two", "2m")
    intervalq("pause", "two")
    assert [queue["name"] for queue in json.loads(intervalq("status", "--json").stdout)] == ["one", "two"]
    _, _, one, two = intervalq("status").stdout.splitlines()
    assert [*one.split()[:2], *one.split()[3:]] == ["one", "100ms", "0", "-", "idle"]
    assert two.split() == ["two", "2m", "1", "0", "-", "paused"]


def test_pause_and_resume(intervalq: CommandLine) -> None:
    used(intervalq)
    assert intervalq("pause", "api").stdout.startswith("api: paused")
    assert state(intervalq)["is_held"]
    assert state(intervalq)["held_until"] is None
    assert "paused" in intervalq("status", "api").stdout
    assert intervalq("resume", "api").stdout.startswith("api: resumed")
    assert not state(intervalq)["is_held"]
    assert json.loads(intervalq("pause", "api", "--json").stdout)["is_held"]
    assert not json.loads(intervalq("resume", "api", "--json").stdout)["is_held"]


def test_cool_down(intervalq: CommandLine) -> None:
    used(intervalq)
    assert "cools down for 90s (" in intervalq("cool-down", "api", "90").stdout
    assert "cools down for 1h" in intervalq("cool-down", "api", "1h").stdout
    found = json.loads(intervalq("cool-down", "api", "2h", "--json").stdout)
    assert found["is_held"]
    assert 3_600 < found["held_until"] - found["now"] <= 7_200
    assert "held for another" in intervalq("status", "api").stdout
    assert "is not a duration: give cool-down as" in intervalq("cool-down", "api", "soon", code=2).stderr


def test_configure(intervalq: CommandLine) -> None:
    used(intervalq)
    assert "configured (2s between starts" in intervalq("configure", "api", "--interval", "2s").stdout
    intervalq("configure", "api", "--rate", "4/s", "--burst", "3")
    found = json.loads(intervalq("configure", "api", "--max-running", "5", "--json").stdout)
    assert (found["interval"], found["burst"], found["max_running"]) == (0.25, 3, 5)
    output = intervalq("status", "api").stdout
    assert "burst  3\n" in output
    assert "running  0 of at most 5\n" in output
    assert state(intervalq)["max_running"] == 5
    intervalq("configure", "api", "--max-running", "0")
    assert state(intervalq)["max_running"] is None
    assert "nothing to change" in intervalq("configure", "api", code=2).stderr
    assert "not both" in intervalq("configure", "api", "--rate", "1/s", "--interval", "1s", code=2).stderr


def test_configure_limits(intervalq: CommandLine) -> None:
    intervalq("exec", "--name", "api", "--interval", "1h", "--limit", "2/h", "--", "true")
    found = json.loads(intervalq("configure", "api", "--limit", "3/h", "--limit", "9 t/h", "--json").stdout)
    assert [(each["limit"], each["left"]) for each in found["limits"]] == [("3/h", 2), ("9 t/h", 9)]
    assert not json.loads(intervalq("configure", "api", "--no-limits", "--json").stdout)["limits"]
    assert "not both" in intervalq("configure", "api", "--no-limits", "--limit", "3/h", code=2).stderr


def test_reclaim(intervalq: CommandLine) -> None:
    used(intervalq, interval="1h")
    waiting = intervalq.start("exec", "--name", "api", "--interval", "1h", "--", "true")
    assert intervalq.until(lambda: state(intervalq)["outstanding"] == 1)
    waiting.kill()
    waiting.wait()
    assert intervalq("reclaim", "api").stdout == "api: 1 outstanding ticket reclaimed\n"
    assert json.loads(intervalq("reclaim", "api", "--json").stdout) == {"name": "api", "reclaimed": 0}


def test_drop(intervalq: CommandLine) -> None:
    used(intervalq)
    ran = intervalq("drop", "api", code=2)
    assert ran.stderr == "intervalq: give --yes to drop 'api' without a terminal\n"
    assert intervalq("drop", "api", "--yes").stdout == "api: dropped\n"
    assert intervalq("status").stdout.startswith("no queues in ")
    used(intervalq)
    dropped = json.loads(intervalq("drop", "api", "--yes", "--json").stdout)
    assert dropped == {"name": "api", "dropped": True}


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_drop_asks_people(intervalq: CommandLine, answer: bytes, code: int) -> None:
    used(intervalq)
    terminal, end = pty.openpty()
    process = intervalq.start("drop", "api", stdin=end)
    os.write(terminal, answer)
    _, output = process.communicate()
    os.close(end)
    os.close(terminal)
    assert "Drop the queue 'api'?" in output
    assert process.returncode == code
    assert ("api" in intervalq("status").stdout) == (code != 0)


def test_keys_of_keyed_queues(intervalq: CommandLine) -> None:
    script = (
        "import anyio\n"
        "from intervalq import IntervalQueue\n"
        "async def main():\n"
        "    async with IntervalQueue('tenants', interval=3600) as queue:\n"
        "        async with queue['a'].slot():\n"
        "            pass\n"
        "anyio.run(main)\n"
    )
    intervalq.python(script)
    assert state(intervalq, "tenants:a")["name"] == "tenants:a"
    assert "tenants:a" in intervalq("status").stdout
    intervalq("pause", "tenants:a")
    intervalq("cool-down", "tenants:a", "1m")
    intervalq("resume", "tenants:a")
    intervalq("configure", "tenants:a", "--interval", "2h")
    intervalq("reclaim", "tenants:a")
    assert state(intervalq, "tenants:a")["interval"] == 7_200
    intervalq("drop", "tenants:a", "--yes")
    assert intervalq("status").stdout.startswith("no queues in ")


def with_keys(intervalq: CommandLine, count: int) -> None:
    """A queue with keys under one rate; four have jobs that wait when their process dies."""
    intervalq.python(
        "import os, anyio\n"
        "from intervalq import IntervalQueue\n"
        "async def main():\n"
        "    queue = IntervalQueue('api', rate='1/m', each='shared')\n"
        f"    for number in range({count}):\n"
        "        await queue[f'k{number}'].quote()\n"
        f"    for number in range({count}):\n"
        "        await queue[f'k{number}'].reclaim()\n"
        "    for number in (3, 1, 2, 1, 9, 1, 8):\n"
        "        await queue[f'k{number}'].add(print)\n"
        "    os._exit(0)\n"
        "anyio.run(main)\n"
    )


def test_keys_under_one_rate_are_counted_named_folded_and_dropped(intervalq: CommandLine) -> None:
    with_keys(intervalq, 30)
    printed = intervalq("status", "api").stdout
    assert "keys  30 known, 4 with outstanding tickets: k1 (3), k2 (1), k8 (1), k9 (1)\n" in printed
    keys = [key["name"] for key in json.loads(intervalq("status", "api", "--keys", "--json").stdout)]
    assert (len(keys), keys[0]) == (31, "api")
    assert keys[1:5] == ["api:k1", "api:k2", "api:k8", "api:k9"]
    for command in (["status"], ["top", "--once"], ["top", "api"]):
        lines = [line.split() for line in intervalq(*command).stdout.splitlines()]
        assert [line[0] for line in lines[2:4]] == ["api", "api:k1"]
        assert lines[-1] == ["api:", "10", "keys", "more", "0"]
        assert len(lines) == 2 + 21 + 1
    assert len(intervalq("status", "api", "--keys").stdout.splitlines()) == 2 + 31
    assert "30 keys stay: --keys drops them, too" in intervalq("drop", "api", "--yes").stdout
    assert "api: dropped with 30 keys" in intervalq("drop", "api", "--yes", "--keys").stdout
    assert intervalq("status").stdout.startswith("no queues in ")


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["pause"],
        ["resume"],
        ["cool-down", "1s"],
        ["configure", "--rate", "1/s"],
        ["reclaim"],
        ["drop", "--yes"],
        ["top", "--once"],
    ],
)
def test_a_queue_that_is_not_there(intervalq: CommandLine, command: list[str]) -> None:
    verb, *rest = command
    ran = intervalq(verb, "nope", *rest, code=1)
    assert ran.stderr.startswith("intervalq: the store has no queue 'nope'")
    assert len(ran.stderr.splitlines()) == 1
    assert intervalq("status").stdout.startswith("no queues in ")


def test_names_cannot_command_a_terminal(intervalq: CommandLine) -> None:
    ran = intervalq("pause", "\x1b[31mred", code=2)
    assert "\x1b" not in ran.stderr
    assert "is not a queue name" in ran.stderr
    assert intervalq("status", "a:", code=2).stderr.startswith("intervalq: '' is not a key")
    ran = intervalq("status", "a:\x1b[31mred", code=1)
    assert "\x1b" not in ran.stderr
    assert r"the store has no queue 'a:\x1b[31mred'" in ran.stderr


def test_top_shows_all_queues(intervalq: CommandLine) -> None:
    used(intervalq)
    used(intervalq, "other")
    assert intervalq("top", "--once").stdout == intervalq("status").stdout
    assert "other" not in intervalq("top", "api").stdout


def test_top_is_live_on_a_terminal(intervalq: CommandLine) -> None:
    used(intervalq)
    terminal, end = pty.openpty()
    process = intervalq.start("top", "--every", "0.1", stdout=end)
    seen = b""
    while seen.count(b"api") < 2:
        seen += os.read(terminal, 4096)
    process.send_signal(2)
    assert process.wait() == 0
    os.close(end)
    os.close(terminal)


def test_top_shows_its_table_once_on_a_terminal_that_cannot_redraw(intervalq: CommandLine) -> None:
    used(intervalq)
    intervalq.environment["TERM"] = "dumb"
    terminal, end = pty.openpty()
    process = intervalq.start("top", stdout=end)
    os.close(end)
    assert process.wait() == 0
    assert b"api" in os.read(terminal, 4096)
    os.close(terminal)


def test_a_reader_that_leaves_is_no_error_worth_a_word(intervalq: CommandLine) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = intervalq.start("status", "--json", stdout=writing)
    os.close(writing)
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_several_queues_that_can_not_be_read_are_one_error(intervalq: CommandLine) -> None:
    intervalq.write("state.json", '{"intervalq": 1, "queues": {"a": {}, "b": {}}}')
    (intervalq.folder / "state.json").chmod(0o600)
    ran = intervalq("status", code=1)
    assert "the record of queue 'a' is broken" in ran.stderr
    assert ran.stderr.count("\n") == 1
