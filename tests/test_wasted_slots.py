"""Slots that pass because the process is busy with something else are counted, and logged."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import cast

import anyio
import pytest

from intervalq._shard import warnings
from intervalq.testing import virtual_time
from intervalq.testing.virtual import VirtualLoop
from virtual_store import FarStore, Starts, gather, queue_on


@pytest.fixture(autouse=True)
def _nobody_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "_warned", set())


def warnings_of(blocks: float, caplog: pytest.LogCaptureFixture, jobs: int = 30) -> list[str]:
    """The warnings when each job blocks the event loop for this number of intervals."""

    async def scenario() -> int:
        queue = queue_on(FarStore(delay=0.001))
        loop = cast("VirtualLoop", asyncio.get_running_loop())

        async def job() -> None:
            loop.stall(blocks)

        await gather(*[lambda: queue.run(job)] * jobs)
        seen = await queue.inspect()
        assert seen.given_up == 0
        return seen.late

    with caplog.at_level(logging.WARNING, "intervalq"):
        late = virtual_time(scenario)
    assert (late > 0) == (blocks > 1)
    return [record.getMessage() for record in caplog.records]


def test_a_blocked_event_loop_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    (reported,) = warnings_of(3.5, caplog)
    assert "blocks its event loop" in reported


def test_a_job_that_blocks_for_less_than_the_interval_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(0.8, caplog) == []


def test_one_long_stall_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> int:
        queue = queue_on(FarStore(delay=0.001))

        async def job() -> None:
            pass

        async with anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(queue.run, job)
            await anyio.sleep(1.5)
            cast("VirtualLoop", asyncio.get_running_loop()).stall(100)
        return (await queue.inspect()).late

    with caplog.at_level(logging.WARNING, "intervalq"):
        assert virtual_time(scenario) == 1, "all that follow it are late by the same stall"
    assert caplog.records == []


@pytest.mark.parametrize("lookahead", [3, 16, None])
@pytest.mark.parametrize("interval", [None, 2.0])
def test_tickets_that_somebody_voided_cost_no_slots(
    lookahead: int | None, interval: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """`reclaim` or a longer interval revokes them; jobs of live processes all take new tickets at once."""
    starts = Starts()

    async def scenario() -> int:
        queue, other = queue_on(store := FarStore(delay=0.001), lookahead=lookahead), queue_on(store)
        async with anyio.create_task_group() as group:
            for number in range(60):
                group.start_soon(queue.run, partial(starts.job, number))
            await anyio.sleep(2.5)
            if interval is None:
                await other.reclaim()
            else:
                await other.configure(interval=interval)
        return (await queue.inspect()).given_up

    with caplog.at_level(logging.WARNING, "intervalq"):
        assert virtual_time(scenario) <= 1
    assert caplog.records == []
    assert starts.order == list(range(60))
    assert starts.gaps[:2] == pytest.approx([1, 1], abs=0.01)
    assert starts.gaps[3:] == pytest.approx([interval or 1.0] * 56, abs=0.01)
