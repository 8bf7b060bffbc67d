"""What settling a claim in other ways needs of the session that has it."""

from __future__ import annotations

from typing import Protocol

from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.batcher import Batcher
from intervalq.tasks.store import TaskStore


class OwnSession(Protocol):
    """The session of this process."""

    @property
    def store(self) -> TaskStore:
        """Where its tasks are."""
        ...

    @property
    def batcher(self) -> Batcher:
        """What tells the store of what is settled."""
        ...

    async def ready(self) -> str:
        """The id of a session that has begun, now if there was none."""
        ...

    async def renewed(self, claim: Claim) -> None:
        """Wait for a renewal that is under way, for its version."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether it has the claim, as far as is known here."""
        ...

    def gone(self, claim: Claim) -> None:
        """It is somebody else's now."""
        ...
