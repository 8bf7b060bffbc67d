"""The benchmark of durable tasks still runs, in tiny sizes, and computes its figures from the records."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MS = 1_000_000


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(tmp_path: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """Run the benchmark, and return what it prints, and its rows."""
    file = tmp_path / "rows.json"
    command = [sys.executable, str(BENCHMARKS / "tasks.py"), "--quick", *options, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["machine"]["postgres"]
    return done.stdout, found["rows"]


def test_our_own_parts(tmp_path: Path, postgres_url: str) -> None:
    output, rows = run(
        tmp_path, "--peers", "none", "--jobs", "40", "--only", "drain,plain,latency,cancel,keys,sqlite"
    )
    assert [(row["question"], row["name"]) for row in rows] == [
        (question, "intervalq")
        for question in ("drain", "drain", *["plain"] * 4, "latency", "cancel", "keys", "sqlite", "sqlite")
    ]
    for row in rows:
        assert "missing" not in row, row
        assert all(value > 0 for value in row.get("ms", [row.get("per_s") or row.get("starts")])), row
        assert row["label"] in output


def test_peers_that_are_installed_have_rows_and_the_others_are_said_to_be_missing(
    tmp_path: Path, postgres_url: str
) -> None:
    names = ["pgqueuer", "procrastinate", "chancy"]
    _, rows = run(tmp_path, "--peers", ",".join(names), "--jobs", "40", "--only", "single")
    installed = {name for name in names if find_spec(name) and find_spec("asyncpg")}
    measured = {row["name"] for row in rows if row.get("per_s", 0) > 0}
    assert measured & {"intervalq", *names} == {"intervalq", *installed}
    missing = {row["name"] for row in rows if "missing" in row}
    assert missing >= {*names} - installed


def test_a_part_that_does_not_exist_is_refused() -> None:
    command = [sys.executable, str(BENCHMARKS / "tasks.py"), "--only", "drian"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "drian is none of enqueue" in done.stderr


def row_of(
    run_: int, workers: int, per_s: float, name: str = "intervalq", label: str = "us"
) -> dict[str, Any]:
    return {"question": "drain", "label": label, "name": name, "run": run_, "jobs": 10, "workers": workers,
            "took": 1.0, "per_s": per_s}  # fmt: skip


def test_the_table_has_medians_beside_the_best_floor() -> None:
    tables = importlib.import_module("_tasks_tables")
    rows = [row_of(number, 1, per_s) for number, per_s in enumerate([100, 400, 300])]
    rows += [row_of(0, 2, 500), {**row_of(0, 2, 0, label="gone"), "missing": "it is not here"}]
    rows += [row_of(0, workers, rate, "floor", "floor: a") for workers, rate in ((1, 600), (2, 1000))]
    rows += [row_of(0, 1, 300, "floor", "floor: b")]
    del rows[4]["per_s"]
    lines = [line.split() for line in tables.summary("drain", rows).splitlines()]
    assert ["us", "300", "500", "0.50", "0.50", "-", "-", "10"] in lines
    assert ["missing:", "gone:", "it", "is", "not", "here"] in lines


def test_samples_of_all_runs_are_one_distribution() -> None:
    tables = importlib.import_module("_tasks_tables")
    rows = [{**row_of(0, 1, 1), "ms": [1.0, 2.0]}, {**row_of(1, 1, 1), "ms": [3.0, 40.0, 5.0]}]
    text = tables.summary("latency", rows)
    assert ["us", "3.00", "40.00", "40.00", "-", "5"] in [line.split() for line in text.splitlines()]


def test_pace_counts_from_the_first_start_and_looks_at_every_stretch() -> None:
    questions = importlib.import_module("_tasks_questions")
    even = [at * 10 * MS for at in range(1_000)]
    found = questions.pace_of([at + 60_000 * MS for at in even], 5.0)
    assert found["mean"] == pytest.approx(100)
    assert (found["most_1s"], found["most_100ms"], found["gap_p50"]) == (100, 10, 10)
    crowded = questions.pace_of([0, *[990 * MS + at for at in range(50)]], 5.0)
    assert (crowded["most_1s"], crowded["most_100ms"]) == (51, 50)
    assert math.isfinite(crowded["mean"])


def test_the_board_is_seen_by_both_sides() -> None:
    board = importlib.import_module("_tasks_board")
    with board.NewBoard() as mine:
        other = board.Board(mine.path)
        other.count(0, 5)
        other.count(1, 7)
        assert (mine.begun, mine.of(1), mine.over, mine.failed) == (12, 7, False, False)
        mine.end()
        other.fail()
        assert (other.over, mine.failed) == (True, True)
        other.close()


def test_a_worker_that_fails_is_heard() -> None:
    fleet = importlib.import_module("_fleet")
    runs = importlib.import_module("_tasks_run")
    peers = importlib.import_module("task_peers")
    nowhere = peers.Contender("nobody", "nobody", "ours:Nothing")
    with pytest.raises(fleet.WorkerError, match="Nothing"):
        runs.install(nowhere, "postgresql://nowhere/")
