"""`@queue` on every kind of function keeps what the function is, and waits for a slot."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any

import pytest

from intervalq import IntervalQueue
from intervalq import sync as blocking

queue = IntervalQueue("decorated", interval=0.005, store="memory://")
sync_queue = blocking.IntervalQueue("decorated", interval=0.005, store="memory://")


@queue
async def coroutine(a: int, *, b: int = 2) -> int:
    """Its own words."""
    return a + b


@queue
def plain(a: int, *, b: int = 2) -> int:
    return a + b


@queue
def generator(n: int) -> Generator[int, str, str]:
    reported = "nothing"
    for number in range(n):
        reported = yield number
    return reported


@queue
async def async_generator(n: int) -> AsyncGenerator[int, str]:
    for number in range(n):
        try:
            reported = yield number
            if reported:
                yield 100
        except KeyError:
            yield 200


class Client:
    def __init__(self) -> None:
        self.base = 10

    @queue
    async def method(self, a: int) -> int:
        return self.base + a

    @queue
    def plain_method(self, a: int) -> int:
        return self.base + a

    @queue
    @classmethod
    async def on_class(cls, a: int) -> tuple[str, int]:
        return cls.__name__, a

    @classmethod
    @queue
    async def on_class_inside(cls, a: int) -> tuple[str, int]:
        return cls.__name__, a

    @queue
    @staticmethod
    async def static(a: int) -> int:
        return a

    @staticmethod
    @queue
    def static_inside(a: int) -> int:
        return a


def begun(run: Any) -> tuple[Any, int]:
    """A result, and the number of slots that were used."""

    async def main() -> tuple[Any, int]:
        before = queue._shard().begun
        return await run(), queue._shard().begun - before

    return asyncio.run(main())


def test_run_passes_arguments_on() -> None:
    tried: list[int] = []

    async def flaky(a: int, b: int) -> int:
        tried.append(a)
        if len(tried) == 1:
            raise ConnectionError
        return a + b

    async def main() -> None:
        assert await queue.run(flaky, 1, 2, retries=1) == 3
        assert await queue.run(coroutine, 3) == 5  # which takes no second slot of its own queue

    asyncio.run(main())
    assert tried == [1, 1]
    assert sync_queue.run(plain, 3) == 5


def test_async_functions_and_methods() -> None:
    assert begun(lambda: coroutine(1, b=5)) == (6, 1)
    assert begun(lambda: Client().method(1)) == (11, 1)
    assert begun(lambda: Client.on_class(1)) == (("Client", 1), 1)
    assert begun(lambda: Client().on_class(1)) == (("Client", 1), 1)
    assert begun(lambda: Client.on_class_inside(1)) == (("Client", 1), 1)
    assert begun(lambda: Client.static(4)) == (4, 1)


def test_plain_functions_and_methods_block_their_thread() -> None:
    plain(0)
    before = queue.blocking.inspect().begun
    assert plain(1, b=5) == 6
    assert Client().plain_method(2) == 12
    assert Client.static_inside(3) == 3
    assert queue.blocking.inspect().begun == before + 3


def test_generators_wait_once_and_pass_everything_on() -> None:
    before = queue.blocking.inspect().begun
    made = generator(2)
    assert queue.blocking.inspect().begun == before, "nothing begins before the first step"
    assert next(made) == 0
    assert made.send("hello") == 1
    with pytest.raises(StopIteration) as end:
        made.send("bye")
    assert end.value.value == "bye"
    assert queue.blocking.inspect().begun == before + 1


def test_async_generators_wait_once_and_pass_everything_on() -> None:
    async def use() -> list[object]:
        made = async_generator(3)
        seen: list[object] = [await anext(made), await made.asend("x"), await anext(made)]
        seen.append(await made.athrow(KeyError()))
        seen.extend([item async for item in made])
        return seen

    assert begun(use) == ([0, 100, 1, 200, 2], 1)


def test_an_async_generator_that_is_left_early_is_closed() -> None:
    closed: list[bool] = []

    @queue
    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    async def use() -> None:
        made = endless()
        await anext(made)
        await made.aclose()  # type: ignore[attr-defined]

    begun(use)
    assert closed == [True]


@pytest.mark.parametrize(
    ("function", "is_kind"),
    [
        (coroutine, inspect.iscoroutinefunction),
        (plain, inspect.isfunction),
        (generator, inspect.isgeneratorfunction),
        (async_generator, inspect.isasyncgenfunction),
        (Client.method, inspect.iscoroutinefunction),
        (Client.on_class, inspect.iscoroutinefunction),
    ],
)
def test_a_function_stays_the_kind_that_it_is(function: Any, is_kind: Any) -> None:
    assert is_kind(function)
    assert str(inspect.signature(coroutine)) == "(a: 'int', *, b: 'int' = 2) -> 'int'"
    assert coroutine.__doc__ == "Its own words."
    assert coroutine.__name__ == "coroutine"


def test_adding_a_decorated_function_waits_once() -> None:
    async def use() -> list[Any]:
        client = Client()
        return [await (await queue.add(coroutine, 1)), await (await queue.add(client.method, 2))]

    assert begun(use) == ([3, 12], 2)


def test_what_is_no_function_is_refused_with_the_remedy() -> None:
    for thing in (Client, Client(), property(lambda self: 1), 4):
        with pytest.raises(TypeError, match=r"functions and methods"):
            queue(thing)
    with pytest.raises(TypeError, match=r"intervalq\.IntervalQueue"):
        sync_queue(coroutine)


def test_the_function_is_not_called_when_its_arguments_are_wrong() -> None:
    with pytest.raises(TypeError):
        asyncio.run(coroutine())  # type: ignore[call-arg] # on purpose
