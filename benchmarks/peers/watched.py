"""Calls that are measured one by one: those of a single caller, and one in each of many keyed queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from intervalq import IntervalQueue
from intervalq.errors import StoreTimeout
from peers.base import Adapter, Work
from peers.floors import Naive

_BOUND = 30.0
"""Seconds after which a call counts as one that didn't begin."""
_WARM = 1
"""Calls that aren't measured: the first one sets up what all need."""


async def lone(adapter: Adapter, work: Work) -> dict[str, Any]:
    """One call after a pause, repeated for a while, alternating with the naive limiter."""
    naive = Naive(work)
    await naive.open()
    waits: list[float] = []
    naives: list[float] = []
    unbegun = 0
    until = time.monotonic() + work.settle + work.seconds
    while time.monotonic() < until:
        await asyncio.sleep(work.pause)  # noqa: TID251
        wait = await _wait(adapter)
        await asyncio.sleep(work.pause)  # noqa: TID251
        other = await _wait(naive)
        unbegun += wait is None
        waits += [] if wait is None else [wait]
        naives += [] if other is None else [other]
    return {"waits": waits[_WARM:], "naives": naives[_WARM:], "unbegun": unbegun}


async def _wait(adapter: Adapter) -> float | None:
    """Microseconds from the call to the job's start; None: it didn't begin."""
    begun = 0

    def job(*_: object) -> None:
        nonlocal begun
        begun = time.monotonic_ns()

    asked = time.monotonic_ns()
    try:
        async with asyncio.timeout(_BOUND):
            await adapter.call(job)
    except TimeoutError:
        return None
    return (begun - asked) / 1e3


async def keyed(adapter: Adapter, work: Work) -> dict[str, Any]:
    """One slot in each of `work.calls` keyed queues, all asked for at once; for `work.seconds` at most."""
    queue: IntervalQueue = adapter.queue  # type: ignore[attr-defined] # only of intervalq's own
    began = time.monotonic()
    tasks = [asyncio.create_task(_slot(queue[str(number)])) for number in range(work.calls)]
    done, late = await asyncio.wait(tasks, timeout=work.seconds)
    errors = [task.exception() for task in done]
    timeouts = sum(isinstance(error, StoreTimeout) for error in errors)
    return {
        "began": errors.count(None),
        "timeouts": timeouts,
        "errors": len(errors) - errors.count(None) - timeouts,
        "unbegun": len(late),
        "took": time.monotonic() - began,
    }


def _slot(queue: IntervalQueue) -> Coroutine[Any, Any, None]:
    async def use() -> None:
        async with queue.slot():
            pass

    return use()
