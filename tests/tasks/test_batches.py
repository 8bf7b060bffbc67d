"""Batches: tasks, and one that runs when all of them have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from intervalq.errors import InvalidOption, UnsupportedOperation
from intervalq.tasks import Claim, Tasks
from tasks.fake_store import FakeStore, handle


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("size", [1, 999, 2_500])
async def test_the_follow_up_runs_once_after_all_others(size: int, tmp_path: Path) -> None:
    order: list[object] = []
    async with Tasks(tmp_path / "tasks.db") as tasks:

        @tasks.worker("parts", batch=100, max_attempts=1)
        async def part(claims: list[Claim]) -> None:
            order.extend(claim.value for claim in claims)
            if any(claim.value == 7 for claim in claims):
                raise ValueError("no part 7")

        @tasks.worker("then")
        async def then(task: Claim) -> None:
            order.append(task.value)

        parts = [tasks.new("parts", number) for number in range(size)]
        id_ = await tasks.batch(parts, tasks.new("then", "all"))
        (waiting,) = await tasks.tasks("then")
        assert (waiting.id, waiting._row.awaits) == (id_, size)
        await tasks.run(until_empty=True)
        dead = await tasks.tasks("parts.dead", limit=None)
    assert order.count("all") == 1
    assert order[-1] == "all"
    assert {*order[:-1]} == {*range(size)}
    assert bool(dead) == (size > 7)


@pytest.mark.parametrize("kind", ["sqlite", "memory"])
async def test_nothing_is_inserted_if_one_of_them_cannot_be(kind: str, tmp_path: Path) -> None:
    """On SQLite, the last step of several fails."""
    async with Tasks("memory://" if kind == "memory" else tmp_path / "tasks.db") as tasks:
        parts = [tasks.new("parts", number, id=f"part-{number}") for number in range(1_500)]
        await tasks.insert("elsewhere", 0, id="part-1499")
        with pytest.raises(Exception, match="part-1499"):
            await tasks.batch(parts, tasks.new("then", "all"))
        assert [queue.name for queue in await tasks.queues()] == ["elsewhere"]


async def test_what_cannot_be_in_a_batch_is_refused() -> None:
    async with Tasks("memory://") as tasks:
        follow_up = tasks.new("then", "all")
        for options in ({"dedupe_key": "d"}, {"id": "i", "skip": True}):
            part = tasks.new("parts", 1, **options)
            for given in (([part], follow_up), ([], part)):
                with pytest.raises(InvalidOption, match="batch"):
                    await tasks.batch(*given)
        part, numbers = tasks.new("parts", 1), [1, 2]
        with pytest.raises(InvalidOption, match=r"new\(\.\.\.\), not of 1"):
            await tasks.batch(numbers, part)  # type: ignore[arg-type] # the mistake
        with pytest.raises(InvalidOption, match=r"new\(\.\.\.\), not of"):
            await tasks.batch(part, [part])  # type: ignore[arg-type] # they are exchanged
        with pytest.raises(InvalidOption, match="key="):
            await tasks.batch([], tasks.new("then", "all", key="k"))
        with pytest.raises(InvalidOption, match="nothing to wait for"):
            await tasks.batch([], follow_up)
        for parts in ([follow_up], [tasks.new("parts", 1, id="i")] * 2):
            with pytest.raises(InvalidOption, match="same id"):
                await tasks.batch(parts, follow_up)
        assert await tasks.queues() == []
    async with handle(FakeStore()) as tasks:
        with pytest.raises(UnsupportedOperation, match="follow-up"):
            await tasks.batch([tasks.new("parts", 1)], tasks.new("then", "all"))
