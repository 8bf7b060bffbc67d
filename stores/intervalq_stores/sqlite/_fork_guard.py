"""Keeps SQLite and `fork` apart: a child gets no open database, and no mutex that nobody will ever free.

SQLite keeps a list of the files that its process has locked. A child inherits the list, but not the locks: if
it opens such a file too, it only believes to have it locked, and others remove the log it writes to. So a
fork waits until no thread is inside SQLite, and finds all databases closed.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol


class Closing(Protocol):
    """What is to be closed before a fork."""

    def close(self) -> None:
        """Close it; it opens again when it is used again."""
        ...


class ForkGuard:
    """Lets a fork wait for the threads that are inside, and threads for a fork."""

    patience = 10.0
    """How many seconds a fork waits at most: a disk that hangs must not hold up a whole process for ever."""

    def __init__(self) -> None:
        self.spoiled = False
        """This process was forked while SQLite was at work: it can't use it."""
        self._leaked: list[Closing] = []
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forks = 0
        self._open: set[Closing] = set()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Use SQLite. For short: not while something is waited for."""
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
        """Note one that is to be closed before a fork; only inside."""
        self._open.add(database)

    def closed(self, database: Closing) -> None:
        """Forget one; only inside."""
        self._open.discard(database)

    def those_open(self) -> list[Closing]:
        """Those that are open; only inside."""
        return list(self._open)

    def before(self) -> None:
        """Wait until nobody is inside, let nobody in, and close all."""
        with self._changed:
            self._forks += 1
            if self._changed.wait_for(lambda: not self._inside, self.patience):
                for database in list(self._open):
                    database.close()

    def after_in_parent(self) -> None:
        """Go on."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Go on without the threads, of which there is none in a child."""
        if self._open or self._inside:
            self.spoiled = True
            self._leaked += self._open  # closing them here, even by losing them, isn't allowed either
        self._reset()

    def at_exit(self) -> None:
        """Close all, which puts their logs into the databases: a process that ends leaves one file."""
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
