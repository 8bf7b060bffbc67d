"""Shards near their store and shards far from it share the pace of one queue."""

from __future__ import annotations

import logging
from itertools import pairwise

import anyio
import pytest

from intervalq import IntervalQueue, QueueState
from intervalq._shard import warnings
from intervalq.testing import virtual_time
from virtual_store import FarStore

INTERVAL = 0.02
SECONDS = 6


def together(*, strict: bool) -> tuple[list[tuple[float, int]], list[QueueState]]:
    """The starts of four near shards and of four that are 20 to 40 ms away, and the state of one of each."""
    starts: list[tuple[float, int]] = []
    states: list[QueueState] = []

    async def scenario() -> None:
        near = FarStore(delay=0.0005)
        far = FarStore(near.behind, delay=0.02, seed=1)
        stores = [near, far] * 4
        queues = [IntervalQueue("q", interval=INTERVAL, store=store, strict=strict) for store in stores]

        async def caller(queue: IntervalQueue) -> None:
            while anyio.current_time() < end:
                async with queue.slot() as slot:
                    starts.append((anyio.current_time(), slot.ticket))

        end = anyio.current_time() + SECONDS
        async with anyio.create_task_group() as group:
            for queue in queues:
                for _ in range(3):
                    group.start_soon(caller, queue)
        states.extend([await queue.inspect() for queue in queues[:2]])

    virtual_time(scenario)
    return starts[10:], states


def short(starts: list[tuple[float, int]]) -> int:
    return sum(later[0] - earlier[0] < 0.9 * INTERVAL - 1e-6 for earlier, later in pairwise(starts))


def inversions(starts: list[tuple[float, int]]) -> int:
    return sum(later[1] < earlier[1] for earlier, later in pairwise(starts))


def test_far_shards_begin_at_the_middle_of_what_is_possible() -> None:
    """So near and far shards' starts are evenly spaced; with `strict`, far shards begin late."""
    starts, _ = together(strict=False)
    assert len(starts) > 0.85 * SECONDS / INTERVAL
    assert short(starts) <= len(starts) // 100
    assert inversions(starts) == 0
    strictly, _ = together(strict=True)
    assert short(strictly) > len(strictly) // 30


def test_near_shards_know_what_far_ones_can_be_wrong_about() -> None:
    """The guaranteed spacing is that of the whole queue, whichever handle is asked."""
    _, (near, far) = together(strict=False)
    assert 0 <= near.spacing < 0.9 * INTERVAL
    assert abs(near.spacing - far.spacing) < 0.005
    assert near.expected_spacing >= near.spacing


@pytest.mark.parametrize(("delay", "warned"), [(0.02, 1), (0.0011, 0)])
def test_a_store_that_is_too_far_away_is_warned_of_once(
    delay: float, warned: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning has the guaranteed and the requested spacing; there is none if they differ by under 1 %."""
    monkeypatch.setattr(warnings, "_warned", set())

    async def scenario() -> None:
        queue = IntervalQueue("q", interval=INTERVAL, store=FarStore(delay=delay), strict=True)
        for _ in range(30):
            async with queue.slot():
                pass
        await queue.close()

    with caplog.at_level(logging.WARNING, "intervalq"):
        virtual_time(scenario)
    reported = [record.getMessage() for record in caplog.records if "too far away" in record.getMessage()]
    assert len(reported) == warned
    assert all("instead of 18ms" in text for text in reported)
