"""A shard that has not learned of a hold asks about its slot too early; that answer doesn't bind it."""

from __future__ import annotations

import anyio
import pytest

from virtual_store import BACKENDS, FarStore, Starts, gather, in_virtual_time, queue_on


@BACKENDS
@pytest.mark.parametrize("lookahead", [1, 16])
@in_virtual_time
async def test_a_pause_stops_a_job_whose_slot_was_moved_behind_its_back(backend: str, lookahead: int) -> None:
    store, starts = FarStore(delay=0.001), Starts()
    queue, other = queue_on(store, lookahead=lookahead), queue_on(store)

    async def user() -> None:
        for number in range(2):
            await queue.run(lambda number=number: starts.job(number))  # type: ignore[misc]

    async def operator() -> None:
        await anyio.sleep(0.2)
        await other.cool_down(0.5)  # over when the shard asks, so that its slot is 1.5 s from the first
        await anyio.sleep(1)
        await other.pause()
        await anyio.sleep(10)
        await other.resume()

    await gather(user, operator)
    assert starts.order == [0, 1]
    assert starts.gaps[0] > 11
