"""The event loop of these tests: drivers of servers have only that of asyncio."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"
