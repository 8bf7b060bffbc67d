"""What this process keeps behind each `memory://` URL, for all handles and threads of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Kept(Protocol):
    """What is behind one URL."""

    def forked(self) -> None:
        """Replace the locks in a child, where their holders don't exist."""


K = TypeVar("K", bound=Kept)


class ByName(Generic[K]):
    """What is kept of one kind, by the name in the URL, until the process ends."""

    def __init__(self, make: Callable[[], K]) -> None:
        self._make = make
        self._kept: dict[str, K] = {}
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forked)

    def behind(self, url: str) -> K:
        """What is behind a URL; it is made at the first use."""
        name = url.partition("://")[2].strip("/")
        with self._lock:
            if name not in self._kept:
                self._kept[name] = self._make()
            return self._kept[name]

    def _forked(self) -> None:
        self._lock = threading.Lock()  # the parent's may be held for ever
        for kept in self._kept.values():
            kept.forked()
