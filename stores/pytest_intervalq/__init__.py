"""The plugin of pytest: fixtures with which tests of code that uses intervalq don't wait.

It has a package of its own, since pytest imports its plugins in every run: this one imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from intervalq.testing import VirtualClock


@pytest.fixture
def no_waiting() -> Iterator[VirtualClock]:
    """Let no job wait for its slot in this test: see `intervalq.testing.no_waiting`."""
    from intervalq.testing import no_waiting  # noqa: PLC0415 - only for tests that ask for it

    with no_waiting() as clock:
        yield clock


@pytest.fixture
def virtual_clock() -> Iterator[VirtualClock]:
    """Let time pass by jumps in this test: see `intervalq.testing.virtual_clock`."""
    from intervalq.testing import virtual_clock  # noqa: PLC0415 - only for tests that ask for it

    with virtual_clock() as clock:
        yield clock
