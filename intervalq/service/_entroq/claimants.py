"""Claimants, EntroQ's holders of claims: each is a session of the store that sends no heartbeats."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from intervalq.service._refusal import Code, Refusal
from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND, Begin, Row, Session
from intervalq.tasks.store import TaskStore

PREFIX: Final = "entroq:"
"""The prefix of the sessions of claimants, so that none can pass for the session of a worker."""

LONGEST: Final = 3_600 * SECOND
"""The longest claim, in microseconds."""

_EXPIRY: Final = 2 * LONGEST
"""A session outlives its claims: a new one is begun in time, so no claim can be lost."""
_KNOWN: Final = 100_000


class Claimants:
    """The sessions that this service has begun."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self._begun: OrderedDict[str, int] = OrderedDict()  # when, on the stopwatch

    async def session(self, claimant: str, *, again: bool = False) -> str:
        """The session of a claimant, which the store knows.

        Args:
            claimant: its id in the protocol.
            again: the store has just said that it doesn't know it.
        """
        session = session_of(claimant)
        now = stopwatch()
        if again or self._begun.get(session, now - _EXPIRY) + LONGEST < now:
            await self._store.apply(Begin(Session(session, expiry=_EXPIRY)))
            self._begun[session] = now
            if len(self._begun) > _KNOWN:
                self._begun.popitem(last=False)
        self._begun.move_to_end(session)
        return session


def session_of(claimant: str) -> str:
    """The id of a claimant's session; empty: that of a caller who claims nothing.

    Raises:
        Refusal: the id is too long, or not printable.
    """
    if len(claimant) > 170 or not claimant.isprintable():
        raise Refusal(
            Code.INVALID_ARGUMENT, "claimant_id has more than 170 characters, or control characters"
        )
    return f"{PREFIX}{claimant}" if claimant else ""


def claimant_of(row: Row) -> str:
    """Who has claimed a task, in the protocol's terms; empty: nobody."""
    return (row.session or "").removeprefix(PREFIX)
