"""Who did what on the command line is written down in a file."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq._observe.actions import Keeper, keeping, last_actions, note
from intervalq.cli._app import run_app
from intervalq.ledger.rules import Ended, Record
from intervalq.ledger.store import open_ledger_store
from intervalq.tasks import Tasks

ME = f"{getpass.getuser()}@{socket.gethostname()}"


async def used(url: str) -> None:
    """A queue, five tasks, a durable schedule and a ledger."""
    async with IntervalQueue("api", rate="1000/s", store=url) as queue, queue.slot():
        pass
    async with Tasks(url) as tasks:
        for name in ("a", "b", "c", "d", "e"):
            await tasks.insert("mails.dead", 1, id=name)
        await tasks.schedule("nightly", "reports", 1, every="1d")
    ledger = open_ledger_store(url)
    await ledger.apply("run", Record("s", 3_600_000_000, (Ended("x", "1"),)))
    await ledger.aclose()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = f"sqlite://{tmp_path}/state.db"
    monkeypatch.setenv("INTERVALQ_STORE", made)
    monkeypatch.setenv("INTERVALQ_ACTIONS", str(tmp_path / "new" / "actions.jsonl"))
    anyio.run(used, made)
    return made


def written(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "new" / "actions.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


DONE = (
    ("pause api", "pause", "queue api", "done"),
    ("cool-down api 1s", "cool-down", "queue api", "done"),
    ("resume api", "resume", "queue api", "done"),
    ("configure api --rate 900/s", "configure", "queue api", "done"),
    ("reclaim api", "reclaim", "queue api", "done"),
    ("drop api --keys --yes", "drop", "queue api and its keys", "done"),
    ("tasks retry a", "retry", "task a", "1 task"),
    ("tasks modify a --delay 1h", "change", "task a", "done"),
    ("tasks cancel a b", "cancel", "tasks a, b", "2 tasks"),
    ("tasks move c --to later", "move", "task c to later", "1 task"),
    ("tasks delete d", "delete", "task d", "1 task"),
    ("tasks delete --queue mails.dead --all --yes", "delete", "tasks of mails.dead", "1 task"),
    ("schedule pause nightly", "pause", "schedule nightly", "done"),
    ("schedule resume nightly", "resume", "schedule nightly", "done"),
    ("schedule run nightly", "fire", "schedule nightly", "done"),
    ("schedule drop nightly", "drop", "schedule nightly", "done"),
    ("ledger cancel run", "cancel", "ledger run", "done"),
    ("ledger uncancel run", "uncancel", "ledger run", "done"),
    ("ledger expire run 1d", "expire", "ledger run", "done"),
    ("ledger forget run --done", "forget", "ledger run", "done"),
    ("ledger drop run --yes", "drop", "ledger run", "done"),
)


def test_what_commands_change_is_written_down_and_what_they_show_is_not(url: str, tmp_path: Path) -> None:
    for command, *_ in DONE:
        assert run_app(command.split()) == 0, command
    for command in ("status", "tasks list", "tasks insert q 1", "schedule list", "ledger list"):
        assert run_app([*command.split()]) == 0, command
    found = written(tmp_path)
    assert [(each["action"], each["subject"], each["result"]) for each in found] == [
        each[1:] for each in DONE
    ]
    assert {(each["who"], each["store"]) for each in found} == {(ME, url)}
    assert [each["time"] for each in found] == sorted(each["time"] for each in found)
    assert all(each["time"].endswith("+00:00") for each in found)


def test_an_action_that_fails_is_written_down_with_its_error(url: str, tmp_path: Path) -> None:
    assert run_app(["pause", "nothere"]) == 1
    assert run_app(["ledger", "drop", "nothere", "--yes"]) == 1
    assert run_app(["tasks", "move", "a", "nothere", "--to", "x"]) == 1
    assert [each["result"].split(":")[0].split(" (")[0] for each in written(tmp_path)] == [
        "the store has no queue 'nothere'",
        "the store has no ledger 'nothere'",
        "1 task",
    ]


def test_an_action_is_done_even_if_it_cannot_be_written_down(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERVALQ_ACTIONS", str(tmp_path))
    assert run_app(["pause", "api"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("api: paused")
    assert f"intervalq: {tmp_path}: Is a directory: what was done isn't written down" in shown.err
    assert run_app(["status", "api"]) == 0
    assert not capsys.readouterr().err
    log = logging.getLogger("intervalq.actions")
    assert (log.handlers, log.level) == ([], logging.NOTSET)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this full disk")
def test_a_full_disk_is_named(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTERVALQ_ACTIONS", "/dev/full")
    assert run_app(["resume", "api"]) == 0
    assert "intervalq: /dev/full: No space left on device: what was done" in capsys.readouterr().err


def test_a_user_without_a_home_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_home(_: str) -> None:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("INTERVALQ_ACTIONS")
    monkeypatch.setattr("platformdirs.user_state_path", no_home)
    assert run_app(["resume", "api"]) == 0
    assert "actions.jsonl: could not determine the home directory: what was" in capsys.readouterr().err
    assert last_actions({url}) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_file_is_its_owners_alone(url: str, tmp_path: Path) -> None:
    assert run_app(["resume", "api"]) == 0
    assert (tmp_path / "new" / "actions.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_last_actions_on_a_store_are_found_whatever_else_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "actions.jsonl"
    monkeypatch.setenv("INTERVALQ_ACTIONS", str(path))
    assert last_actions({"here"}) == []
    with keeping():
        for number in range(2000):
            note("ann@host", "pause", f"queue {number}", "elsewhere" if number % 2 else "here")
    with path.open("a") as file:
        file.write('[]\n{"time": "now"}\n{"time": 1}\n')
        file.write("[" * 50_000 + "\n")
        file.write(
            '{"time": "9999-12-31T23:59:59-12:00", "who": "", "action": "", "subject": "", "result": "", '
            '"store": "here"}\n{"half'
        )
    found = last_actions({"here"})
    assert [each.subject for each in found] == [f"queue {number}" for number in range(1998, 1598, -2)]


def test_one_line_a_minute_tells_of_cool_downs_by_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERVALQ_ACTIONS", str(tmp_path / "actions.jsonl"))
    keeper = Keeper()
    for now in (100.0, 100.5, 159.0, 161.0, 90.0):
        record = logging.makeLogRecord({"created": now, "action": "cool-down", "subject": "queue api"})
        keeper.emit(record)
    assert len((tmp_path / "actions.jsonl").read_text().splitlines()) == 3
