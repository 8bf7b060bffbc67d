"""`intervalq doctor`: its findings about good stores and bad ones."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from cli.command_line import CommandLine
from intervalq.cli._doctor import spark as _doctor_spark
from intervalq.errors import JavaNotFound
from intervalq.spark._runtime.java import Java

ROOT = Path(__file__).parent.parent.parent


def test_a_good_store(intervalq: CommandLine) -> None:
    output = intervalq("doctor").stdout
    assert f"store file://{intervalq.folder}/state.json\n" in output
    assert "ok  it answers: round trip" in output
    assert "ok  its clock is" in output
    assert "error" not in output
    assert not (intervalq.folder / "state.json").exists(), "a look makes nothing"


def test_for_programs(intervalq: CommandLine) -> None:
    found = json.loads(intervalq("doctor", "--json").stdout)
    assert found["store"] == f"file://{intervalq.folder}/state.json"
    assert 0 < found["round_trip"]["median"] <= found["round_trip"]["p99"]
    assert abs(found["clock_offset"]) < 1
    assert {advice["level"] for advice in found["advice"]} <= {"ok", "warning"}
    assert found["extras"]["cli"].startswith("click ")
    named = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
    assert {*found["extras"]} == named - {"all"}


@pytest.mark.parametrize("given", ["an option", "the environment", "the default"])
def test_what_it_says_about_tasks(intervalq: CommandLine, given: str) -> None:
    del intervalq.environment["INTERVALQ_STORE"]
    folder, arguments = intervalq.folder, ["doctor"]
    queues = tasks = f"sqlite://{folder}/both.db"
    if given == "an option":
        arguments += ["--store", f"{folder}/both.db"]
    elif given == "the environment":
        intervalq.environment["INTERVALQ_STORE"] = queues
    else:
        queues, tasks = (f"sqlite://{folder}/intervalq/{name}.db" for name in ("state", "tasks"))
    lines = intervalq(*arguments).stdout.splitlines()
    assert lines.count(f"store {queues}") == lines.count(f"durable tasks {tasks}") == 1
    begin, end = lines.index(f"durable tasks {tasks}"), lines.index("extras")
    assert lines.index(f"store {queues}") < begin < end
    assert any(line.startswith("       ok  ") and Path(tasks).name in line for line in lines[begin:end])
    found = json.loads(intervalq(*arguments, "--json").stdout)
    assert (found["store"], found["tasks"]["store"]) == (queues, tasks)
    assert {advice["level"] for advice in found["tasks"]["advice"]} <= {"ok", "warning"}
    assert list(folder.rglob("*.db")) == [], "a look makes no database"
    store = [] if given == "the default" else ["--store", queues]
    intervalq("tasks", "insert", "q", "1", *store)
    assert "ok  the tables of tasks can be read: 1 tasks" in intervalq(*arguments).stdout


def test_tasks_that_can_not_be_read(intervalq: CommandLine) -> None:
    del intervalq.environment["INTERVALQ_STORE"]
    insert = intervalq.start("tasks", "insert", "q", "1")  # its end closes the database, and its log is gone
    insert.communicate()
    assert insert.returncode == 0
    database = intervalq.folder / "intervalq" / "tasks.db"
    assert not database.with_name("tasks.db-wal").exists()
    database.write_bytes(b"no database" * 1000)
    found = json.loads(intervalq("doctor", "--json", code=1).stdout)
    assert "error" not in {advice["level"] for advice in found["advice"]}
    assert "error" in {advice["level"] for advice in found["tasks"]["advice"]}
    assert "error  " in intervalq("doctor", code=1).stdout


@pytest.mark.parametrize("path", ["state.json", "state", "memory://"])
def test_where_there_can_be_no_tasks(intervalq: CommandLine, path: str) -> None:
    intervalq(
        "exec", "--name", "q", "--interval", "1s", "--store", str(intervalq.folder / "state"), "--", "true"
    )
    assert "durable tasks" not in intervalq("doctor", "--store", path).stdout
    assert json.loads(intervalq("doctor", "--store", path, "--json").stdout)["tasks"] is None
    intervalq.environment["INTERVALQ_STORE"] = path
    assert "durable tasks" not in intervalq("doctor").stdout


def test_tasks_on_postgres(intervalq: CommandLine, postgres_url: str) -> None:
    found = json.loads(intervalq("doctor", "--store", postgres_url, "--json", code=None).stdout)
    advised = {advice["what"] for advice in found["tasks"]["advice"]}
    assert "the server is a primary" in advised
    assert found["tasks"]["store"] == found["store"]


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
    assert "never evicted" in ran.stdout.partition("durable tasks")[2]


def test_nats_gives_advice(intervalq: CommandLine, nats_url: str) -> None:
    ran = intervalq("doctor", "--store", nats_url)
    assert "its streams can count" in ran.stdout
    assert "stores several messages all or none" in ran.stdout.partition("durable tasks")[2]


def test_which_java_spark_will_use(intervalq: CommandLine) -> None:
    home = intervalq.folder / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho ' java.home = /x'; echo ' java.specification.version = 21'\n")
    java.chmod(0o755)
    intervalq.environment["JAVA_HOME"] = str(home)
    lines = intervalq("doctor").stdout.splitlines()
    reported = lines[lines.index("spark") + 1].split(maxsplit=1)
    assert reported[0] == "ok"
    assert reported[1].endswith(f", with Java 21 of JAVA_HOME: {home}")
    assert json.loads(intervalq("doctor", "--json").stdout)["spark"] == {"level": "ok", "what": reported[1]}


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        ({}, None),
        ({"pyspark": "3.4.4", "pyarrow": "26", "pandas": "2"}, "pyspark 3.4.4 is older than 3.5"),
        ({"pyspark": "4.1.0", "pyarrow": "26"}, "pyspark 4.1.0 does not work without pandas: pip install"),
        ({"pyspark": "4.10.0"}, "pyspark 4.10.0 does not work without pyarrow and pandas: pip install"),
        (
            {"pyspark": "5.0.dev1", "pyarrow": "26", "pandas": "2"},
            "pyspark 5.0.dev1 can't start: Spark needs Java",
        ),
    ],
)
def test_a_spark_that_can_not_be_used(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], message: str | None
) -> None:
    def nowhere() -> Java:
        raise JavaNotFound((("java on PATH", "there is none"),), 17)

    monkeypatch.setattr(_doctor_spark, "find_java", nowhere)
    monkeypatch.setattr(_doctor_spark, "_version", installed.get)
    about = _doctor_spark.about_spark()
    assert (about is None) is (message is None)
    if about is not None and message is not None:
        assert about["level"] == "warning"
        assert about["what"].startswith(message)


@pytest.mark.parametrize("store", ["redis_url", "postgres_url", "nats_url"])
def test_the_way_to_a_store_and_its_rights(
    intervalq: CommandLine, store: str, request: pytest.FixtureRequest
) -> None:
    found = json.loads(
        intervalq("doctor", "--store", request.getfixturevalue(store), "--json", code=None).stdout
    )
    advised = [(advice["level"], advice["what"]) for advice in found["advice"]]
    assert ("ok", "the connection stays on this machine") in advised
    [rights] = [what for level, what in advised if level == "warning" and "SECURITY.md" in what]
    assert "may do everything" in rights
