"""The exchange between the three threads of a task: the input's reader, the event loop, and the writer."""

from __future__ import annotations

import threading
import time
from typing import Any, Final, NamedTuple

import pyarrow as pa


class Stamp(NamedTuple):
    """The log entry of a row's call. Instants are seconds since 1970."""

    ticket: int = 0
    due: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    host: str = ""
    pid: int = 0
    attempt: int = 0
    calls: int = 0


class Row(NamedTuple):
    """A row of the input."""

    batch: pa.RecordBatch
    place: int
    data: dict[str, Any]
    key: str
    """The key as text; empty without a key."""


class Done(NamedTuple):
    """A row that has ended."""

    batch: pa.RecordBatch
    place: int
    key: str
    value: dict[str, Any] | None
    stamp: Stamp
    replayed: bool
    error: str | None


_QUICK: Final = 0.2
"""A window grows if as many rows as it holds end within so many seconds, and shrinks if that takes four times
as long."""


class Exchange:
    """Rows in progress: at most as many as the window has are between input and result."""

    def __init__(self, window: int, most: int, flush_rows: int, flush_s: float) -> None:
        """The window grows from `window` up to `most` rows while rows end quickly."""
        self._least = self._window = window
        self._most = most
        self._ended = 0
        self._since = time.monotonic()
        self._flush_rows = flush_rows
        self._flush_s = flush_s
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._results = threading.Condition(self._lock)
        self._held = 0
        self._finished: list[Done] = []
        self._over = False
        self._error: BaseException | None = None

    @property
    def step(self) -> int:
        """How many rows to enter at a time."""
        return max(1, self._window // 4)

    def enter(self, rows: int) -> bool:
        """Wait for room for some rows (reader's thread); False: the task is ending, and wants no more."""
        with self._lock:
            while self._held and self._held + rows > self._window and not self._over:
                self._room.wait()
            self._held += rows
            return not self._over

    def finish(self, rows: list[Done]) -> None:
        """Hand over rows that have ended (event loop's thread)."""
        with self._lock:
            self._held -= len(rows)
            self._finished += rows
            self._adapt(len(rows))
            self._room.notify()
            if len(self._finished) >= self._flush_rows:
                self._results.notify()

    def _adapt(self, ended: int) -> None:
        """Hold as many rows as end in a moment: a command for many costs a store little more than for one."""
        self._ended += ended
        if self._ended < self._window:
            return
        now = time.monotonic()
        if now - self._since < _QUICK:
            self._window = min(self._most, 2 * self._window)
        elif now - self._since > 4 * _QUICK:
            self._window = max(self._least, self._window // 2)
        self._ended, self._since = 0, now

    def end(self, error: BaseException | None = None) -> None:
        """Note that no more rows will end: all have, or there was an error. The first error counts."""
        with self._lock:
            if not self._over:
                self._over, self._error = True, error
            self._room.notify_all()
            self._results.notify_all()

    def take(self) -> list[Done]:
        """Wait for rows to write (writer's thread); an empty list at the end.

        Raises:
            BaseException: the error given to `end`, once all rows that ended before it are written.
        """
        due = time.monotonic() + self._flush_s
        with self._lock:
            while not self._over and len(self._finished) < self._flush_rows:
                left = due - time.monotonic()
                if left <= 0 and self._finished:
                    break
                self._results.wait(left if left > 0 else self._flush_s)
            rows, self._finished = self._finished, []
            if not rows and self._error is not None:
                raise self._error
            return rows
