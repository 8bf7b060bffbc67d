"""A limited number of places, shared fairly between callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from intervalq.service._refusal import Code, Refusal


class Places:
    """If all are taken, a caller gets one of the caller with the most, unless it would then have as many.

    So no single caller, stalled or greedy, can keep all others out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, dict[object, Callable[[], None]]] = {}
        self._count = 0

    @contextmanager
    def place(self, caller: str, end: Callable[[], None]) -> Iterator[None]:
        """Have a place while the context is open. `end` is called if another caller gets it.

        Raises:
            Refusal: there is none.
        """
        if self._count >= self._most:
            self._make_room(caller)
        mine = object()
        self._of.setdefault(caller, {})[mine] = end
        self._count += 1
        try:
            yield
        finally:
            if mine in self._of.get(caller, ()):
                del self._of[caller][mine]
                self._left(caller)

    def end_all(self) -> None:
        """Call `end` for all of them."""
        for places in self._of.values():
            for end in places.values():
                end()

    def _make_room(self, caller: str) -> None:
        most = max(self._of, key=lambda one: len(self._of[one]))
        if len(self._of[most]) <= len(self._of.get(caller, ())) + 1:
            raise Refusal(Code.RESOURCE_EXHAUSTED, "too many clients listen: poll, and try again later")
        _, end = self._of[most].popitem()  # its newest
        self._left(most)
        end()

    def _left(self, caller: str) -> None:
        self._count -= 1
        if not self._of[caller]:
            del self._of[caller]
