"""What the simulated networks of queues and of tasks share: waits for answers, wake-ups, steps of a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio

from intervalq.errors import StoreTimeout

A = TypeVar("A")
C = TypeVar("C")


async def answer_of(reply: asyncio.Future[A], url: str, deadline: float) -> A:
    """Wait for an answer, for at most so many seconds.

    Raises:
        StoreTimeout: none came in time.
    """

    def give_up() -> None:
        if not reply.done():
            reply.set_exception(StoreTimeout(url, "no answer in time"))

    timer = asyncio.get_running_loop().call_later(deadline, give_up)
    try:
        return await reply
    finally:
        timer.cancel()


@asynccontextmanager
async def listening(
    listeners: dict[Callable[[], None], C], connection: C, heard: Callable[[], None] = lambda: None
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Register a connection for wake-ups; `heard` is called with each one that arrives while it listens."""
    event = anyio.Event()

    def wake() -> None:
        if wake in listeners:  # otherwise the wake-up is late, and nobody listens any more
            heard()
        event.set()

    async def woken() -> None:
        nonlocal event
        await event.wait()
        event = anyio.Event()

    listeners[wake] = connection
    try:
        yield woken
    finally:
        del listeners[wake]


def result_of(step: Coroutine[Any, Any, A]) -> A:
    """The result of a coroutine that never waits, such as a step of a store in memory."""
    try:
        step.send(None)
    except StopIteration as end:
        result: A = end.value
        return result
    raise AssertionError("a step of the store took time")
