"""The protocol of a store of ledgers, and how a URL finds it."""

from __future__ import annotations

from typing import Protocol

from intervalq._backends import LEDGERS, backend
from intervalq._timing.clock import CLOCK
from intervalq.ledger.rules import Answer, Command
from intervalq.store import default_url, given_url, sound_url


class LedgerStore(Protocol):
    """Holds ledgers. A class of this shape, made from a URL, is all that a store of ledgers is.

    It belongs to the event loop that first used it, connects at its first use, and connects again if it is
    used after `aclose`.
    """

    @property
    def url(self) -> str:
        """Its URL, without secrets."""
        ...

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """Do `intervalq.ledger.rules.apply` on a ledger: each row in one atomic step.

        Args:
            ledger: its name.
            command: what to do.
            now: the store's clock in microseconds. None, outside of tests: the store reads its own.

        Raises:
            StoreUnavailable: the store can't be reached; a retry may help.
            StoreTimeout: no answer came in time; the step may have been done. Every command is safe to retry,
                because it finds what it did.
            StoreError: any other; a retry won't help.
        """
        ...

    async def names(self) -> list[str]:
        """The names of all ledgers, sorted."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


def open_ledger_store(url: str | None = None) -> LedgerStore:
    """The store of ledgers at a URL or plain path, not yet connected. Queues of that URL are there, too.

    Args:
        url: as for `intervalq.store.open_store`.

    Raises:
        UnknownStore: the scheme is unknown, or that store holds no ledgers.
        MissingExtra, InvalidOption, StoreError: as for `open_store`.
    """
    scheme, url = sound_url(given_url(url) or default_url(), otherwise="file")
    store: LedgerStore = CLOCK.get().store(LEDGERS, url) or backend(LEDGERS, scheme)(url)
    return store
