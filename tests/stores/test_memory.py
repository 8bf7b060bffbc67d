from __future__ import annotations

from functools import partial

import anyio
import pytest

from intervalq import IntervalQueue
from intervalq.store import open_store
from intervalq.testing import StoreSuite
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from virtual_store import gather, in_virtual_time


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"


async def test_each_name_is_a_store_of_its_own() -> None:
    for name in ("a", "b"):
        async with IntervalQueue("q", interval="1ms", store=f"memory://{name}") as queue:
            await queue.pause()
    assert [len(await open_store(f"memory://{name}").names()) for name in ("a", "b", "c")] == [1, 1, 0]


@in_virtual_time
async def test_waiters_are_woken_in_the_order_in_which_they_came() -> None:
    """Otherwise runs in virtual time would depend on the addresses of objects."""
    store = MemoryStore(clock=virtual_micros)
    woken: list[int] = []

    async def wait(number: int) -> None:
        async with store.schedule_changes() as changed:
            await changed()
            woken.append(number)

    async def change() -> None:
        await anyio.sleep(1)
        await store.swap_schedule("s", None, "{}")

    await gather(*(partial(wait, number) for number in range(50)), change)
    assert woken == [*range(50)]
