"""What anyio leaves to its backends: tasks without a nursery, a light way to wake one, which loop this is."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from typing import Any, Final, Protocol

import anyio
from anyio.lowlevel import current_token

# The event loop holds its tasks only weakly.
_tasks: Final[set[asyncio.Task[Any]]] = set()


def spawn(function: Callable[..., Awaitable[None]], *args: object) -> None:
    """Run an async function in the background of the current event loop; it must not raise."""
    loop = current_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        task = loop.create_task(_run(function, args))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
    else:
        import trio  # noqa: PLC0415 - not a dependency: only where it is running already

        trio.lowlevel.spawn_system_task(_run, function, args, context=copy_context())


running_loop: Final = asyncio.events._get_running_loop  # noqa: SLF001 - None where there is none, and fast
"""The event loop of asyncio that runs in this thread, if one does; not in a child that was forked from it."""


def current_loop() -> object:
    """What tells the running event loop from all others: asyncio's loop, or trio's token."""
    return asyncio_loop() or current_token().native_token


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop if this is a task of asyncio's; trio may run within such a loop, not in its tasks."""
    try:
        return asyncio.get_running_loop() if asyncio.current_task() is not None else None
    except RuntimeError:
        return None


class Waker(Protocol):
    """One task waits for it, once. A bare future on asyncio, for every job needs one."""

    def done(self) -> bool:
        """Whether it was set, or given up."""
        ...

    def set_result(self, result: None, /) -> None:
        """Set it, if it isn't done."""
        ...

    def __await__(self) -> Generator[Any, Any, None]: ...


class EventWaker:
    """A waker where there are no futures, or for which several tasks wait."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: None, /) -> None:
        del result
        self._event.set()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._event.wait().__await__()


def loop_clock() -> Callable[[], float]:
    """The clock of the running event loop, in seconds."""
    loop = asyncio_loop()
    if loop is None:
        return anyio.current_time
    # What asyncio's own loops call in turn; it is asked for each task.
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


def is_cancelled() -> bool:
    """Whether the current task is being cancelled; a cancellation may also come out of what it awaits."""
    task = asyncio.current_task() if asyncio_loop() is not None else None
    return anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling() > 0)


def wakers() -> Callable[[], Waker]:
    """What makes wakers for the tasks of the running event loop."""
    loop = asyncio_loop()
    return EventWaker if loop is None else loop.create_future


def is_over(loop: object) -> bool:
    """Whether an event loop has ended for good."""
    if isinstance(loop, asyncio.AbstractEventLoop):
        return loop.is_closed()
    import trio  # noqa: PLC0415 - as above

    try:
        loop.run_sync_soon(int)  # type: ignore[attr-defined]
    except trio.RunFinishedError:
        return True
    return False


async def _run(function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
    await function(*args)
