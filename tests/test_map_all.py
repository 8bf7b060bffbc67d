"""`map_all` goes on after errors, and says which item a result is of."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from intervalq import IntervalQueue, Mapped, QueueClosed, SlotTimeout, sync
from intervalq.errors import InvalidOption
from virtual_store import FarStore, in_virtual_time, queue_on


async def inverse(number: int) -> float:
    await anyio.sleep(number / 10)
    return 1 / number


def plain(number: int) -> float:
    return 1 / number


async def outcomes(queue: IntervalQueue, *, ordered: bool) -> list[tuple[int, float | str | None]]:
    return [
        (item, result if error is None else type(error).__name__)
        async for item, result, error in queue.map_all(inverse, [30, 0, 1], ordered=ordered)
    ]


@in_virtual_time
async def test_each_item_has_an_outcome() -> None:
    queue = queue_on(FarStore())
    assert await outcomes(queue, ordered=True) == [(30, 1 / 30), (0, "ZeroDivisionError"), (1, 1.0)]
    assert await outcomes(queue, ordered=False) == [(0, "ZeroDivisionError"), (1, 1.0), (30, 1 / 30)]


@in_virtual_time
async def test_retries_come_first() -> None:
    """An error is that of the last attempt."""
    tried: list[int] = []

    async def flaky(number: int) -> int:
        tried.append(number)
        if tried.count(number) < number:
            raise OSError(f"attempt {tried.count(number)}")
        return number

    queue = queue_on(FarStore(), retries=1)
    found = [outcome async for outcome in queue.map_all(flaky, [1, 2, 3], ordered=True)]
    assert found[:2] == [Mapped(1, 1, None), Mapped(2, 2, None)]
    assert (found[2].item, found[2].result, str(found[2].error)) == (3, None, "attempt 2")


@in_virtual_time
async def test_errors_of_the_queue_end_it_but_one_that_concerns_an_item() -> None:
    slow = queue_on(FarStore(), interval=60, timeout=30)
    assert [(one.item, type(one.error)) async for one in slow.map_all(inverse, [1, 2], ordered=True)] == [
        (1, type(None)),
        (2, SlotTimeout),
    ]
    queue = queue_on(FarStore())
    seen = []
    with pytest.raises(QueueClosed):  # noqa: PT012 - in the loop
        async for one in queue.map_all(inverse, range(1, 9), ordered=True):
            seen.append(one.item)
            if len(seen) == 2:
                await queue.close(drain=False)
    assert seen[:2] == [1, 2]


@in_virtual_time
async def test_errors_of_the_items_end_it() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        raise LookupError

    seen = []
    with pytest.raises(LookupError):  # noqa: PT012 - likewise
        async for one in queue_on(FarStore()).map_all(inverse, items()):
            seen.append(one.item)  # noqa: PERF401 - those before the error
    assert seen == [1]


def test_blocking_code_has_it_too() -> None:
    queue = sync.IntervalQueue("plain", rate="1000/s", store="memory://map-all")
    found = list(queue.map_all(plain, [2, 0], ordered=True))
    assert found[0] == Mapped(2, 0.5, None)
    assert (found[1].item, type(found[1].error)) == (0, ZeroDivisionError)
    with pytest.raises(InvalidOption):
        next(queue.map_all(plain, [1], window=0))
