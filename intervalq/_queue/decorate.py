"""`@queue` on any kind of function: each call, or each start of an iteration, first waits for a slot."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from intervalq._queue.options import Cost, Settle
from intervalq._queue.ports import Blocking, Paced


def decorate(
    function: Any,  # noqa: ANN401 - any kind of function, returned as such
    owner: object,
    queue: Paced | None,
    blocking: Callable[[], Blocking],
    *,
    cost: Cost = 1,
    settle: Settle[Any] | None = None,
) -> Any:  # noqa: ANN401 - as above
    """The function, paced. Async kinds wait in their event loop, plain ones block their thread.

    Args:
        function: any kind of function, or a classmethod or staticmethod of one.
        owner: the decorating handle; its `add` must not make the function wait twice.
        queue: the handle for async kinds; None: refuse them.
        blocking: returns the handle for plain kinds, at their first call.
        cost: of each call, see `IntervalQueue.add`.
        settle: likewise.

    Raises:
        TypeError: it is not a function but a class, a property, or another callable object; or it is async
            and there is no queue for it; or it is a generator, whose calls have no result to settle.
    """
    if isinstance(function, classmethod | staticmethod):
        inner = decorate(function.__func__, owner, queue, blocking, cost=cost, settle=settle)
        return type(function)(inner)
    if isinstance(function, property) or inspect.isclass(function) or not inspect.isroutine(function):
        raise TypeError(
            f"@queue decorates functions and methods, not {function!r}: decorate the method that does the "
            "work, or use queue.add(...)"
        )
    if settle is not None and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise TypeError(f"{function!r} has no result to settle: use queue.slot() and slot.settle() in it")
    is_async = inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)
    if not is_async:
        paced = _plain(blocking, function, cost, settle)
    elif queue is None:
        raise TypeError(
            f"{function!r} is async: decorate it with intervalq.IntervalQueue, not intervalq.sync"
        )
    else:
        paced = _async(queue, function, cost, settle)
    paced.__intervalq__ = owner  # type: ignore[attr-defined] # so that owner.add(f) doesn't wait twice
    return paced


def _async(
    queue: Paced, function: Callable[..., Any], cost: Cost, settle: Settle[Any] | None
) -> Callable[..., Any]:
    # Async generators come first: they are not coroutine functions, and would be taken for another kind.
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            async with queue.slot(cost=cost):
                inner = function(*args, **kwargs)
                try:
                    item = await anext(inner)
                    while True:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            raise
                        except BaseException as thrown:  # noqa: BLE001 - what the caller throws is passed on
                            item = await inner.athrow(thrown)
                        else:
                            item = await inner.asend(sent)
                except StopAsyncIteration:
                    return
                finally:
                    await inner.aclose()

        return async_generator

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function has it
        return await queue.run(functools.partial(function, *args, **kwargs), cost=cost, settle=settle)

    return coroutine


def _plain(
    blocking: Callable[[], Blocking], function: Callable[..., Any], cost: Cost, settle: Settle[Any] | None
) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with blocking().slot(cost=cost):
                return (yield from function(*args, **kwargs))

        return generator

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function has it
        call = functools.partial(function, *args, **kwargs)
        return blocking().run(call, cost=cost, settle=settle)

    return plain
