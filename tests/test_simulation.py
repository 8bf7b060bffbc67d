"""Simulated schedules: every mix keeps every promise, planted bugs are found, and fixed ones stay fixed."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from planted import bugs
from planted.bugs import BUGS, planted
from simulation import MIXES, simulate
from simulation.__main__ import main
from simulation.many import Tally, several

pytestmark = pytest.mark.timeout(900)  # the first test waits until all searches are done

ASKED = os.environ.get("INTERVALQ_TEST_SCHEDULES", "")
FEW: dict[str, int] = (
    dict.fromkeys(
        (
            "regulars",
            "crowd",
            "windows",
            "settled",
            "budgets",
            "deadlines",
            "drowsy",
            "blocked",
            "exact",
            "debts",
            "returns",
            "brisk",
            "lags",
            "handed",
            "local",
            "far",
            "rows",
            "joins",
            "hurry",
            "threads",
        ),
        8,
    )
    | dict.fromkeys(("callers", "stepped", "tight", "reclaims", "backlog", "shut"), 12)
    | {"swift": 16, "shaky": 40}
)
SCHEDULES = {mix: int(ASKED or FEW.get(mix, 20)) for mix in MIXES}
"""Schedules of each mix, fewer of those that take long; the campaign has run many more."""

CHUNK = 50
PLANTED = 1_000
"""A planted bug must be found within this number of schedules."""

ORDER = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
"""The order of sets in another process; it is a random one here, unless the environment says which."""

REGRESSIONS = Path(__file__).with_name("simulation_regressions.txt")


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Suppress the warnings that simulated faults cause, including those of garbage collection."""
    logger = logging.getLogger("intervalq")
    logger.disabled = True
    yield
    gc.collect()
    logger.disabled = False


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.fixture(scope="module")
def schedules(pool: ProcessPoolExecutor) -> dict[str, list[Future[Tally]]]:
    """All schedules run at once, so that no processor waits for the last one of a mix."""
    return {
        mix: [pool.submit(several, mix, chunk) for chunk in chunks(count)] for mix, count in SCHEDULES.items()
    }


def chunks(count: int) -> list[range]:
    return [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]


def explained(tally: Tally) -> str:
    """What to read, and which command to run, when a schedule fails."""
    lines = []
    for run in tally.broken[:2]:
        lines += ["", *run.lines[-40:], *(f"broken: {violation}" for violation in run.violations)]
        lines.append(f"python tests/simulation --mix {run.mix} --seed {run.seed} --trace")
    return "\n".join(lines)


@pytest.mark.parametrize("mix", MIXES)
def test_every_promise_is_kept_in_every_schedule(mix: str, schedules: dict[str, list[Future[Tally]]]) -> None:
    tally = Tally(mix)
    for part in schedules[mix]:
        tally.merge(part.result())
    assert not tally.broken, explained(tally)
    assert tally.schedules == SCHEDULES[mix]
    assert tally.starts > 3 * SCHEDULES[mix], "the schedules start too little to show anything"


def test_the_queue_keeps_its_rate_when_nothing_goes_wrong(schedules: dict[str, list[Future[Tally]]]) -> None:
    tally = Tally("calm")
    for part in schedules["calm"]:
        tally.merge(part.result())
    assert tally.rate > 0.9
    assert tally.calls_a_job < 4


@pytest.mark.parametrize(
    ("mix", "questions", "slots", "seconds", "steps"),
    [
        ("callers", 2.0, 1.02, 4.0, 25),
        ("swift", 2.4, 9.5, 0.02, 32),
        ("backlog", 1.7, 1.1, 4.2, 25),
        ("crowd", 1.0, 2.0, 0.4, 15),
    ],
)
def test_no_job_is_dear_or_late_when_nothing_goes_wrong(
    mix: str,
    questions: float,
    slots: float,
    seconds: float,
    steps: int,
    schedules: dict[str, list[Future[Tally]]],
) -> None:
    """The cost of a job: questions to the store, slots that stay empty while it waits, time, and steps."""
    tally = Tally(mix)
    for part in schedules[mix]:
        tally.merge(part.result())
    assert tally.calls_a_job < questions
    assert 1 / tally.rate < slots
    assert tally.wait < seconds
    assert tally.steps_a_job < steps


@pytest.mark.parametrize("mix", ["late", "taken", "interrupted"])
def test_many_slots_are_granted_late(mix: str, schedules: dict[str, list[Future[Tally]]]) -> None:
    tally = Tally(mix)
    for part in schedules[mix]:
        tally.merge(part.result())
    assert tally.late > SCHEDULES[mix], "more than one a schedule"


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """The schedule is the one that found it first, or an early one if schedules are made differently now."""
    bug = BUGS[name]
    for seeds in (
        range(bug.seed, bug.seed + 1),
        *(range(first, first + 20) for first in range(0, PLANTED, 20)),
    ):
        if broken := several(bug.mix, seeds, planted=partial(planted, name)).broken:
            assert "TypeError(" not in str(broken[0].violations), "it no longer fits the code that it changes"
            break
    else:
        pytest.fail(f"{name} was not found in {PLANTED} schedules: {bug.what}")
    assert not several(bug.mix, seeds).broken, "what was found is not the planted bug"


def test_enough_bugs_are_planted_and_each_says_what_it_is() -> None:
    assert len(BUGS) >= 12
    assert all(bug.what and bug.mix in MIXES for bug in BUGS.values())
    table = bugs.__doc__ or ""
    assert [name for name in BUGS if name not in table] == []


@pytest.mark.parametrize(
    "line", [line for line in REGRESSIONS.read_text().splitlines() if line and not line.startswith("#")]
)
def test_schedules_that_failed_once_pass(line: str) -> None:
    mix, seed = line.split()[:2]
    run = simulate(mix, int(seed))
    assert not run.violations, "\n".join([*run.lines[-60:], *map(str, run.violations)])


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """What another process finds, where sets have another order, and where other runs go before."""
    program = (
        "from simulation import MIXES, simulate\n"
        "for mix in reversed(MIXES): print(mix, simulate(mix, 1, trace=True).digest)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": ORDER, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split() for line in found.stdout.splitlines())


@pytest.mark.parametrize("mix", MIXES)
def test_the_trace_depends_on_nothing_but_the_seed(mix: str, elsewhere: dict[str, str]) -> None:
    assert simulate(mix, 1, trace=True).digest == elsewhere[mix]


def test_another_seed_gives_another_trace(elsewhere: dict[str, str]) -> None:
    assert len(set(elsewhere.values())) == len(MIXES)
    assert simulate("calm", 0, trace=True).digest != elsewhere["calm"]


def test_the_command_line_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mix", "calm", "--schedules", "3", "--processes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "violations" in shown
    assert "3 schedules" in shown


def test_the_command_line_says_how_to_run_a_failure_again(capsys: pytest.CaptureFixture[str]) -> None:
    bug = BUGS["slots-crowd"]
    arguments = ["--mix", bug.mix, "--seed", str(bug.seed), "--processes", "1"]
    crowd = partial(planted, "slots-crowd")
    assert main(arguments, crowd) == 1
    shown = capsys.readouterr().out
    assert "broken: " in shown
    assert f"--mix {bug.mix} --seed {bug.seed} --trace" in shown
    assert main([*arguments, "--trace"], crowd) == 1
    assert "apart" in capsys.readouterr().out
