"""What anyio does not offer: tasks without a task group, cheap wake-ups, the identity of the event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from typing import Any, Final, Protocol

import anyio
from anyio.lowlevel import current_token

# The event loop holds only weak references to its tasks.
_tasks: Final[set[asyncio.Task[Any]]] = set()


def spawn(function: Callable[..., Awaitable[None]], *args: object) -> None:
    """Run an async function in the background of the current event loop; it must not raise."""
    loop = current_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        task = loop.create_task(_run(function, args))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
    else:
        import trio  # noqa: PLC0415 - not a dependency: imported only if it is already running

        trio.lowlevel.spawn_system_task(_run, function, args, context=copy_context())


running_loop: Final = asyncio.events._get_running_loop  # noqa: SLF001 - fast, and gives None if there is none
"""asyncio's event loop that runs in this thread, or None; also None in a forked child of its process."""


def current_loop() -> object:
    """An object that identifies the running event loop: asyncio's loop, or trio's token."""
    return asyncio_loop() or current_token().native_token


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop if this is a task of asyncio; trio may run inside such a loop, but not in its tasks."""
    try:
        return asyncio.get_running_loop() if asyncio.current_task() is not None else None
    except RuntimeError:
        return None


class Waker(Protocol):
    """A one-shot event for one waiting task. On asyncio it is a bare future, because every job needs one."""

    def done(self) -> bool:
        """Whether it was set or cancelled."""
        ...

    def set_result(self, result: None, /) -> None:
        """Wake the task; call this only if `done()` is false."""
        ...

    def __await__(self) -> Generator[Any, Any, None]: ...


class EventWaker:
    """A waker for event loops without futures, or for several waiting tasks."""

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


_TIME: Final = asyncio.BaseEventLoop.time


def loop_clock() -> Callable[[], float]:
    """The clock of the running event loop, in seconds."""
    loop = asyncio_loop()
    if loop is None:
        return anyio.current_time
    # asyncio's own loops call this function in turn; calling it directly is cheaper, and every task needs it.
    return time.monotonic if type(loop).time is _TIME else loop.time


def is_cancelled() -> bool:
    """Whether the current task is being cancelled; a cancelled future that it awaits raises the same."""
    task = asyncio.current_task() if asyncio_loop() is not None else None
    return anyio.current_effective_deadline() == -math.inf or (task is not None and task.cancelling() > 0)


def wakers() -> Callable[[], Waker]:
    """A factory of wakers for the tasks of the running event loop."""
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
