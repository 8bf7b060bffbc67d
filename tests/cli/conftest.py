"""The command line for each test: in the test's own folder, and removed with the test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The backend of the commands, too."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _signals_as_at_a_terminal() -> Iterator[None]:
    """Under `nohup`, the tests and all processes that they start would ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
