"""The protocol, exhaustively: every interleaving keeps every promise, and planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from model.parts import NO_BUGS
from model.planted import PLANTED
from model.scope import SCOPES
from model.search import Result, search
from model.shown import story
from model_check import NUMBERS, main

pytestmark = pytest.mark.timeout(900)  # the first test waits until all searches are done


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.fixture(scope="module")
def results(pool: ProcessPoolExecutor) -> dict[str, Future[Result]]:
    """All searches run at once, the largest first."""
    return {name: pool.submit(search, SCOPES[name]) for name in SCOPES}


@pytest.mark.parametrize("name", SCOPES)
def test_every_interleaving_keeps_every_promise(name: str, results: dict[str, Future[Result]]) -> None:
    result = results[name].result()
    assert not result.broken, "\n".join(["", *story(result)])
    assert result.complete
    assert result.begins > 100, "too little begins to show anything"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = PLANTED[name]
    with bug.rules():
        result = search(bug.bound(), bug.shard)
    assert result.broken, bug.what
    assert result.trace


def test_enough_bugs_are_planted_and_each_says_what_it_is() -> None:
    assert len(PLANTED) >= 20
    assert all(bug.what.endswith(".") and bug.scope in SCOPES for bug in PLANTED.values())


def test_shards_have_no_names() -> None:
    """Twice as many shards, half of which have crashed, have no more states than half as many shards."""
    few = search(replace(SCOPES["calm"], shards=1, tickets=3))
    more = search(replace(SCOPES["calm"], shards=2, tickets=3))
    apart = few.states**2
    assert few.complete
    assert more.complete
    assert few.states < more.states < apart


def test_a_counterexample_is_told_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bug", "slots-crowd"]) == 1
    shown = capsys.readouterr().out
    assert "A begins slot 1 (at 0)" in shown
    assert "broken: a job begins" in shown


def test_the_command_line_sums_up_and_takes_a_bound_for_each_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--scope", "calm", "--shards", "2", "--tickets", "2"]) == 0
    assert "all promises" in capsys.readouterr().out
    assert main(["--scope", "calm", "--most", "100"]) == 0
    assert "stopped" in capsys.readouterr().out
    assert all(hasattr(SCOPES["calm"], name) for name in NUMBERS)


def test_a_search_that_was_cut_short_claims_nothing() -> None:
    result = search(SCOPES["calm"], NO_BUGS, most=50)
    assert not result.complete
    assert not result.broken
