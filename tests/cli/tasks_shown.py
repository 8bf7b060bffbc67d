"""`intervalq tasks` with a database of its own, and that database's contents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest

from cli.command_line import CommandLine
from intervalq.tasks import Claim, Tasks

R = TypeVar("R")


@pytest.fixture
def tasks(intervalq: CommandLine) -> Callable[..., Any]:
    """Runs `intervalq tasks` with a database of its own."""
    intervalq.environment["INTERVALQ_STORE"] = url(intervalq)

    def run(*args: str, **more: Any) -> Any:
        return intervalq("tasks", *args, **more)

    run.url = url(intervalq)  # type: ignore[attr-defined]  # for those who look by themselves
    return run


def url(intervalq: CommandLine) -> str:
    return f"sqlite://{intervalq.folder}/tasks.db"


def lines(ran: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.stdout.splitlines()]


def looked(tasks: Callable[..., Any], look: Callable[[Tasks], Awaitable[R]]) -> R:
    """The contents, read without a command: in a thread, because an event loop may run here already."""

    async def do() -> R:
        async with Tasks(tasks.url) as handle:  # type: ignore[attr-defined]  # the fixture's
            return await look(handle)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, do).result()


def values(tasks: Callable[..., Any], queue: str) -> list[Any]:
    return [task.value for task in looked(tasks, lambda handle: handle.tasks(queue, limit=None))]


def sizes(tasks: Callable[..., Any]) -> dict[str, int]:
    return {queue.name: queue.size for queue in looked(tasks, Tasks.queues)}


@asynccontextmanager
async def claimed(intervalq: CommandLine, queue: str) -> AsyncIterator[Claim]:
    async with Tasks(url(intervalq)) as handle:
        yield await handle.claim(queue)


async def die(intervalq: CommandLine, queue: str, why: str) -> str:
    async with claimed(intervalq, queue) as claim:
        await claim.term(why)
        return claim.id
