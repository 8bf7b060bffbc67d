"""Real workers on real databases, killed and stopped: no task is lost or doubled; and it would show."""

from __future__ import annotations

import pytest

import servers
from faults import task_storm
from faults.needs import need_server
from faults.task_storm import TARGETS, Storm


def storm(store: str, mode: str = "commit", seconds: float = 10) -> Storm:
    try:
        return task_storm.run(store, seconds, every=0.7, seed=7, mode=mode, least=8)
    except servers.NotInstalledError as error:
        need_server(error)
        raise


@pytest.mark.parametrize("store", TARGETS)
def test_every_task_is_committed_once(store: str) -> None:
    seen = storm(store)
    assert not seen.lost
    assert not seen.doubled
    assert seen.left == 0
    assert seen.faults.total() >= 8
    assert seen.inserted > 100
    assert seen.again > 3, "claims were lost, and others did the work"


def test_without_the_guard_it_shows_doubles() -> None:
    seen = storm("postgres", "unguarded")
    assert seen.doubled
    assert not seen.lost
