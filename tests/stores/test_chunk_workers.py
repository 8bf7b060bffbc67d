"""Workers that get several claims at once, on every store."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq.tasks import Claim, Tasks
from stores.kinds import url_of

STORES = ("memory", "sqlite", "redis", "valkey", "redis_cluster", "postgres", "pgbouncer", "nats")
PATIENCE = 60


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


async def test_each_task_of_a_chunk_is_settled_by_itself(url: str) -> None:
    """The function settles some, one fails, one is taken away by another session; the others are done."""
    queue = f"suite-{secrets.token_hex(6)}"
    done, taken = f"{queue}-done", f"{queue}-taken"
    given: Counter[int] = Counter()
    sizes: list[int] = []
    async with Tasks(url) as tasks, Tasks(url) as operator:

        @tasks.worker(queue, batch=10, within="100ms", concurrency=2, backoff=0)
        async def work(claims: Sequence[Claim]) -> None:
            sizes.append(len(claims))
            given.update(claim.value for claim in claims)
            for claim in claims:
                if claim.value % 4 == 0:
                    await claim.ack(tasks.new(done, claim.value))
                elif claim.value == 5 and claim.attempt == 1:
                    await claim.nak()
                elif claim.value == 6 and claim.attempt == 1:
                    await operator.modify(tasks.new(taken, 6))
                    await operator.cancel(claim.id)

        @tasks.worker(done, batch=10)
        async def count(claims: Sequence[Claim]) -> Any:
            return [claim.change(queue=taken, value=claim.value) for claim in claims]

        with anyio.fail_after(PATIENCE):
            parts = [tasks.new(queue, n, key="k" if n in {1, 2} else None) for n in range(40)]
            await tasks.modify(*parts)
            await tasks.run(until_empty=True)
        left = await tasks.tasks(taken)
        assert sorted(task.value for task in left) == sorted([6, *range(0, 40, 4)])
        await tasks.modify(*[task.delete() for task in left])
    assert given == Counter(range(40)) + Counter([5])
    assert max(sizes) == 10


async def test_plain_tasks_come_in_chunks_and_a_failed_one_fails_alone(url: str) -> None:
    queue = f"suite-{secrets.token_hex(6)}"
    given: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    async with Tasks(url) as tasks:

        @tasks.worker(queue, batch=50, max_attempts=2, backoff=0)
        async def work(claims: Sequence[Claim]) -> None:
            sizes[len(claims)] += 1
            given.update(claim.value for claim in claims)
            if any(claim.value == 77 for claim in claims):
                raise ValueError("it is 77")

        with anyio.fail_after(PATIENCE):
            await tasks.put(queue, range(500))
            await tasks.run(until_empty=True)
        (dead,) = await tasks.tasks(f"{queue}.dead")
        assert (dead.value, dead.attempt, dead.error) == (77, 2, "ValueError: it is 77")
        await tasks.modify(dead.delete())
    assert set(given) == set(range(500))
    assert given[77] == 2
    assert sum(given.values()) <= 550
    assert sizes[50] >= 5


@pytest.mark.parametrize("url", ["sqlite", "postgres", "pgbouncer"], indirect=True)
async def test_a_chunk_commits_its_results_and_its_tasks_together(url: str) -> None:
    """One of its tasks is taken away during the first transaction, so that nothing of it is written."""
    queue = f"suite-{secrets.token_hex(6)}"
    table, written = f"results_{secrets.token_hex(6)}", list[int]()
    sizes: list[int] = []
    async with Tasks(url) as tasks, Tasks(url) as operator:

        @tasks.worker(queue, batch=200, within="100ms", concurrency=1)
        async def work(claims: Sequence[Claim]) -> None:
            sizes.append(len(claims))
            async with tasks.commit(*claims) as connection:
                done = connection.execute(f"create table if not exists {table} (number integer)")
                if not url.startswith("sqlite"):
                    await done
                for claim in claims:
                    done = connection.execute(f"insert into {table} values ({claim.value})")
                    if not url.startswith("sqlite"):
                        await done
                if len(sizes) == 1 and not url.startswith(
                    "sqlite"
                ):  # SQLite lets nobody else write meanwhile
                    await operator.cancel(claims[0].id)

        with anyio.fail_after(PATIENCE):
            await tasks.modify(*[tasks.new(queue, number) for number in range(100)])
            await tasks.run(until_empty=True)
            await tasks.insert(queue, 0)
            claim = await tasks.claim(queue)
            async with tasks.commit(claim) as connection:
                found = connection.execute(f"select number from {table}")
                rows = found if url.startswith("sqlite") else await (await found).fetchall()
                written = [number for (number,) in rows]
                done = connection.execute(f"drop table {table}")
                if not url.startswith("sqlite"):
                    await done
    cancelled = not url.startswith("sqlite")
    assert len(written) == len({*written}) == 100 - cancelled
    assert len(sizes) == 1 + cancelled
