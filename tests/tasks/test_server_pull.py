"""Claims of a store that has pull consumers itself: each is settled by a call of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from intervalq.errors import ClaimLost
from intervalq.tasks.rules import Command, Row, Work
from intervalq.tasks.store import Pulled
from tasks.fake_store import BACKENDS, FakeStore, claimed, handle, scene, until


class PullingStore(FakeStore):
    """One at which callers wait."""

    async def pull(self, work: Work, seconds: float) -> tuple[Row, ...]:
        end = anyio.current_time() + seconds
        while True:
            rows = (await self.apply(work)).claimed
            if rows or anyio.current_time() >= end:
                return rows
            await anyio.sleep(0.1)

    async def pulled(self, queues: tuple[str, ...]) -> Mapping[str, Pulled]:
        del queues
        return {}


@pytest.mark.parametrize("answer", ["an answer", "no answer"])
@BACKENDS
def test_what_is_settled_when_its_session_lapses_is_lost_and_the_next_session_goes_on(
    backend: str, answer: str
) -> None:
    async def scenario() -> None:
        store = PullingStore()
        async with handle(store) as tasks:
            batcher = tasks.session().batcher
            claim = await claimed(tasks)
            before = batcher.session
            is_settling = anyio.Event()

            def settles(command: Command[Any]) -> bool:
                return isinstance(command, Work) and bool(command.settled) and command.session == before

            async def lapse(command: Command[Any]) -> None:
                if settles(command):
                    await store.lapse()

            async def hold(command: Command[Any]) -> None:
                if settles(command):
                    is_settling.set()
                    await until(lambda: batcher.session != before and bool(batcher.held))

            store.before, store.after = lapse, hold
            store.loses = lambda command: settles(command) and answer == "no answer"
            async with anyio.create_task_group() as group:

                async def acknowledge() -> None:
                    with pytest.raises(ClaimLost):
                        await claim.ack()

                group.start_soon(acknowledge)
                await is_settling.wait()
                await until(lambda: batcher.session != before)
                again = await tasks.claim("q")
            assert again.id == claim.id
            assert batcher.session == again.claimant
            await again.ack()
            assert await store.rows() == []

    scene(scenario, backend=backend)
