"""The commands on durable tasks that are plain ones, which a store hands out in ranges."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from cli.command_line import CommandLine
from intervalq.tasks import Tasks


@pytest.fixture
def queue(postgres_url: str) -> Iterator[str]:
    name = f"plain-{secrets.token_hex(6)}"
    yield name

    async def clean() -> None:
        async with Tasks(postgres_url) as handle:
            for queue in (name, f"{name}.dead"):
                while found := await handle.tasks(queue, limit=500, values=False):
                    await handle.modify(*(task.delete() for task in found))

    anyio.run(clean)


@pytest.fixture
def tasks(intervalq: CommandLine, postgres_url: str) -> Callable[..., Any]:
    intervalq.environment["INTERVALQ_STORE"] = postgres_url
    return lambda *args, **more: intervalq("tasks", *args, **more)


def put(postgres_url: str, queue: str, count: int) -> None:
    async def do() -> None:
        async with Tasks(postgres_url) as handle:
            await handle.put(queue, range(count))

    anyio.run(do)


def lines(ran: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_plain_tasks_are_listed_shown_moved_put_back_and_deleted(
    postgres_url: str, queue: str, tasks: Callable[..., Any]
) -> None:
    put(postgres_url, queue, 5)
    listed = lines(tasks("list", queue, "--json"))
    assert sorted(task["value"] for task in listed) == list(range(5))
    assert {(task["at"], task["created"], task["modified"]) for task in listed} == {(None, None, None)}
    first, second = listed[0]["id"], listed[1]["id"]
    shown = tasks("show", first).stdout
    assert "1970" not in shown
    assert "ready" in shown
    assert tasks("move", first, second, "--to", f"{queue}.dead").stdout.startswith("2 tasks moved")
    assert {task["id"] for task in lines(tasks("dead", queue, "--json"))} == {first, second}
    assert tasks("retry", "--queue", f"{queue}.dead", "--all").stdout == "2 tasks put back\n"
    assert tasks("delete", first, listed[2]["id"]).stdout == "2 tasks deleted\n"
    assert tasks("delete", first, code=1).stderr.count("does not exist") == 1
    left = lines(tasks("list", queue, "--json"))
    assert {task["id"] for task in left} == {task["id"] for task in listed} - {first, listed[2]["id"]}
    assert [stats["size"] for stats in lines(tasks("queues", "--prefix", queue, "--json"))] == [3]


async def test_what_a_worker_has_claimed_stays_but_by_force(
    postgres_url: str, queue: str, tasks: Callable[..., Any]
) -> None:
    async with Tasks(postgres_url) as handle:
        await handle.put(queue, range(3000))
        claims = await handle.pull(queue, name="me").fetch(100, timeout=5)

        def delete(*args: str, **more: Any) -> Any:
            return tasks("delete", "--queue", queue, "--all", "--yes", "--json", *args, **more)

        ran = await anyio.to_thread.run_sync(lambda: delete(code=1))
        ((reported),) = lines(ran)
        assert reported["done"] == 3000 - len(claims)
        assert {one["id"] for one in reported["refused"]} == {claim.id for claim in claims}
        assert {"is claimed by session" in one["why"] for one in reported["refused"]} == {True}
        ((reported),) = lines(await anyio.to_thread.run_sync(lambda: delete("--force")))
        assert (reported["done"], reported["refused"]) == (len(claims), [])
        assert await handle.queues(queue) == []
        for claim in claims:
            await claim.ack()
        assert await handle.tasks(queue) == []
