"""Workers on keys of a NATS, killed like their server: ended tasks stay ended, or it would be seen."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

import servers
from faults import token_storm
from faults.needs import need_server
from faults.token_storm import Seen


@pytest.fixture(scope="module")
def storms() -> Iterator[dict[str, Future[Seen]]]:
    """Both run at the same time, because each of them mostly waits."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            mode: pool.submit(token_storm.run, 5, every=0.8, least=4, workers=3, seed=5, mode=mode)
            for mode in ("careful", "careless")
        }


def seen_in(storms: dict[str, Future[Seen]], mode: str) -> Seen:
    try:
        return storms[mode].result()
    except servers.NotInstalledError as error:
        need_server(error)
        raise


def test_never_two_workers_on_a_key_and_none_is_lost(storms: dict[str, Future[Seen]]) -> None:
    seen = seen_in(storms, "careful")
    assert seen.overlaps == []
    assert seen.disorder == []
    assert seen.left == 0, "nothing more was done in minutes"
    assert seen.lost == []
    assert seen.faults["worker killed"] >= 3
    assert seen.inserted > 50
    assert seen.again > 0, "tasks of killed workers were done by others"


KILLED: Final = [(3, "2m"), (3, "always"), (1, "2m"), (1, "always")]
"""Replicas of the stream, and how often its servers write to the disk."""


@pytest.fixture(scope="module")
def killed() -> Iterator[dict[tuple[int, str], Future[Seen]]]:
    """Two run at a time: they mostly wait for elections and restarts."""
    with ThreadPoolExecutor(2) as pool:
        yield {
            (replicas, sync): pool.submit(
                token_storm.run, 6, every=0.8, least=5, seed=4, restarts=True, replicas=replicas, sync=sync
            )
            for replicas, sync in KILLED
        }


@pytest.mark.parametrize(("replicas", "sync"), KILLED)
def test_what_ended_stays_ended_when_the_server_is_killed(
    killed: dict[tuple[int, str], Future[Seen]], replicas: int, sync: str
) -> None:
    """With three replicas, the killed server is the stream's leader."""
    try:
        seen = killed[replicas, sync].result()
    except servers.NotInstalledError as error:
        need_server(error)
        raise
    assert seen.returned == []
    assert seen.overlaps == []
    assert seen.twice == []
    assert seen.disorder == []
    assert seen.left == 0, "nothing more was done in minutes"
    assert seen.lost == []
    assert seen.faults["server killed"] > 0
    assert seen.acknowledged >= (10 if replicas == 1 else 1), "too few to tell anything"


def test_without_care_it_shows_two_on_a_key(storms: dict[str, Future[Seen]]) -> None:
    assert seen_in(storms, "careless").overlaps


@pytest.mark.parametrize(
    ("ledger", "found"),
    [
        ("begin k 0 1|end k 0 1|begin k 1 2|end k 1 2", ""),
        ("begin k 0 1|kill 1|begin k 0 2|end k 0 2|begin k 1 2|end k 1 2", ""),
        ("begin k 0 1|begin k 0 2|end k 0 1|end k 0 2|begin k 1 2|end k 1 2", "overlaps"),
        ("begin k 0 1|kill 2|begin k 1 2|end k 0 1|end k 1 2", "overlaps"),
        ("begin k 0 1 3|begin k 1 2 4.5|end k 1 2 4.6|alive - 0 1 5|stop k 0 1 5|end k 0 2 5", ""),
        ("begin k 0 1 4.4|begin k 1 2 4.5|end k 1 2 4.6|alive - 0 1 4.52|end k 0 1 5", "overlaps"),
        ("begin k 0 1 3|begin k 1 2 4.5|kill 1 5|end k 1 2 5|begin k 0 2 6|end k 0 2 6", "disorder"),
        ("begin k 1 1|end k 1 1|begin k 0 1|end k 0 1", "disorder"),
        ("begin k 0 1|end k 0 1|begin k 1 1|stop k 1 1", "lost"),
        ("begin k 0 1|end k 0 1|acked k 0 1|server -|begin k 1 2|end k 1 2|acked k 1 2", ""),
        ("begin k 0 1|end k 0 1|server -|begin k 0 1|end k 0 1|acked k 0 1|begin k 1 2|end k 1 2", ""),
        (
            "begin k 0 1|server -|begin k 0 2|server +|end k 0 1|acked k 0 2|end k 0 2|begin k 1 2|end k 1 2",
            "",
        ),
        ("server -|begin k 0 1|server +|begin k 0 2|end k 0 1|acked k 0 2|begin k 1 2|end k 1 2", "overlaps"),
        ("server -|server +|begin k 0 1|begin k 0 2|end k 0 1|end k 0 2|begin k 1 2|end k 1 2", "overlaps"),
        ("begin k 0 1|server -|begin k 0 2|acked k 0 1|acked k 0 2|end k 0 2|begin k 1 2|end k 1 2", "twice"),
        (
            "begin - 0 1|end - 0 1|acked - 0 1|server -|begin - 0 2|end - 0 2|begin - 1 1|end - 1 1",
            "returned",
        ),
    ],
)
def test_the_judge(ledger: str, found: str) -> None:
    seen = Seen(inserted=2)
    token_storm.judge(seen, ledger.split("|"))
    assert seen.broken == bool(found)
    assert [
        name for name in ("overlaps", "twice", "disorder", "returned", "lost") if getattr(seen, name)
    ] == found.split()
