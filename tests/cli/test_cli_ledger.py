"""The commands on ledgers, as people and as programs use them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from cli.command_line import CommandLine
from intervalq.cli._app import run_app
from intervalq.cli._ledger import export
from intervalq.cli._tasks.batch import Bar
from intervalq.ledger._large import LargeAnswers
from intervalq.ledger.rules import Claim, Command, Ended, Record
from intervalq.ledger.store import open_ledger_store

HOUR = 3_600_000_000
FEW = (
    Record("s", HOUR, (Ended("a", '{"value": "ü"}'), Ended("b", "1"), Ended("c", '"no"', failed=True))),
    Claim("gone", 1, ("d",), started=True),
    Claim("s", HOUR, ("e",)),
)

Run = Callable[..., Any]


class Ran(NamedTuple):
    stdout: str
    stderr: str


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/state.db"


@pytest.fixture
def ledger(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Runs `intervalq ledger` in this process, which is fast, with a database of its own."""
    monkeypatch.setenv("INTERVALQ_STORE", store_url)
    monkeypatch.chdir(tmp_path)

    def run(*args: str, code: int = 0) -> Ran:
        ended = run_app(["ledger", *args])
        ran = Ran(*capsys.readouterr())
        assert ended == code, ran
        return ran

    return run


def put(url: str, *commands: Command, name: str = "run") -> None:
    async def do() -> None:
        store = open_ledger_store(url)
        for command in commands:
            await store.apply(name, command)
        await store.aclose()

    anyio.run(do)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_list_and_show(store_url: str, ledger: Run) -> None:
    assert ledger("list").stdout.startswith("no ledgers in ")
    put(store_url, *FEW)
    put(store_url, FEW[1], name="other")
    first, second = lines(ledger("list", "--json").stdout)
    assert (first["name"], second["name"]) == ("other", "run")
    del second["created"]
    assert second == {
        "name": "run", "expires": None, "cancelled": False, "done": 2, "failed": 1, "claimed": 1,
        "started": 0, "unknown": 1, "sessions": 1,
    }  # fmt: skip
    shown = ledger("list").stdout
    assert shown.splitlines()[-1].split() == ["run", "2", "1", "1", "1", "1", "in", "use", "never"]
    assert lines(ledger("show", "run", "--json").stdout)[0].items() >= second.items()
    output = ledger("show", "run").stdout
    assert "unknown  1 (may have been called by processes that died)\n" in output
    assert "in flight  1 (0 called)\n" in output
    assert "ledger list" in ledger("show", "none", code=1).stderr
    assert "not a queue name" in ledger("show", "a/b", code=2).stderr
    assert "in memory" in ledger("list", "--store", "memory://", code=2).stderr


def test_what_is_done_by_hand(store_url: str, ledger: Run) -> None:
    put(store_url, *FEW)
    assert ledger("cancel", "run").stdout == "run: cancelled\n"
    assert "cancelled" in ledger("list").stdout
    assert lines(ledger("uncancel", "run", "--json").stdout) == [{"name": "run", "cancelled": False}]
    assert ledger("expire", "run", "1h").stdout.startswith("run: expires at 2")
    assert ledger("expire", "run", "never").stdout == "run: kept\n"
    assert "expire" in ledger("expire", "run", "soon", code=2).stderr
    assert "give the rows" in ledger("forget", "run", code=2).stderr
    assert ledger("forget", "run", "a", "e", "x").stdout == "run: 1 row removed\n"
    assert lines(ledger("forget", "run", "--failed", "--unknown", "--json").stdout) == [
        {"name": "run", "removed": 2}
    ]
    assert ledger("forget", "run", "b", "--failed").stdout == "run: 0 rows removed\n"
    assert "give --yes to drop" in ledger("drop", "run", code=2).stderr
    assert ledger("drop", "run", "--yes").stdout == "run: dropped\n"
    assert "no ledger 'run'" in ledger("drop", "run", "--yes", code=1).stderr
    for command in (["cancel"], ["uncancel"], ["forget", "--done"], ["export"], ["expire"]):
        assert ledger(*command, "run", *(["1h"] if command == ["expire"] else []), code=1).stdout == ""


def test_export(store_url: str, ledger: Run, tmp_path: Path) -> None:
    put(store_url, *FEW, Record("s", HOUR, (Ended("f", "no JSON"), Ended("g", "[NaN]"))))
    found = {row["key"]: row for row in lines(ledger("export", "run").stdout)}
    assert {key: (row["state"], row["value"]) for key, row in found.items()} == {
        "a": ("done", {"value": "ü"}), "b": ("done", 1), "c": ("failed", "no"), "d": ("unknown", None),
        "e": ("claimed", None), "f": ("done", "no JSON"), "g": ("done", "[NaN]"),
    }  # fmt: skip
    assert list(found["a"]) == ["key", "state", "attempt", "value", "at"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("old")
    output = ledger("export", "run", "--failed", "--unknown", "--output", "rows.jsonl").stderr
    assert output == "intervalq: 2 rows written to rows.jsonl\n"
    assert sorted(row["key"] for row in lines(rows.read_text())) == ["c", "d"]


def test_an_export_that_is_interrupted_leaves_the_file_as_it_was(
    store_url: str, ledger: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store_url, Record("s", HOUR, tuple(Ended(str(number), "1") for number in range(1_000))))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("old")
    there: list[int] = []

    def interrupt(bar: Bar, count: int) -> None:
        there.append(len(list(tmp_path.glob("rows.jsonl*"))))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Bar, "advance", interrupt)
    ledger("export", "run", "--output", "rows.jsonl", code=130)
    assert there[0] == 2
    assert list(tmp_path.glob("rows.jsonl*")) == [rows]
    assert rows.read_text() == "old"


def test_large_answers_go_with_their_rows(store_url: str, ledger: Run, tmp_path: Path) -> None:
    put(store_url, *FEW)
    files = LargeAnswers(f"{tmp_path}/large", "run")
    for key in "ab":
        files.write(key, "1")
    ledger("forget", "run", "a", "--large-answers", "large")
    assert len(files.names()) == 1
    ledger("drop", "run", "--yes", "--large-answers", "large")
    assert files.names() == []


def test_drop_asks_on_a_terminal(intervalq: CommandLine, store_url: str) -> None:
    put(store_url, *FEW)
    for answer, code, reported in ((b"n\n", 1, "nothing was dropped"), (b"y\n", 0, "run: dropped")):
        held, screen = pty.openpty()
        process = intervalq.start(
            *("ledger", "drop", "run", "--store", store_url),
            stdin=screen,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.write(held, answer)
        assert process.stdout is not None
        text = process.stdout.read()
        assert "with 2 results, in use by 1 process?" in text
        assert reported in text
        assert process.wait(60) == code
        os.close(held)
        os.close(screen)


def test_an_export_follows_no_link_that_others_have_made(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / f"out.{os.getpid()}.tmp").symlink_to(precious)
    with pytest.raises(FileExistsError), export._writer(tmp_path / "out") as write:
        write("theirs")
    assert precious.read_text() == "mine"
