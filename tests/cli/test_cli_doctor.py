"""`intervalq doctor`: what it says of good stores and bad ones."""

from __future__ import annotations

import json

from cli.command_line import CommandLine


def test_a_good_store(intervalq: CommandLine) -> None:
    said = intervalq("doctor").stdout
    assert f"store file://{intervalq.folder}/state.json\n" in said
    assert "ok  it answers: round trip" in said
    assert "ok  its clock is" in said
    assert "error" not in said
    assert not (intervalq.folder / "state.json").exists(), "a look makes nothing"


def test_for_programs(intervalq: CommandLine) -> None:
    found = json.loads(intervalq("doctor", "--json").stdout)
    assert found["store"] == f"file://{intervalq.folder}/state.json"
    assert 0 < found["round_trip"]["median"] <= found["round_trip"]["p99"]
    assert abs(found["clock_offset"]) < 1
    assert {advice["level"] for advice in found["advice"]} <= {"ok", "warning"}
    assert found["extras"]["cli"].startswith("click ")


def test_a_store_that_is_away(intervalq: CommandLine) -> None:
    ran = intervalq("doctor", "--store", "redis://127.0.0.1:1/0", code=1)
    assert "error  redis://127.0.0.1:1/0: " in ran.stdout
    assert ran.stderr == ""
    found = json.loads(intervalq("doctor", "--json", "--store", "redis://127.0.0.1:1/0", code=1).stdout)
    assert [advice["level"] for advice in found["advice"]] == ["error"]
    assert found["round_trip"] is None


def test_a_store_that_is_corrupt(intervalq: CommandLine) -> None:
    (intervalq.folder / "state.json").write_text("{}")
    (intervalq.folder / "state.json").chmod(0o600)
    assert "error  " in intervalq("doctor", code=1).stdout


def test_a_store_that_nobody_knows(intervalq: CommandLine) -> None:
    ran = intervalq("doctor", "--store", "nosuch://x", code=2)
    assert ran.stderr.startswith("intervalq: no store is registered for 'nosuch://'")


def test_redis_gives_advice(intervalq: CommandLine, redis_url: str) -> None:
    ran = intervalq("doctor", "--store", redis_url, code=None)
    assert "it answers" in ran.stdout
