"""`memory://`: ledgers in this process, shared by all handles and threads of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from intervalq.ledger.rules import Answer, Command, MemoryBook, apply
from intervalq.store import shown_url, wall_clock
from intervalq_stores.memory._process import ByName


class _Ledgers:
    """The ledgers behind one URL; several event loops may use them from threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.books: dict[str, MemoryBook] = {}

    def there(self, now: int) -> list[str]:
        """The ledgers that have not expired; the others are forgotten."""
        for name, book in list(self.books.items()):
            if book.meta is None or (book.meta.expires is not None and book.meta.expires <= now):
                del self.books[name]
        return sorted(self.books)

    def forked(self) -> None:
        """See `Kept.forked`."""
        self.lock = threading.Lock()


_PROCESS: Final = ByName(_Ledgers)


class MemoryLedgerStore:
    """Ledgers in the process, by the name in the URL. A command is atomic as a whole, under a lock.

    A store with a `clock` (microseconds), for tests, has ledgers of its own.
    """

    def __init__(self, url: str = "memory://", *, clock: Callable[[], int] | None = None) -> None:
        self.url = shown_url(url)
        self._clock = clock or wall_clock
        self._ledgers = _PROCESS.behind(self.url) if clock is None else _Ledgers()

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """See `LedgerStore.apply`."""
        with self._ledgers.lock:
            at = self._clock() if now is None else now
            book = self._ledgers.books.get(ledger) or MemoryBook()
            answer = apply(book, command, at)
            if book.meta is None:
                self._ledgers.books.pop(ledger, None)
            elif ledger not in self._ledgers.books:
                if now is None:
                    self._ledgers.there(at)  # a new ledger removes expired ones
                self._ledgers.books[ledger] = book
            return answer

    async def names(self) -> list[str]:
        """See `LedgerStore.names`."""
        with self._ledgers.lock:
            return self._ledgers.there(self._clock())

    async def aclose(self) -> None:
        """See `LedgerStore.aclose`: there is nothing to close, and the ledgers stay."""
