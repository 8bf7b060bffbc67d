"""What all conformance suites share: the URL of the store, and an event loop."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

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


def fresh_names(drop: Callable[[str], object]) -> Iterator[Callable[[], str]]:
    """Yield a function that provides names which nobody else uses, and call `drop` with each at the end."""
    names: list[str] = []

    def fresh() -> str:
        names.append(f"suite-{secrets.token_hex(6)}")
        return names[-1]

    yield fresh
    for name in names:
        drop(name)
