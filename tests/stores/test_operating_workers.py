"""Running functions that are cancelled by another process, and reports that it sees, on every store."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio
import pytest

from intervalq.errors import UnsupportedOperation
from intervalq.tasks import Claim, Tasks
from intervalq.tasks._handle import waiting
from intervalq.tasks.rules import Command, Outcomes, Select
from intervalq.tasks.store import open_task_store
from stores.kinds import url_of
from stores.postgres_sessions import sql

STORES = ("sqlite", "redis", "valkey", "redis_cluster", "postgres", "pgbouncer", "nats")
PATIENCE = 60


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


async def test_running_functions_are_cancelled_and_their_reports_are_seen(url: str) -> None:
    queue = f"suite-{secrets.token_hex(6)}"
    began: list[str] = []
    cancelled: list[str] = []
    changed = anyio.Event()
    async with Tasks(url, expiry=1) as tasks, Tasks(url) as operator:

        @tasks.worker(queue, concurrency=3)
        async def work(task: Claim) -> None:
            began.append(task.id)
            if not url.startswith("nats:"):
                await task.in_progress(progress=0.5, note="half", checkpoint=[1])
            else:
                with pytest.raises(UnsupportedOperation):
                    await task.in_progress(progress=0.5)
            changed.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.append(task.id)
                changed.set()

        async def until(count: int, these: list[str]) -> None:
            nonlocal changed
            while len(these) < count:
                await changed.wait()
                changed = anyio.Event()

        ids = [await operator.insert(queue, n, key=key) for n, key in enumerate((None, "k", "k"))]
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.run)
                await until(2, began)
                assert set(began) == set(ids[:2])
                for task in await operator.tasks(ids=ids[:2]) if not url.startswith("nats:") else ():
                    while task.checkpoint is None:  # it began, and its report is on its way
                        (task,) = await operator.tasks(ids=[task.id])  # noqa: PLW2901
                    assert (task.progress, task.note, task.checkpoint) == (0.5, "half", [1])
                await operator.cancel(*ids[:2])
                await until(2, cancelled)
                assert set(cancelled) == set(ids[:2])
                await until(3, began)
                await operator.cancel(ids[2])
                await until(3, cancelled)
                await operator.wait_empty(queue)
                group.cancel_scope.cancel()
    assert cancelled[-1] == ids[2]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "valkey", "redis_cluster", "postgres"])
async def test_who_waits_for_outcomes_is_told_of_its_own_and_asks_only_then(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks in between, and all hear it on one connection."""
    url, count, queue = url_of(kind, request, tmp_path), 20, f"suite-{secrets.token_hex(6)}"
    for pauses in ("_CHECKS", "_polls"):  # whoever isn't told waits for ever
        monkeypatch.setattr(waiting, pauses, (10 * PATIENCE,) if pauses == "_CHECKS" else _never)
    store = open_task_store(url)
    asked: Counter[str] = Counter()
    listening: list[str] = []
    all_listen = anyio.Event()
    apply, awaited = store.apply, getattr(store, "awaited")  # noqa: B009 - of those that have it

    async def counted(command: Command[Any]) -> Any:
        if isinstance(command, Select | Outcomes):
            asked.update(command.ids)
        return await apply(command)

    @asynccontextmanager
    async def noted(ids: Sequence[str]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        async with awaited(ids) as notified:
            listening.extend(ids)
            if len(listening) == count:
                all_listen.set()
            yield notified

    monkeypatch.setattr(store, "apply", counted)
    monkeypatch.setattr(store, "awaited", noted)
    async with Tasks(store) as tasks, Tasks(url) as workers:

        @workers.worker(queue)
        async def work(task: Claim) -> int:
            await all_listen.wait()
            return int(task.value)

        async def wait(id_: str, number: int) -> None:
            assert await tasks.result(id_) == number

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                async with anyio.create_task_group() as waiters:
                    for number in range(count):
                        waiters.start_soon(wait, await tasks.insert(queue, number, keep="1h"), number)
                    group.start_soon(workers.run)
                group.cancel_scope.cancel()
        # Does the task exist, also once we listen? After the notification: is it gone, and what did it leave?
        # Of one that ended before we looked while listening, the second question has the last one's answer.
        assert sorted(listening) == sorted(asked)
        assert set(asked.values()) <= {3, 4}
        if kind == "postgres":
            listeners = "select count(*) from pg_stat_activity where query = 'listen intervalq_ended'"
            assert sql(url, listeners) == [(1,)]
            assert sql(url, "select count(*) from intervalq.awaited") == [(0,)]


def _never() -> Iterator[float]:
    return repeat(10.0 * PATIENCE)


async def test_functions_of_plain_tasks_are_cancelled_too(postgres_url: str) -> None:
    """Each is cancelled by itself, and the range that it was in goes on."""
    queue = f"suite-{secrets.token_hex(6)}"
    began: dict[int, str] = {}
    ended: list[int] = []
    go_on, all_began = anyio.Event(), anyio.Event()
    async with Tasks(postgres_url, expiry=1) as tasks, Tasks(postgres_url) as operator:

        @tasks.worker(queue, concurrency=6)
        async def work(task: Claim) -> None:
            began[task.value] = task.id
            if len(began) == 6:
                all_began.set()
            try:
                await go_on.wait()
            except BaseException:
                ended.append(task.value)
                if len(ended) == 3:
                    go_on.set()
                raise

        await operator.put(queue, range(6))
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(tasks.run)
                await all_began.wait()
                assert len((await operator.cancel(*[began[n] for n in (0, 2, 4)])).stopping) == 3
                await go_on.wait()
                await operator.wait_empty(queue)
                group.cancel_scope.cancel()
    assert sorted(ended) == [0, 2, 4]
    assert {outcome: count for outcome, count in tasks._outcomes.items() if count} == {
        "done": 3,
        "cancelled": 3,
    }
