"""Work in steps on a terminal: a progress bar, and a Ctrl-C that ends the work between two steps."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import anyio

from intervalq._show import can_redraw, progress_bar, warn

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

T = TypeVar("T")


class Interrupt:
    """Ctrl-C: the first one ends the work after the step that it is in, the second at once."""

    def __init__(self) -> None:
        self.by: int | None = None
        """The signal that came; None: none came yet."""
        self._came = anyio.Event()

    async def heed(
        self, scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Handle signals, in the background; the second one cancels `scope`.

        It uses Python's signal handlers: those of the event loop don't exist on Windows.
        """
        loop = asyncio.get_running_loop()

        def heard(number: int, frame: FrameType | None) -> None:
            del frame
            loop.call_soon_threadsafe(self._interrupt, number, scope)

        before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            task_status.started()
            await anyio.sleep_forever()
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    def _interrupt(self, number: int, scope: anyio.CancelScope) -> None:
        if self.by is not None:
            scope.cancel()
            return
        self.by = number
        self._came.set()
        warn("stopping after this step; a second Ctrl-C stops at once")

    async def or_until(self, function: Callable[[], Awaitable[T]]) -> T | None:
        """The function's result, or None if a signal comes first or the stream that it reads has ended."""
        given: T | None = None
        async with anyio.create_task_group() as group:

            async def end() -> None:
                await self._came.wait()
                group.cancel_scope.cancel()

            group.start_soon(end)
            with suppress(anyio.EndOfStream):
                given = await function()
            group.cancel_scope.cancel()
        return given


class Bar:
    """A progress bar, if there is a terminal."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what, self._total, self._done = what, total, 0
        self._bar = progress_bar() if can_redraw(sys.stderr) else None
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Note that `count` more are done."""
        self._done += count
        if self._bar is not None:
            total = "" if self._total is None else f" of {self._total}"
            text = f"{self._done}{total} {self._what}"
            self._bar.update(self._task, completed=self._done, description=text, refresh=True)
