"""What anyio leaves to its backends: background tasks without a nursery, and which event loop this is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, Final

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
    return current_token().native_token


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
