"""`intervalq://`: ledgers of a service."""

from __future__ import annotations

from typing import cast

from intervalq._wire.values import dumps
from intervalq._wire.verbs import LEDGER_ANSWER, LEDGERS, NAMES, Names
from intervalq.ledger.rules import Answer, Command
from intervalq_stores.remote._answers import encoded, understood
from intervalq_stores.remote._client import Client


class RemoteLedgerStore:
    """The ledgers of the store that a service has."""

    def __init__(self, url: str) -> None:
        self._client = Client(url, "ledgers behind a service")
        self.url = self._client.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, ledger: str, command: Command, now: int | None = None) -> Answer:
        """See `LedgerStore.apply`."""
        asked = encoded(self.url, LEDGERS, command)
        data, _ = await self._client.apply("LEDGERS", ledger, asked, now)
        with understood(self.url) as read:
            return cast("Answer", read(LEDGER_ANSWER, data))

    async def names(self) -> list[str]:
        """See `LedgerStore.names`."""
        data, _ = await self._client.apply("LEDGERS", "", dumps(LEDGERS, Names()), None)
        with understood(self.url) as read:
            return list(read(NAMES, data))

    async def aclose(self) -> None:
        """See `LedgerStore.aclose`."""
        await self._client.aclose()
