"""The waiters of this process for the outcomes of tasks; any thread may notify them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import anyio

from intervalq_stores._files.worker_thread import call_soon


class Waiter:
    """Waits until all of some tasks have left outcomes. Created on the event loop of its caller."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.left = set(ids)
        """The tasks that no notification has named yet."""
        self._notified = anyio.Event()
        self._soon = call_soon()

    async def wait(self) -> None:
        """Wait until notifications have named all of the tasks, or no more can come."""
        await self._notified.wait()

    def wake(self) -> None:
        """End the wait, from any thread."""
        with contextlib.suppress(RuntimeError):  # that event loop is closed, so nobody waits
            self._soon(self._notified.set)


class Waiters:
    """The waiters of one store. A forked child needs new ones: the lock may be held for ever there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, list[Waiter]] = {}

    @contextmanager
    def waiting(self, ids: Iterable[str]) -> Iterator[Waiter]:
        """A waiter for these tasks, which is notified while the context is open."""
        waiter = Waiter(ids)
        with self._lock:
            for id_ in waiter.left:
                self._of.setdefault(id_, []).append(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                for id_ in waiter.left:
                    self._of[id_].remove(waiter)
                    if not self._of[id_]:
                        del self._of[id_]

    def alone(self, waiter: Waiter) -> list[str]:
        """The tasks that only this one still waits for."""
        with self._lock:
            return [id_ for id_ in waiter.left if len(self._of[id_]) == 1]

    def notify(self, ids: Iterable[str]) -> None:
        """Note that these tasks have left outcomes, and wake those who wait for no others."""
        if not self._of:  # usual; a caller that begins to wait now looks for outcomes itself
            return
        with self._lock:
            for id_ in ids:
                for waiter in self._of.pop(id_, ()):
                    waiter.left.discard(id_)
                    if not waiter.left:
                        waiter.wake()

    def notify_all(self) -> None:
        """Wake all waiters, because no more notifications can come."""
        with self._lock:
            for waiter in {waiter for those in self._of.values() for waiter in those}:
                waiter.wake()
