"""`Joined`: one call for all who ask while the one before is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
import pytest

from intervalq._timing.joined import Joined


class Asked:
    """Answers with what it was asked for, once it may."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.may = anyio.Event()

    async def __call__(self, names: Sequence[str]) -> set[str]:
        self.calls.append(list(names))
        await self.may.wait()
        if "bad" in names:
            raise ValueError("bad")
        return set(names)


async def _until(holds: Callable[[], object]) -> None:
    while not holds():
        await anyio.lowlevel.checkpoint()


async def test_those_who_come_while_one_is_under_way_share_the_next() -> None:
    asked = Asked()
    joined = Joined(asked)

    async def ask(name: str) -> None:
        assert name in await joined.ask([name])

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "first")
        await _until(lambda: asked.calls)
        for number in range(100):
            group.start_soon(ask, f"{number % 50}")
        await _until(lambda: len(joined._next.names) == 50)
        asked.may.set()
    assert [sorted(call) for call in asked.calls] == [["first"], sorted(f"{number}" for number in range(50))]
    await ask("later")
    assert asked.calls[2:] == [["later"]]


async def test_an_error_is_each_callers_and_the_next_ask_again() -> None:
    asked = Asked()
    joined = Joined(asked)

    async def ask(name: str) -> None:
        with pytest.raises(ValueError, match="bad"):
            await joined.ask([name])

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "bad")
        await _until(lambda: asked.calls)
        group.start_soon(ask, "bad")
        group.start_soon(ask, "good")
        await _until(lambda: len(joined._next.names) == 2)
        asked.may.set()
    assert len(asked.calls) == 2
    assert await joined.ask(["good"]) == {"good"}


async def test_a_caller_who_is_cancelled_takes_nobody_along() -> None:
    asked = Asked()
    joined = Joined(asked)
    answers: list[set[str]] = []

    scope = anyio.CancelScope()

    async def ask(name: str) -> None:
        answers.append(await joined.ask([name]))

    async def ask_and_go() -> None:
        with scope:
            await ask("gone")

    async with anyio.create_task_group() as group:
        async with joined._asking:
            group.start_soon(ask_and_go)
            await _until(lambda: joined._next.names)
            group.start_soon(ask, "stays")
            await _until(lambda: len(joined._next.names) == 2)
        await _until(lambda: asked.calls)
        scope.cancel()
        await _until(lambda: len(asked.calls) == 2)
        asked.may.set()
    assert answers == [{"gone", "stays"}]
