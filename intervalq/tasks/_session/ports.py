"""The protocol of what settling a claim in other ways needs from its session."""

from __future__ import annotations

from typing import Protocol

from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.batcher import Batcher
from intervalq.tasks.store import TaskStore


class OwnSession(Protocol):
    """The session of this process."""

    @property
    def store(self) -> TaskStore:
        """The store of its tasks."""
        ...

    @property
    def batcher(self) -> Batcher:
        """The batcher that sends settlements to the store."""
        ...

    async def ready(self) -> str:
        """The id of the session, which begins now if there was none."""
        ...

    async def renewed(self, claim: Claim) -> None:
        """Wait for a renewal in flight, to know the version after it."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether it has the claim, as far as this process knows."""
        ...

    def gone(self, claim: Claim) -> None:
        """Note that a claim is lost."""
        ...
