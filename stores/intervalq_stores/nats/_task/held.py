"""One claim of a session: a delivery that it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from intervalq.tasks.rules import Row
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._task.lines import Line

SAFE: Final = 0.9
"""Of the time that the server gives, what a worker takes: what it says after that may come too late."""

RENEW: Final = 0.6
"""Of that time, what may be left before it is asked for anew."""

_FORGOTTEN: Final = 2_000_000
"""Microseconds before its end of which a server that is killed may forget what it has handed out.

It writes that down ten times a second. Others are handed the same tasks then, so the claims are given up.
"""


@dataclass(slots=True)
class Held:
    """A delivery that this session works on."""

    row: Row
    """The task as its claimant has it; each renewal is a version."""
    subject: str
    sequence: int
    reply: str
    connection: Connection
    """What it came through: after another connection nothing is certain."""
    since: int
    """It was handed out after this, on `stopwatch`: long after, if it was waited for."""
    came: int
    """It was handed out before this."""
    wait: int
    """How long the server waits for an acknowledgement, in microseconds."""
    deadline: int
    """Until when it is surely nobody else's, on `stopwatch`."""
    ends: int | None = None
    """When it ends by itself, on `stopwatch`; None: with the session."""
    asked: int = 0
    """How often it was to be settled: again where there was no answer."""
    sent: bool = False
    """What settles it was sent."""
    over: tuple[int, ...] = ()
    """What it took the place of, and may be there still: to be removed before anything takes its own."""
    line: Line | None = None
    """Of a token, what was there of its key when it was claimed."""
    ready: asyncio.Task[None] | None = None
    """What removes those, and looks."""

    def unused(self) -> Row:
        """The task, if nobody began with it after all."""
        return self.row._replace(attempt=max(0, self.row.attempt - self.row.begun))

    def unclaimed(self) -> Row:
        """The task as it was before this claim."""
        return self.unused()._replace(claims=self.row.claims - 1)


def claimed(row: Row, session: str, until: int | None, begins: int) -> Row:
    """A task in the hands of a session; `begins` is that of `Work`.

    The server can't be told of a beginning, so 0 is as good as 1.
    """
    begun = max(begins, 1) > row.alone
    return row._replace(
        session=session, until=until, claims=row.claims + 1, attempt=row.attempt + begun, begun=begun
    )


def is_forgotten(held: Held, connection: Connection) -> bool:
    """Whether the server may have been killed before it had written down that it handed this out."""
    ended = held.connection.ended_at
    return held.connection.process != connection.process and (
        ended is None or held.came >= ended - _FORGOTTEN
    )


def is_plain(row: Row) -> bool:
    """Whether nothing else happens when it is done."""
    return row.key is None and row.dedupe is None


def by_queue(some: Sequence[Held]) -> list[list[Held]]:
    """Those of each consumer: it does things in the order in which it is told."""
    found: dict[str, list[Held]] = {}
    for held in some:
        found.setdefault(held.row.queue, []).append(held)
    return list(found.values())
