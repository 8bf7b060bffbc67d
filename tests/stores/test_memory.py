from __future__ import annotations

import pytest

from intervalq import IntervalQueue
from intervalq.store import open_store
from intervalq.testing import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store_url(self) -> str:
        return "memory://"


async def test_each_name_is_a_store_of_its_own() -> None:
    for name in ("a", "b"):
        async with IntervalQueue("q", interval="1ms", store=f"memory://{name}") as queue:
            await queue.pause()
    assert [len(await open_store(f"memory://{name}").names()) for name in ("a", "b", "c")] == [1, 1, 0]
