"""How long does one step of each store take, one after the other? `pytest -n 0 benchmarks/micro`.

A round is ten steps, so that what it takes to enter the event loop doesn't count.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intervalq.rules import Advance, Settings, Slot
from intervalq.store import Store, open_store

sys.path.insert(0, str(Path(__file__).parent.parent))
from _store import KINDS, store_of

STEPS = 10
SETTINGS = Settings(1_000_000, burst=10_000_000)  # all the slots are in time
_names = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new store of each kind."""
    with store_of(request.param) as url:
        yield url


@pytest.fixture
def used(url: str) -> Iterator[tuple[asyncio.AbstractEventLoop, Store]]:
    """The store, and the event loop that it lives in."""
    store = open_store(url)
    with asyncio.Runner() as runner:
        yield runner.get_loop(), store
        runner.run(store.aclose())


@pytest.mark.parametrize("tickets", [1, 100])
def test_take_tickets(
    tickets: int,
    used: tuple[asyncio.AbstractEventLoop, Store],
    benchmark: Any,  # noqa: ANN401 - untyped fixture
) -> None:
    """Tickets for jobs that were added."""
    loop, store = used
    queue = f"take-{next(_names)}"

    async def steps() -> int:
        take = Advance(settings=SETTINGS, nonce="n", take=tickets)
        return sum([(await store.apply(queue, take)).count for _ in range(STEPS)])

    benchmark.extra_info["steps a round"] = STEPS
    assert benchmark(lambda: loop.run_until_complete(steps())) == STEPS * tickets


@pytest.mark.parametrize("tickets", [1, 100])
def test_use_slots_and_take_tickets(
    tickets: int,
    used: tuple[asyncio.AbstractEventLoop, Store],
    benchmark: Any,  # noqa: ANN401 - untyped fixture
) -> None:
    """What a busy shard requests: grants for these slots, and tickets for the next ones."""
    loop, store = used
    queue = f"use-{next(_names)}"
    take = Advance(settings=SETTINGS, nonce="n", take=tickets)
    slots: tuple[Slot, ...] = ()

    async def steps() -> int:
        nonlocal slots
        granted = 0
        for _ in range(STEPS):
            answer = await store.apply(queue, replace(take, generation="n", slots=slots))
            granted += len(answer.granted)
            slots = answer.taken
        return granted

    loop.run_until_complete(steps())
    benchmark.extra_info["steps a round"] = STEPS
    assert benchmark(lambda: loop.run_until_complete(steps())) == STEPS * tickets
