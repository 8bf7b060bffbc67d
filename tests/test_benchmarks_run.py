"""The benchmarks of this project still run, in tiny sizes; nothing is timed here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str) -> str:
    """Run a script or module with this Python, and return its output."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def figures_of(script: str, tmp_path: Path, *options: str) -> tuple[str, Any]:
    """Run a benchmark, and return what it prints and what it writes."""
    file = tmp_path / "figures.json"
    output = run(f"benchmarks/{script}", *options, "--json", str(file))
    return output, json.loads(file.read_text())


def check(rows: list[dict[str, Any]], message: str, *, may_be_unknown: set[str]) -> None:
    for row in rows:
        for name, value in row.items():
            assert name in may_be_unknown or value is not None, row
            assert not isinstance(value, float) or (math.isfinite(value) and value >= 0), row
    assert len(message.splitlines()) > len(rows)


def test_scale(tmp_path: Path, redis_url: str) -> None:
    sizes = {
        "--shards": "1,3", "--seconds": "0.5", "--settle": "2", "--queues": "5", "--jobs": "10",
        "--waiting": "20", "--threads": "2",
    }  # fmt: skip
    output, figures = figures_of("scale.py", tmp_path, *(word for pair in sizes.items() for word in pair))
    assert [(row["shards"], row["processes"]) for row in figures["shards"]] == [(1, 1), (3, 2)]
    check(figures["shards"], output, may_be_unknown={"rate"})
    assert [(row["store"], row["queues"]) for row in figures["queues"]] == [
        ("memory", 5),
        ("redis", 5),
        ("sqlite", 5),
    ]
    check(figures["queues"], output, may_be_unknown={"bytes"})
    assert [(row["way"], row["lookahead"], row["waiting"]) for row in figures["waiting"]] == [
        ("add", "all", 20),
        ("add", 16, 20),
        ("slot", "all", 20),
        ("slot", 16, 20),
        ("threads", "all", 2),
    ]
    check(figures["waiting"], output, may_be_unknown={"bytes"})


def test_overhead(tmp_path: Path) -> None:
    output, figures = figures_of(
        "overhead.py", tmp_path, "--calls", "20", "--rounds", "2", "--callers", "1,4", "--threads", "1,2"
    )
    ways = [(row["way"], row["callers"]) for row in figures]
    assert ways == [
        *(
            (way, count)
            for count in (1, 4)
            for way in ("plain await", "decorator", "run", "slot", "add", "map")
        ),
        *(
            (way, count)
            for count in (1, 2)
            for way in ("plain call", "sync decorator", "sync run", "sync slot", "sync add")
        ),
    ]
    check(figures, output, may_be_unknown={"given_up", "store_calls"})


def test_nats_counters(tmp_path: Path, nats_url: str) -> None:
    output, rows = figures_of(
        "nats_counters.py", tmp_path, "--writers", "2", "--rounds", "2", "--seconds", "0.05"
    )
    assert [row["kind"] for row in rows] == [
        "bare counter",
        "queue, backlog",
        "queue, slots used",
        "queue, idle",
        "compare-and-set",
    ]
    check(rows, output, may_be_unknown=set())


def test_micro(redis_url: str, valkey_url: str, postgres_url: str, nats_url: str) -> None:
    pytest.importorskip("pytest_benchmark")
    output = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-disable", "benchmarks/micro")
    assert "passed" in output
    assert "skipped" not in output
