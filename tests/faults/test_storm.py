"""Real shards on every real store, while both are killed, stopped and cut off; storms find planted bugs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

import servers
from faults.needs import need_server
from faults.storm import Plan, Storm, run
from faults.targets import TARGETS

SEED: Final = 20
"""The seed of the faults' kinds and times; where they hit depends on the machine."""

BROKEN: Final = Path(__file__).with_name("broken_shard.py")

Storms = dict[str, Future[Storm]]


@pytest.fixture(scope="module")
def storms() -> Iterator[Storms]:
    """All run at the same time, because each of them mostly waits."""
    with ThreadPoolExecutor(len(TARGETS)) as pool:
        yield {
            store: pool.submit(run, Plan(store=store, seconds=10, every=0.7, least=6, seed=SEED + number))
            for number, store in enumerate(TARGETS)
        }


@pytest.mark.parametrize("store", list(TARGETS))
def test_every_promise_holds_while_processes_and_servers_are_killed(store: str, storms: Storms) -> None:
    try:
        storm = storms[store].result()
    except servers.NotInstalledError as error:
        need_server(error)
    verdict = storm.verdict
    assert not verdict.broken
    assert verdict.unexplained == 0
    assert storm.faults.total() >= 6, "faults happened"
    assert len(storm.faults) >= 4, "of several kinds"
    assert verdict.starts >= 30, "and between them jobs began"
    assert storm.ended["returned"] >= 6, "and returned"


@pytest.mark.parametrize(
    ("bug", "crime"),
    [
        ("own-timer", "spacing"),
        ("own-timer", "record"),
        ("same-ticket", "slot"),
        ("waits-after-check", "check"),
        ("call-lost", "call"),
    ],
)
def test_a_planted_bug_is_convicted(bug: str, crime: str, trials: Storms) -> None:
    broken = trials[bug].result().verdict.broken
    assert [what for what in broken if what.startswith(f"{crime}:")]


@pytest.fixture(scope="module")
def trials() -> Iterator[Storms]:
    """Shards with bugs, on a store that loses nothing and without faults."""
    bugs = ["own-timer", "same-ticket", "waits-after-check", "call-lost"]
    with ThreadPoolExecutor(len(bugs)) as pool:
        yield {bug: pool.submit(run, _trial(bug)) for bug in bugs}


def _trial(bug: str) -> Plan:
    return Plan(
        store="json",
        seconds=3,
        calm=True,
        interval=0.05,
        script=BROKEN,
        more=("--bug", bug, "--patience", "3"),
    )


def test_a_storm_without_faults_needs_no_allowance_but_for_a_frozen_machine() -> None:
    storm = run(Plan(store="json", seconds=2, calm=True))
    verdict = storm.verdict
    assert not verdict.broken
    assert verdict.short == verdict.frozen + verdict.widened
    assert set(storm.ended) == {"returned"}
