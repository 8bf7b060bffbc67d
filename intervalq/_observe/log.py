"""The execution log of a handle: one line of JSON for each start, written by a thread of its own.

A job's start only appends to a list. Several processes may write to the same file: each writes whole lines.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import sys
import threading
from collections import deque
from itertools import count
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

from intervalq._keys.names import shown
from intervalq._keys.shards import keyed_on
from intervalq._observe.starts import observe
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq._spec.limits import text
from intervalq.rules import Settings

log: Final = logging.getLogger("intervalq")

_PAUSE: Final = 0.25
"""Seconds between two writes."""

_IDLE: Final = 20
"""Pauses without a line after which the thread ends; the next line starts another."""

_MAX_UNWRITTEN: Final = 1 << 24
"""The maximum number of bytes to keep for a file that can't be written at the moment."""

_numbers: Final = count(1)


class StartLog:
    """The log of one shard. Times are seconds since 1970 on the store's clock.

    Its lines have `queue` and `shard`, and: `ticket`, `due`, `started`, `waited` for a start; `ticket`,
    `undone` for one that was taken back; `at` and the settings whenever they have changed, of a key under a
    common rate also those of the `common` queue; `at`, `unused`, `refused` for slots given up, by cause, and
    jobs refused by the server, since the last such line.
    """

    def __init__(self, shard: Shard, writer: Writer) -> None:
        self._shard = shard
        self._writer = writer
        self._names = {
            "queue": shown(shard.queue),
            "shard": f"{socket.gethostname()}:{os.getpid()}:{next(_numbers)}",
        }
        self._key = keyed_on(shard.store)
        self._settings: tuple[Settings, Settings | None] | None = None  # with those of the common queue
        self._skipped: dict[str, int] = {}
        self._refused = self._told = 0  # jobs that were refused, and how many of them stand in the log

    def began(self, grant: Grant, started: float, waited: float) -> None:
        """See `Observer.began`."""
        state, key = self._shard.state, self._key
        if state is not None:
            common = None if key is None or key.common is None else key.common
            known, settings = self._settings, (state.settings, None if common is None else common.settings)
            if known is None or settings[0] is not known[0] or settings[1] is not known[1]:
                if settings != known:
                    self._writer.put((self._names, started, state.settings, state.tolerance, common))
                self._settings = settings
        self._writer.put((self._names, grant.ticket, grant.due, started, waited))
        self._writer.wake()

    def undone(self, grant: Grant) -> None:
        """See `Observer.undone`."""
        self._writer.put((self._names, grant.ticket))
        self._writer.wake()

    def refused(self) -> None:
        """A job was refused by the called server."""
        self._refused += 1
        self._writer.wake()

    def flush(self) -> None:
        """Write what there is."""
        self._writer.flush()

    def lost(self) -> list[str]:
        """A line about slots given up and jobs refused since the last one, if there were any."""
        skipped = dict(self._shard.dispatcher.skipped)
        unused = {cause: count - self._skipped.get(cause, 0) for cause, count in skipped.items()}
        unused = {cause: count for cause, count in unused.items() if count}
        refused = self._refused - self._told
        self._skipped, self._told = skipped, self._told + refused
        if not unused and not refused:
            return []
        at = round(self._shard.store_time(), 6)
        return [json.dumps({**self._names, "at": at, "unused": unused, "refused": refused})]


def _line(names: dict[str, str], *values: Any) -> str:
    line: dict[str, Any]
    if len(values) == 1:
        line = {"ticket": values[0], "undone": True}
    elif isinstance(values[1], Settings):
        at, settings, tolerance, common = values
        line = {"at": round(at, 6), **_settings(settings, tolerance)}
        if common is not None:
            line["common"] = _settings(common.settings, common.tolerance)
    else:
        ticket, due, started, waited = values
        times = {"due": due, "started": started, "waited": waited}
        line = {"ticket": ticket, **{name: round(time, 6) for name, time in times.items()}}
    return json.dumps(names | line)


def _settings(settings: Settings, tolerance: int) -> dict[str, Any]:
    return {
        "interval": settings.interval / 1e6 if settings.has_pace else None,
        "tolerance": tolerance / 1e6,
        "burst": settings.burst,
        "max_running": settings.max_running or None,
        "limits": [text(limit) for limit in settings.limits],
    }


class Writer:
    """Writes the lines of all logs of this process that have the same file, which is open only meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.close(self._opened())
        self._logs: WeakSet[StartLog] = WeakSet()
        self._adding = threading.Lock()  # never held while it writes
        self._lines: deque[tuple[Any, ...]] = deque()
        self.put = self._lines.append
        self._lock = threading.Lock()
        self._unwritten = bytearray()
        self._thread: threading.Thread | None = None
        self._is_broken = False
        if (processes := sys.modules.get("multiprocessing.util")) is not None:  # its children skip `atexit`
            processes.Finalize(None, _flush_all, exitpriority=0)

    def add(self, starts: StartLog) -> None:
        """Write what this log notes of lost slots, too."""
        with self._adding:
            self._logs.add(starts)

    def wake(self) -> None:
        """Write soon."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="intervalq-log", daemon=True)
            thread.start()
            self._thread = thread

    def flush(self) -> bool:
        """Write what there is; returns whether there was anything."""
        with self._lock:
            lines = [_line(*self._lines.popleft()) for _ in range(len(self._lines))]
            with self._adding:
                logs = list(self._logs)
            lines += [line for starts in logs for line in starts.lost()]
            self._unwritten += "".join(f"{line}\n" for line in lines).encode()
            if not self._unwritten:
                return False
            try:
                self._write()
            except OSError as error:  # jobs go on
                if not self._is_broken:
                    log.warning("the log of starts %s can't be written: %s", self.path, error)
                self._is_broken = True
                if len(self._unwritten) > _MAX_UNWRITTEN:
                    self._unwritten.clear()
            return True

    def _write(self) -> None:
        file = self._opened()
        try:
            while self._unwritten:
                del self._unwritten[: os.write(file, self._unwritten)]
        finally:
            os.close(file)

    def _opened(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _run(self) -> None:
        idle, pause = 0, threading.Event()
        while idle < _IDLE:
            pause.wait(_PAUSE)
            idle = 0 if self.flush() else idle + 1
        self._thread = None
        self.flush()


_writers: WeakValueDictionary[str, Writer] = WeakValueDictionary()


def log_starts(shard: Shard, path: str) -> StartLog:
    """Log all starts of a shard in a file, which is created if it doesn't exist.

    Raises:
        OSError: the file can't be opened.
    """
    path = os.path.abspath(path)  # noqa: PTH100 - the process may change its folder
    writer = _writers.get(path) or _writers.setdefault(path, Writer(path))
    starts = StartLog(shard, writer)
    writer.add(starts)
    observe(shard, starts)
    return starts


def _flush_all() -> None:
    for writer in list(_writers.values()):
        writer.flush()


atexit.register(_flush_all)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_writers.clear)
