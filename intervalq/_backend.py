"""What anyio leaves to its backends: tasks without a nursery, a light way to wake one, which loop this is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from typing import Any, Final

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


def current_loop() -> object:
    """What tells the running event loop from all others: asyncio's loop, or trio's token."""
    return _loop() or current_token().native_token


def _loop() -> asyncio.AbstractEventLoop | None:
    """The event loop if this is a task of asyncio's; trio may run within such a loop, not in its tasks."""
    try:
        return asyncio.get_running_loop() if asyncio.current_task() is not None else None
    except RuntimeError:
        return None


class Bell:
    """One task waits for it, once; anybody may ring. On asyncio a bare future: every job needs one."""

    __slots__ = ("_event", "_future")

    def __init__(self, future: asyncio.Future[None] | None, event: anyio.Event | None) -> None:
        self._future = future
        self._event = event

    def ring(self) -> None:
        """Wake who waits; ringing twice is ringing once."""
        if self._event is not None:
            self._event.set()
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def __await__(self) -> Generator[Any, Any, None]:
        waiting = self._future if self._event is None else self._event.wait()
        assert waiting is not None
        return waiting.__await__()


def bell() -> Bell:
    """A bell for the running task."""
    loop = _loop()
    return Bell(None, anyio.Event()) if loop is None else Bell(loop.create_future(), None)


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


def first_of(trouble: BaseExceptionGroup[Exception]) -> Exception:
    """The first plain exception of a group, which may be nested."""
    inner: BaseException = trouble
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    assert isinstance(inner, Exception)
    return inner
