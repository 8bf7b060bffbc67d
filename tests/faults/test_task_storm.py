"""Real workers on real databases, killed and stopped: no task is lost or doubled, which would be detected."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import servers
from faults import task_storm
from faults.needs import need_server
from faults.task_storm import Storm
from faults.task_targets import TARGETS

Storms = dict[tuple[str, str], Future[Storm]]


@pytest.fixture(scope="module")
def storms() -> Iterator[Storms]:
    """All run at the same time, because each of them mostly waits."""
    kinds = [("postgres", "unguarded"), *((store, "commit") for store in TARGETS)]
    with ThreadPoolExecutor(len(kinds)) as pool:
        yield {kind: pool.submit(storm, *kind) for kind in kinds}


def storm(store: str, mode: str) -> Storm:
    return task_storm.run(store, 10, every=0.7, seed=7, mode=mode, least=8)


def seen_in(storms: Storms, store: str, mode: str = "commit") -> Storm:
    try:
        return storms[store, mode].result()
    except servers.NotInstalledError as error:
        need_server(error)
        raise


@pytest.mark.parametrize("store", TARGETS)
def test_every_task_is_committed_once(store: str, storms: Storms) -> None:
    seen = seen_in(storms, store)
    assert not seen.lost
    assert not seen.doubled
    assert seen.left == 0
    assert seen.faults.total() >= 8
    assert seen.inserted >= 50
    assert not seen.committed
    assert not seen.misreported
    assert not seen.untimely
    assert not seen.shared_fences
    assert min(len(seen.dead), seen.followed, seen.fences) > 0
    assert len(seen.cancelled) > 5
    assert seen.again > 0, "claims were lost, and others did the work"


def test_without_the_guard_it_shows_doubles(storms: Storms) -> None:
    seen = seen_in(storms, "postgres", "unguarded")
    assert seen.doubled
    assert not seen.lost
