"""The benchmark of busy machines: its conditions begin and end, its figures are right, its command runs."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import servers

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MS = 1_000_000
NOTHING_LEFT_WITHIN = 60.0
"""Seconds after which a test stops waiting for something that should have ended."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def busy() -> Any:
    return importlib.import_module("_busy")


@pytest.fixture
def made() -> Any:
    return importlib.import_module("_conditions")


@pytest.fixture
def child() -> Any:
    """A process that ends when its standard input is closed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


# --- conditions --------------------------------------------------------------------------------------------


def condition(made: Any, name: str) -> Any:
    some, missing = made.conditions([name], None)
    if name in missing:
        pytest.skip(missing[name])
    return some[0]


def test_turns_are_spread_and_each_goes_on_for_its_share() -> None:
    turns = importlib.import_module("_stopper").turns
    assert turns(1, 0.25) == [(0.0, 0, True), (0.25, 0, False)]
    assert turns(4, 0.5) == [
        (0.0, 0, True), (0.0, 2, False), (0.25, 1, True), (0.25, 3, False), (0.5, 0, False), (0.5, 2, True),
        (0.75, 1, False), (0.75, 3, True),
    ]  # fmt: skip


def test_stopped_processes_go_on_by_turns_and_go_on_at_the_end(made: Any, child: Any) -> None:
    with condition(made, "stopped").around([child.pid]):
        for _ in range(2):
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            assert os.WIFCONTINUED(os.waitpid(child.pid, os.WCONTINUED)[1])
        os.waitpid(child.pid, os.WUNTRACED)
    child.stdin.close()
    assert child.wait(NOTHING_LEFT_WITHIN) == 0


def test_a_quota_is_a_cgroup_for_each_process_which_is_gone_afterwards(made: Any, child: Any) -> None:
    quota = condition(made, "quota")
    cgroup = made.find_cgroup()
    with quota.around([child.pid]):
        [folder] = cgroup.folder.glob(f"intervalq-busy-{os.getpid()}-*")
        assert (folder / "cgroup.procs").read_text().split() == [str(child.pid)]
        assert [(folder / name).read_text().strip() for name, _ in cgroup.limit] == [
            text for _, text in cgroup.limit
        ]
    assert child.poll() is None
    assert not folder.exists()


def test_a_machine_without_a_cpu_controller_says_so_and_keeps_no_folder(made: Any, tmp_path: Path) -> None:
    assert "no cpu controller" in made.find_cgroup(tmp_path / "none")
    (tmp_path / "cgroup.procs").touch()
    assert "no cgroup can be made" in made.find_cgroup(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.procs"]


def test_one_kind_of_quota_leaves_out_the_other(made: Any) -> None:
    some, missing = made.conditions(made.NAMES, "stop")
    assert [each.name for each in some] == ["quiet", "pressed", "stopped"]
    assert missing == {"quota": "left out by --quota stop"}
    some, missing = made.conditions(made.NAMES, "cgroup")
    assert "stopped" not in [each.name for each in some]
    assert missing["stopped"] == "left out by --quota cgroup"
    assert made.conditions(["quiet"], None)[1] == {}


HOLD = """
import os, signal, subprocess, sys
import _conditions
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
pids = [child.pid, *map(int, sys.argv[2:])]
[condition], _ = _conditions.conditions([sys.argv[1]], None)
with condition.around(pids):
    if condition.name == "stopped":
        os.waitpid(child.pid, os.WUNTRACED)
    print("made", flush=True)
    sys.stdin.read()
"""


def maker_of(name: str, *pids: int) -> subprocess.Popen[str]:
    """A process that creates a condition for a process of its own and for others."""
    maker = subprocess.Popen(
        [sys.executable, "-c", HOLD, name, *map(str, pids)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        text=True,
    )
    assert maker.stdout is not None
    assert maker.stdout.readline() == "made\n"
    return maker


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("name", ["pressed", "quota", "stopped"])
def test_a_condition_ends_with_its_maker(made: Any, name: str, sign: signal.Signals) -> None:
    condition(made, name)
    maker = maker_of(name)
    maker.send_signal(sign)
    # Everything that it started shares its standard error, which closes when the last of them has ended.
    _, output = maker.communicate(timeout=NOTHING_LEFT_WITHIN)
    assert maker.returncode in (-sign, 143), output
    if name == "quota":
        assert not list(made.find_cgroup().folder.glob(f"intervalq-busy-{maker.pid}-*"))


def test_cgroups_of_a_killed_maker_go_one_by_one_as_their_processes_end(made: Any, child: Any) -> None:
    condition(made, "quota")
    maker = maker_of("quota", child.pid)
    first, second = sorted(made.find_cgroup().folder.glob(f"intervalq-busy-{maker.pid}-*"))
    maker.kill()
    while first.exists():
        pass
    assert second.exists()
    child.stdin.close()
    maker.communicate(timeout=NOTHING_LEFT_WITHIN)
    assert not second.exists()


# --- the proxy ---------------------------------------------------------------------------------------------


def test_what_goes_through_the_proxy_arrives_whole_and_in_order(redis_url: str) -> None:
    farther = importlib.import_module("_proxy").farther
    value = b"".join(b"%07d\n" % number for number in range(200_000))
    with farther(redis_url, 0.001) as url:
        assert url != redis_url
        client = servers.redis_client(url)
        client.set("benchmarks-busy", value)
        assert client.getdel("benchmarks-busy") == value
        client.close()


# --- figures -----------------------------------------------------------------------------------------------


def piece(busy: Any, case: str, peer: str) -> Any:
    return busy.Piece(case, peer, peer, lambda _: {}, None, 1.0)


def test_a_line_has_medians_and_what_it_is_beside_another_contender(busy: Any) -> None:
    pieces = tuple(piece(busy, case, peer) for case in ("a", "b") for peer in ("run", "slots"))
    question = busy.Question("half", "", (), pieces, busy.beside("slots", "wait"))
    found = [
        {"case": "a", "peer": "run", "wait": 8.0},
        {"case": "a", "peer": "slots", "wait": 2.0},
        {"case": "b", "peer": "run", "wait": 5.0},
        {"case": "b", "peer": "slots", "missing": "it is gone"},
        {"case": "a", "peer": "run", "wait": 100.0},
        {"case": "a", "peer": "run", "wait": 10.0},
    ]
    lines = busy.lines(question, found)
    assert [(line["case"], line["peer"], line["wait"]) for line in lines] == [
        ("a", "run", 10.0),
        ("a", "slots", 2.0),
        ("b", "run", 5.0),
    ]
    assert lines[0]["wait_ratio"] == 5
    assert math.isnan(lines[1]["wait_ratio"])
    assert math.isnan(lines[2]["wait_ratio"])


def test_fewer_starts_at_a_higher_rate_are_flagged_beside_the_same_contender_only(busy: Any) -> None:
    rows = [
        {"case": f"{setting}@{rate}", "peer": peer, "per_s": per_s}
        for setting, peer, rate, per_s in [
            ("one", "run", 1, 1000), ("one", "run", 2, 951), ("one", "run", 3, 949), ("one", "run", 4, 1100),
            ("one", "run", 5, 1000), ("one", "slots", 1, 500), ("four", "run", 1, 400),
        ]
    ]  # fmt: skip
    busy.falling(lambda row: row["case"].partition("@")[0])(rows)
    assert [bool(row["falls"]) for row in rows] == [False, False, True, False, True, False, False]


def test_a_setting_is_not_held_against_another_one() -> None:
    high = importlib.import_module("_busy_pacing").high(1.0)
    rows = [
        {"case": piece.case, "peer": piece.peer, "per_s": 10.0 if "memory" in piece.case else 1_000.0}
        for piece in high.pieces
    ]
    high.beside(rows)
    assert len({(row["case"], row["peer"]) for row in rows}) == len(rows) == 25
    assert not any(row["falls"] for row in rows)


def test_a_lone_caller_whose_calls_did_not_begin_has_no_quantiles() -> None:
    figures = importlib.import_module("_busy_calls").lone_figures
    row = figures({"waits": [float(us) for us in range(1, 101)], "naives": [2.0, 3.0], "unbegun": 1})
    assert (row["calls"], row["unbegun"]) == (100, 1)
    assert (row["wait_p50"], row["wait_p99"], row["wait_max"], row["p99_ratio"]) == (50, 99, 100, 33)
    row = figures({"waits": [], "naives": [2.0], "unbegun": 2})
    assert (row["calls"], row["unbegun"]) == (0, 2)
    assert math.isnan(row["wait_max"])
    assert math.isnan(row["p99_ratio"])


def test_tasks_are_judged_from_the_first_start_to_the_last() -> None:
    figures = importlib.import_module("_busy_calls").tasks_figures
    row = figures([at * 10 * MS for at in (5, 6, 7, 7.5, 9)], 0.01)
    assert (row["jobs"], row["pace"], row["short"], row["gap_p50"]) == (5, 1, 0.25, 1)


# --- the command -------------------------------------------------------------------------------------------


def command(*options: str) -> list[str]:
    return [sys.executable, str(BENCHMARKS / "busy.py"), "--quick", *options]


@pytest.mark.parametrize(
    ("question", "rows", "figures"),
    [
        ("pacing", "limit 100/s: queue.run", ["rate", "short", "store_calls", "client_us"]),
        ("half", "hand-written", ["rate", "wait_p50", "wait_p99"]),
        ("lone", "memory, interval 10 ms", ["calls", "unbegun", "wait_p99", "naive_p99"]),
        ("high", "memory, 1 process, 64 callers each, limit 1000/s", ["rate", "per_s", "client_us"]),
        ("tasks", "queue in postgres", ["pace", "short", "gap_p99"]),
        ("flood", "64 waiters: floor", ["jobs_per_s", "store_calls", "client_us"]),
        ("far", "queue.run", ["rate", "fairness", "store_calls"]),
        ("keyed", "queues", ["began", "timeouts", "errors", "unbegun", "took"]),
    ],
)
def test_each_question_gives_a_row_beside_the_timers(
    question: str, rows: str, figures: list[str], tmp_path: Path, postgres_url: str
) -> None:
    file = tmp_path / "rows.json"
    options = ["--only", question, "--rows", rows, "--conditions", "stopped", "--json", str(file)]
    done = subprocess.run(command(*options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(file.read_text())["rows"]
    assert "missing" not in row, row
    assert (row["question"], row["condition"]) == (question, "stopped")
    assert row["timer_p50"] > 0
    assert row["label"] in done.stdout
    names = {column.name for column in importlib.import_module("busy").QUESTIONS[question][0](1.0).columns}
    assert names >= {*figures}
    assert row.keys() >= {*figures}


def test_what_does_not_exist_is_refused() -> None:
    for options, reported in (
        (["--only", "pacign"], "pacign is none of pacing"),
        (["--conditions", "calm"], "calm is none of quiet"),
        (["--rows", "nowhere"], "nothing to do"),
    ):
        done = subprocess.run(command(*options), capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert reported in done.stderr


def test_an_interrupt_ends_the_command_and_writes_what_was_found(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ["--only", "lone", "--rows", "memory, interval 10", "--conditions", "pressed,stopped"]
    running = subprocess.Popen(
        command(*options, "--json", str(file)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    while not running.stderr.readline().startswith("[2/2]"):
        pass
    running.send_signal(signal.SIGINT)
    _, output = running.communicate(timeout=NOTHING_LEFT_WITHIN)
    assert (running.returncode, output) == (130, "interrupted\n")
    assert [row["condition"] for row in json.loads(file.read_text())["rows"]] == ["pressed"]
