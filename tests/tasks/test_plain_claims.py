"""Claims of plain tasks, which a store hands out in ranges, when their user settles them individually."""

from __future__ import annotations

import secrets

import anyio
import pytest
from anyio.lowlevel import checkpoint

from intervalq.tasks import Claim, Retry, Tasks


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_claim_is_deleted_or_moved_by_a_change_and_its_range_ends(postgres_url: str) -> None:
    queue = f"plain-{secrets.token_hex(6)}"
    other = f"{queue}-other"
    async with Tasks(postgres_url) as handle, Tasks(postgres_url) as looker:
        await handle.put(queue, range(20))
        claims: list[Claim] = []
        while len(claims) < 20:
            claims += await handle.pull(queue, name=queue).fetch(20, timeout=5)
        await handle.modify(claims[0].delete(), claims[1].change(queue=other))
        assert (claims[0].open, claims[1].open) == (False, False)
        for claim in claims[2:]:
            await claim.ack()
        with anyio.fail_after(30):
            while await looker.queues(queue):
                await checkpoint()
        (moved,) = await looker.tasks(other)
        assert (moved.id, moved.value, moved.claimant) == (claims[1].id, claims[1].value, None)
        await looker.modify(moved.delete())


async def test_what_failed_comes_again_with_its_id_while_its_range_goes_on(postgres_url: str) -> None:
    queue = f"plain-{secrets.token_hex(6)}"
    seen: dict[str, int] = {}
    handle = Tasks(postgres_url)

    @handle.worker(queue, backoff=0)
    async def work(task: Claim) -> None:
        seen[task.id] = seen.get(task.id, 0) + 1
        if task.value % 5 == 0 and task.attempt == 1:
            raise Retry(delay=0)
        if task.value % 5 == 0:
            async with task.commit():  # an ordinary task by now
                pass

    async with handle:
        await handle.put(queue, range(50))
        with anyio.fail_after(60):
            await handle.run(concurrency=4, until_empty=True)
        assert sorted(seen.values()) == [1] * 40 + [2] * 10
        assert await handle.queues(queue) == []
