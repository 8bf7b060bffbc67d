"""The event loops of tests: those of asyncio and of trio."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def both_backends(request: pytest.FixtureRequest) -> str:
    """For a file of tests that run on both, unlike others of its folder: `anyio_backend = both_backends`."""
    backend: str = request.param
    return backend
