"""How the benchmarks compute the figures of their tables from recorded starts."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SECOND = 1_000_000_000
MS = 1_000_000


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def judge() -> Any:
    return importlib.import_module("_judge")


@pytest.fixture
def fleet() -> Any:
    return importlib.import_module("_fleet")


def even(judge: Any, count: int, *, every: int = 10 * MS, processes: int = 1) -> list[Any]:
    return [
        judge.Start(at * every, at * every - MS, ticket=at + 1, late=at * 1_000, process=at % processes)
        for at in range(count)
    ]


def test_even_starts_at_the_limit_have_the_rate_one_and_no_short_gaps(judge: Any) -> None:
    row = judge.judge(even(judge, 100, processes=4), judge.Window(0, SECOND), 0.01, 4)
    assert row["jobs"] == 100
    assert (row["rate"], row["pace"], row["fairness"]) == (1, 1, 1)
    assert (row["short"], row["very_short"], row["ticket_inversions"], row["ask_inversions"]) == (0, 0, 0, 0)
    assert (row["gap_min"], row["gap_p1"], row["gap_p50"], row["gap_p99"]) == (1, 1, 1, 1)
    assert (row["late_p50"], row["late_p99"], row["late_max"]) == (49, 98, 99)
    assert (row["wait_p50"], row["most_100ms"]) == (1, 10)


def test_starts_outside_of_the_window_dont_count(judge: Any) -> None:
    starts = even(judge, 100)
    row = judge.judge(starts, judge.Window(200 * MS, 700 * MS), 0.01, 1)
    assert row["jobs"] == 50  # the one at its beginning, but not the one at its end
    assert row["rate"] == 1
    half = judge.judge(starts, judge.Window(0, 2 * SECOND), 0.01, 1)
    assert half["rate"] == 0.5
    assert half["pace"] == 1  # from the first to the last


def test_a_limit_that_is_passed_shows_as_a_rate_over_one(judge: Any) -> None:
    row = judge.judge(even(judge, 112, every=9 * MS), judge.Window(0, 1_008 * MS), 0.01, 1)
    assert row["pace"] == pytest.approx(10 / 9)
    assert row["rate"] == pytest.approx(10 / 9)


def test_gaps_are_short_under_nine_tenths_and_very_short_under_half(judge: Any) -> None:
    instants = [0, 10, 19, 27.9, 32.9, 37.8, 48]  # gaps of 10, 9, 8.9, 5, 4.9 and 10.2 ms
    starts = [judge.Start(round(at * MS), 0) for at in instants]
    row = judge.judge(starts, judge.Window(0, SECOND), 0.01, 1)
    assert row["short"] == 3 / 6
    assert row["very_short"] == 1 / 6
    assert row["gap_min"] == pytest.approx(0.49)


def test_starts_are_put_in_order_before_they_are_judged(judge: Any) -> None:
    starts = even(judge, 10)
    assert judge.judge(starts[::-1], judge.Window(0, SECOND), 0.01, 1) == judge.judge(
        starts, judge.Window(0, SECOND), 0.01, 1
    )


def test_neighbours_the_wrong_way_round_are_counted(judge: Any) -> None:
    assert judge.inversions([1, 3, 2, 4, 5]) == 1 / 4
    assert judge.inversions([1, 1, 2]) == 0
    assert math.isnan(judge.inversions([None, None]))
    assert judge.inversions([2, None, 1, 0]) == 1


def test_a_short_gap_is_frozen_only_if_the_gap_of_the_last_checks_was_long_enough(judge: Any) -> None:
    on_time = judge.Start(10 * MS, 0, checked=10 * MS)
    stood = judge.Start(5 * MS, 0, checked=0)  # checked at 0, and began 5 ms later
    too_soon = judge.Start(15 * MS, 0, checked=15 * MS)
    assert judge.frozen([stood, on_time], 0.01) == 1
    assert judge.frozen([on_time, too_soon], 0.01) == 0
    assert judge.frozen([judge.Start(0, 0), judge.Start(1, 0)], 0.01) is None


def test_fairness_is_the_least_share_of_a_fair_share(judge: Any) -> None:
    starts = [judge.Start(at, 0, process=process) for at, process in enumerate([0, 0, 0, 1])]
    assert judge.fairness(starts, 2) == 0.5
    assert judge.fairness(starts, 3) == 0  # the third had none


def test_most_in_a_stretch_looks_at_every_stretch(judge: Any) -> None:
    instants = [0, 90, 95, 99, 150, 189, 400]
    starts = [judge.Start(at * MS, 0) for at in instants]
    assert judge.most_in(starts, 0.1) == 5


def test_quantiles_are_values_that_were_measured(judge: Any) -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [judge.quantile(values, share) for share in (0, 0.01, 0.5, 0.99, 1)] == [1, 1, 3, 5, 5]
    assert math.isnan(judge.quantile([], 0.5))


def test_nothing_recorded_gives_a_row_without_figures(judge: Any) -> None:
    row = judge.judge([], judge.Window(0, SECOND), 0.01, 2)
    assert (row["jobs"], row["rate"]) == (0, 0)
    assert math.isnan(row["short"])
    assert math.isnan(row["fairness"])


def test_medians_leave_out_what_is_not_known(judge: Any) -> None:
    rows = [{"a": 1, "b": math.nan, "c": "x"}, {"a": 5, "b": 2.0, "c": "x"}, {"a": 3, "b": 4.0, "c": "x"}]
    assert judge.medians(rows) == {"a": 3, "b": 3.0, "c": "x"}


def test_a_ratio_to_a_baseline_without_any_is_infinite_or_none(judge: Any) -> None:
    assert judge.ratio(3, 2) == 1.5
    assert judge.ratio(1, 0) == math.inf
    assert math.isnan(judge.ratio(0, 0))


ECHO = """
import json, sys, time
work = json.loads(sys.argv[1])
print("ready", flush=True)
begin = int(sys.stdin.readline())
if work["do"] == "fail":
    sys.exit("no such luck")
print(json.dumps({"index": work["index"], "begin": begin}), flush=True)
sys.stdin.read()
"""


def test_workers_begin_together_and_give_their_results_in_order(fleet: Any, tmp_path: Path) -> None:
    works = [{"index": index, "do": "echo"} for index in range(3)]
    with fleet.Fleet([sys.executable, "-c", ECHO], works, folder=tmp_path) as workers:
        processes = [worker for worker, _ in workers._workers]
        workers.begin(42)
        results = workers.results(time.monotonic_ns())
    assert results == [{"index": index, "begin": 42} for index in range(3)]
    assert all(process.returncode is not None for process in processes)


def test_a_worker_that_fails_is_heard_and_none_is_left(fleet: Any, tmp_path: Path) -> None:
    works = [{"index": 0, "do": "echo"}, {"index": 1, "do": "fail"}]
    with fleet.Fleet([sys.executable, "-c", ECHO], works, folder=tmp_path) as workers:
        processes = [worker for worker, _ in workers._workers]
        workers.begin(42)
        with pytest.raises(fleet.WorkerError, match="worker 1 ended: no such luck"):
            workers.results(time.monotonic_ns())
    assert all(process.returncode is not None for process in processes)


def test_one_worker_runs_intervalq_and_the_baseline_from_end_to_end() -> None:
    code = (
        "import json, _run, peers, peers.base as base\n"
        "ways = [peers.Peer('ours', '', f'ours:{way}', '') for way in ('Ours', 'Run', 'Add')]\n"
        "for peer, url in ((peers.TIMER, ''), *((way, 'memory://') for way in ways)):\n"
        "    work = base.Work(task='pace', place=peer.place, url=url, interval=0.01, processes=1, index=0,\n"
        "                     callers=1, settle=0.1, seconds=0.5)\n"
        "    found = _run.run(peer, [work])\n"
        "    print(json.dumps([found.window.seconds, found.results]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=BENCHMARKS,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        seconds, [result] = json.loads(line)
        assert seconds == 0.5
        tickets = [ticket for _, _, ticket, _, _ in result["starts"]]
        assert tickets == sorted(set(tickets))
        assert tickets
        assert result["cpu"] > 0
    assert len(done.stdout.splitlines()) == 4
