"""Lets one function run alone among all those that a session runs.

A task that was lost with its session may have killed it. It runs alone, so that no other task is charged if
it kills another worker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

PATIENCE: Final = 60.0
"""Seconds that a task to run alone waits for running ones, and that others then wait for it.

Functions that take longer may be waiting for each other; and by then the store knows that they have begun.
"""


class RunAlone:
    """A gate that is open unless one of a session's functions is to run alone."""

    def __init__(self) -> None:
        self.running = 0
        """How many functions run."""
        self.closed: object | None = None
        """The key of the task that closed it; None: it is open."""
        self.on_open: list[Callable[[], None]] = []
        """Called when others may begin."""
        self._since = 0.0
        self._quiet = anyio.Event()

    def close(self) -> object:
        """Let nothing else begin. Returns the key that opens it."""
        self.closed = key = object()
        self._since = anyio.current_time()
        return key

    def open(self, key: object | None) -> None:
        """Let others begin, if it is still closed by this key."""
        if key is self.closed is not None:
            self.closed = None
            for tell in self.on_open:
                tell()

    def tire(self) -> None:
        """Open it, if it has been closed for too long."""
        if self.closed is not None and anyio.current_time() - self._since > 2 * PATIENCE:
            self.open(self.closed)

    async def quiet(self) -> None:
        """Wait until nothing runs, but not for ever."""
        with anyio.move_on_after(PATIENCE):
            while self.running:
                self._quiet = anyio.Event()
                await self._quiet.wait()

    def ended(self) -> None:
        """Note that a function has ended while the gate was closed."""
        if not self.running:
            self._quiet.set()
