"""Simulated workers: every task is committed once, whatever goes wrong, and planted bugs are found."""

from __future__ import annotations

import os
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tasks.planted_task_bugs import BUGS, planted
from tasks.simulated_mixes import MIXES
from tasks.simulated_workers import Run, simulate

SCHEDULES = int(os.environ.get("INTERVALQ_TEST_TASK_SCHEDULES", "2"))
"""Schedules of each mix; as many as each run has time for."""

CHUNK = 2
PLANTED = 60
"""A planted bug must be found within this many schedules."""


def several(mix: str, seeds: range) -> list[tuple[int, Run]]:
    return [(seed, simulate(mix, seed)) for seed in seeds]


def found(name: str) -> list[str]:
    """The message that revealed a planted bug; the seed that found it first is tried before all others."""
    mix, first, _ = BUGS[name]
    with planted(name):
        for seed in (first, *range(PLANTED)):
            run = simulate(mix, seed)
            if run.violations:
                return run.violations
    return []


@pytest.fixture(scope="module")
def pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))


@pytest.fixture(scope="module", autouse=True)
def _ended(pool: ProcessPoolExecutor) -> object:
    yield
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def schedules(pool: ProcessPoolExecutor) -> dict[str, list[Future[list[tuple[int, Run]]]]]:
    """All schedules run at once, so that no processor waits for the last one of a mix."""
    chunks = [range(first, min(first + CHUNK, SCHEDULES)) for first in range(0, SCHEDULES, CHUNK)]
    return {mix: [pool.submit(several, mix, chunk) for chunk in chunks] for mix in MIXES}


@pytest.mark.parametrize("mix", MIXES)
def test_every_task_is_committed_once(
    mix: str, schedules: dict[str, list[Future[list[tuple[int, Run]]]]]
) -> None:
    runs = [run for part in schedules[mix] for run in part.result()]
    for seed, run in runs:
        last = "\n".join(line[:300] for line in run.lines[-40:])
        again = f"python tests/tasks/simulated_workers.py {mix} {seed}"
        assert not run.violations, f"{last}\n{run.violations}\n{again}"
    assert sum(run.done for _, run in runs) > 30 * SCHEDULES, "the schedules do too little to show anything"
    if mix != "calm" and not MIXES[mix].user_processes:
        assert sum(run.runs for _, run in runs) > sum(run.done for _, run in runs), "nothing went wrong"


@pytest.mark.parametrize(
    ("mix", "seed"),
    [
        ("patient", 110),
        ("patient", 185),
        ("lone-chunks", 5),
        ("users", 13),
        ("operators-lossy", 19),
        ("chunks-lossy", 54),
    ],
)
def test_schedules_that_failed_once_pass(mix: str, seed: int, pool: ProcessPoolExecutor) -> None:
    """What failed.

    A claim counted as begun while it waited: for a task that was to run alone, or for a full chunk. A task
    was settled for the session of an earlier claim. A judge took a request for one that should report starts.
    A chunk was cancelled while it settled its last claim, because the others were lost.
    """
    assert pool.submit(simulate, mix, seed).result().violations == []


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, pool: ProcessPoolExecutor) -> None:
    assert pool.submit(found, name).result(), f"{name} was not found within {PLANTED} schedules"


def test_the_same_seed_gives_the_same_run() -> None:
    one, two = simulate("all", 3), simulate("all", 3)
    assert one.lines == two.lines
    assert len(one.lines) > 100
