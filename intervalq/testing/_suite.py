"""What all conformance suites share: the URL of the store, and an event loop."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal


class Suite:
    """The fixtures of a suite; its users provide `store_url`."""

    @pytest.fixture
    def store_url(self) -> str:
        """The URL of the store."""
        raise NotImplementedError("give a store_url fixture")

    @pytest.fixture
    def portal(self) -> Iterator[BlockingPortal]:
        """An event loop in a thread, for tests that hypothesis drives."""
        with start_blocking_portal() as portal:
            yield portal


def in_portal(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test of a suite in the event loop of its `portal`, in which its store lives."""

    async def outcome(self: Suite, **fixtures: Any) -> BaseException | None:
        try:
            await test(self, **fixtures)
        except (pytest.skip.Exception, pytest.fail.Exception) as said:  # they would end the event loop
            return said
        return None

    @wraps(test)
    def run(self: Suite, portal: BlockingPortal, **fixtures: Any) -> None:
        said = portal.call(partial(outcome, self, **fixtures))
        if said is not None:
            raise said

    signature = inspect.signature(test)
    itself, *fixtures = signature.parameters.values()
    portal = inspect.Parameter("portal", inspect.Parameter.KEYWORD_ONLY)
    fixtures = [fixture.replace(kind=inspect.Parameter.KEYWORD_ONLY) for fixture in fixtures]
    run.__signature__ = signature.replace(parameters=[itself, portal, *fixtures])  # type: ignore[attr-defined] # pytest reads it
    return run


def fresh_names(drop: Callable[[str], object]) -> Iterator[Callable[[], str]]:
    """Yield a function that provides names which nobody else uses, and call `drop` with each at the end."""
    names: list[str] = []

    def fresh() -> str:
        names.append(f"suite-{secrets.token_hex(6)}")
        return names[-1]

    yield fresh
    for name in names:
        drop(name)
