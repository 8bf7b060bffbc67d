"""Keeps SQLite and `fork` apart: a child inherits no open database, and no mutex that nobody would release.

SQLite keeps a list of the files that its process has locked. A child inherits the list, but not the locks: if
it opens such a file, it wrongly believes that the file is locked, and others remove the log that it writes
to. So a fork waits until no thread is inside SQLite, and all databases are closed.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol


class Closing(Protocol):
    """A database to close before a fork."""

    def close(self) -> None:
        """Close it; it opens again when it is used again."""
        ...


class ForkGuard:
    """Makes a fork wait for the threads inside SQLite, and threads wait for a fork."""

    patience = 10.0
    """The most seconds that a fork waits: a hanging disk must not block a whole process for ever."""

    def __init__(self) -> None:
        self.spoiled = False
        """Whether this process was forked while SQLite was at work, so that it can't use SQLite."""
        self._leaked: list[Closing] = []
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forks = 0
        self._open: set[Closing] = set()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Use SQLite inside this context, and only for short: don't wait for anything in it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forks)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def opened(self, database: Closing) -> None:
        """Register a database to close before a fork; call this only inside."""
        self._open.add(database)

    def closed(self, database: Closing) -> None:
        """Forget a database; call this only inside."""
        self._open.discard(database)

    def those_open(self) -> list[Closing]:
        """The open databases; call this only inside."""
        return list(self._open)

    def before(self) -> None:
        """Wait until no thread is inside, let none in, and close all databases."""
        with self._changed:
            self._forks += 1
            if self._changed.wait_for(lambda: not self._inside, self.patience):
                for database in list(self._open):
                    database.close()

    def after_in_parent(self) -> None:
        """Let threads in again."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Let threads in again, and forget those of the parent."""
        if self._open or self._inside:
            self.spoiled = True
            self._leaked += self._open  # they must not be closed here, not even by garbage collection
        self._reset()

    def at_exit(self) -> None:
        """Close all databases, which merges their logs, so that a process leaves single files at its end."""
        self.before()
        self.after_in_parent()


FORK_GUARD: Final = ForkGuard()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=FORK_GUARD.before,
        after_in_parent=FORK_GUARD.after_in_parent,
        after_in_child=FORK_GUARD.after_in_child,
    )
atexit.register(FORK_GUARD.at_exit)
