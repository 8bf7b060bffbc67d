"""The event loop that blocking code uses: one per process, in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

R = TypeVar("R")


class Background:
    """The event loop for blocking code: started when first needed, ended with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[AbstractContextManager[BlockingPortal], BlockingPortal] | None = None
        self._thread = 0
        self._of_parents: list[object] = []

    def call(self, function: Callable[..., Awaitable[R]], *args: Any) -> R:
        """Run an async function in the loop, and wait for it. An interrupted wait cancels the function."""
        call, future = _Call(), None
        try:
            future = self.start(call.run, function, *args)
            result, fatal = future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            else:  # interrupted while the function was handed over: it may run already
                with suppress(RuntimeError):  # there is no loop
                    self.tell(call.cancel)
            raise
        if fatal is not None:
            raise fatal
        return cast("R", result)

    def start(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a function in the loop; its future can be cancelled."""
        with self._lock:
            if self._running is None:
                manager = start_blocking_portal(name="intervalq")
                self._running = (manager, manager.__enter__())
                self._thread = self._running[1].call(threading.get_ident)
            portal = self._running[1]
        return portal.start_task_soon(function, *args)

    def tell(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a plain function in the loop, and don't wait for it."""
        if threading.get_ident() == self._thread:  # a generator is being collected in that very thread
            function(*args)
        else:
            self.start(function, *args)

    def end(self) -> None:
        """End the loop, and cancel what runs in it; it is started anew when it is needed."""
        with self._lock:
            running, self._running, self._thread = self._running, None, 0
        if running is not None:
            manager, portal = running
            portal.call(portal.stop, True)
            manager.__exit__(None, None, None)

    def forked(self) -> None:
        """Forget the thread, which doesn't exist in a forked child: a new one is started when needed.

        The old portal is kept: collecting it would wait for ever to join a thread that doesn't exist.
        """
        self._of_parents.append(self._running)
        self._running = None
        self._thread = 0
        self._lock = threading.Lock()


class _Call:
    """A function that runs in the loop, and can be cancelled from the moment when it is handed over."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False

    async def run(
        self, function: Callable[..., Awaitable[R]], *args: Any
    ) -> tuple[R | None, BaseException | None]:
        """The function's result, or an exception that would end the event loop, such as SystemExit."""
        with anyio.CancelScope() as self._scope:
            if self._is_cancelled:
                self._scope.cancel()
            try:
                return await function(*args), None
            except (Exception, anyio.get_cancelled_exc_class()):
                raise
            except BaseException as fatal:  # noqa: BLE001 - for the thread that waits
                return None, fatal
        return None, None

    def cancel(self) -> None:
        """Cancel it, in the loop."""
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()


BACKGROUND: Final = Background()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=BACKGROUND.forked)
