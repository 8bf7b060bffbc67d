"""A session's claims whose tasks were cancelled: ends the work on them, and then removes the tasks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from intervalq._timing.backends import EventWaker
from intervalq.tasks._claim.task import Claim, Holder
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks.rules import Delete, Kept, Row


class Settling(Protocol):
    """What this needs of the batcher."""

    def find(self, id_: str) -> Claim | None:
        """The claim of a task that is not known to be settled."""
        ...

    def settle(self, settle: Settle) -> None:
        """Send a settlement to the store soon."""
        ...

    def forget(self, claim: Claim) -> bool:
        """Drop a claim; returns whether it was held."""
        ...


class CancelledClaims:
    """Cancelled tasks keep their claims, and so their keys, until the work on them has ended.

    What the work still tries to settle is lost: the cancelled task has another version than its claim.
    """

    def __init__(self, batcher: Settling, owner: Holder) -> None:
        self.known: Final[dict[str, Delete]] = {}
        """The cancelled tasks that are not yet known to be removed, by id."""
        self.lost: Final[dict[str, Claim]] = {}
        """Claims that were found lost during the work on them, by id: perhaps their tasks were cancelled."""
        self._batcher = batcher
        self._owner = owner

    def learn(self, parts: Iterable[Delete]) -> None:
        """End the work on these tasks. The store may report a task several times."""
        for part in parts:
            if part.id in self.known:
                continue
            self.known[part.id] = part
            claim = self._batcher.find(part.id) or self.lost.pop(part.id, None)
            works = claim is not None and claim._on_lost is not None
            if claim is not None and claim._keep_for:
                part = self.known[part.id] = part._replace(kept=Kept(claim._keep_for))  # noqa: PLW2901 - the same part
            if claim is not None and self._batcher.forget(claim):
                claim._lose()
            if not works:
                self._remove(part)

    def found_lost(self, claim: Claim) -> None:
        """End the work on a claim that was found lost. That its task was cancelled may be told later."""
        if claim._on_lost is not None and claim._range is None:
            self.lost[claim._row.id] = claim
        claim._lose()

    def not_told(self, lost: Iterable[str]) -> None:
        """Forget lost claims that a later heartbeat has not named: their tasks were not cancelled."""
        for id_ in lost:
            self.lost.pop(id_, None)

    def has(self, claim: Claim) -> bool:
        """Whether the task of a claim was cancelled."""
        return claim.id in self.known

    def ended(self, claim: Claim) -> None:
        """Note that the function that worked on a task has ended."""
        part = self.known.get(claim.id)
        if part is not None:
            self._remove(part)

    def clear(self) -> None:
        """Forget all: they are no longer this session's."""
        self.known.clear()
        self.lost.clear()

    def _remove(self, part: Delete) -> None:
        row = Row(part.id, part.version, "", 0, "null")
        # It has a waiter, so that it is sent at once, and no loss is reported: it may be gone.
        settle = Settle(Claim(row, self._owner), part, EventWaker())
        settle.ended = partial(self.known.pop, part.id, None)
        self._batcher.settle(settle)
