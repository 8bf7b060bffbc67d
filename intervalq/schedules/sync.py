"""Schedules for blocking code: plain functions, run in threads by the event loop of the background."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from intervalq._queue.options import Duration
from intervalq._timing.background_loop import BACKGROUND
from intervalq.schedules._handle import ScheduleInfo, ScheduleOptions
from intervalq.schedules._handle import Schedules as AsyncSchedules
from intervalq.schedules._occurrence import Occurrence

F = TypeVar("F", bound=Callable[[Occurrence], Any] | Callable[[], Any])


class Schedules:
    """`intervalq.schedules.Schedules` for blocking code: the same arguments, the same store, plain calls.

    Safe from any number of threads, and in child processes after a fork.
    """

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        self._store = store
        self._schedules = AsyncSchedules(store)
        self._process = os.getpid()

    def every(
        self, interval: Duration, *, timezone: str = "UTC", **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """Call the decorated function every so often: see `intervalq.schedules.Schedules.every`."""
        return self._schedules.every(interval, timezone=timezone, **options)

    def cron(
        self, expression: str, *, timezone: str = "UTC", **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """Call the decorated function at set times: see `intervalq.schedules.Schedules.cron`."""
        return self._schedules.cron(expression, timezone=timezone, **options)

    def run(self) -> None:
        """Run the declared schedules until interrupted: see `intervalq.schedules.Schedules.run`."""
        BACKGROUND.call(lambda: self._here().run())

    def inspect_all(self, *, upcoming: int = 1) -> list[ScheduleInfo]:
        """The schedules in the store: see `intervalq.schedules.Schedules.inspect_all`."""
        return BACKGROUND.call(lambda: self._here().inspect_all(upcoming=upcoming))

    def inspect(self, name: str, *, upcoming: int = 10) -> ScheduleInfo:
        """One schedule of the store: see `intervalq.schedules.Schedules.inspect`."""
        return BACKGROUND.call(lambda: self._here().inspect(name, upcoming=upcoming))

    def pause(self, name: str) -> None:
        """Stop a schedule from firing: see `intervalq.schedules.Schedules.pause`."""
        BACKGROUND.call(lambda: self._here().pause(name))

    def resume(self, name: str) -> None:
        """End a pause: see `intervalq.schedules.Schedules.resume`."""
        BACKGROUND.call(lambda: self._here().resume(name))

    def fire(self, name: str) -> None:
        """Fire a schedule now: see `intervalq.schedules.Schedules.fire`."""
        BACKGROUND.call(lambda: self._here().fire(name))

    def drop(self, name: str) -> None:
        """Forget a schedule: see `intervalq.schedules.Schedules.drop`."""
        BACKGROUND.call(lambda: self._here().drop(name))

    def close(self) -> None:
        """Close the connections to the store, which is opened again if it is used again."""
        if self._process == os.getpid():
            BACKGROUND.call(self._schedules.aclose)

    def _here(self) -> AsyncSchedules:
        if self._process != os.getpid():  # a child must not use the connections of its parent
            self._schedules, self._process = self._schedules._twin(self._store), os.getpid()
        return self._schedules

    def __repr__(self) -> str:
        return repr(self._schedules)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
