"""A claim of a session: a delivery that it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from intervalq.tasks.rules import Row
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._task.lines import Line

SAFE: Final = 0.9
"""The share of the server's ack wait that a worker uses: later settlements might come too late."""

RENEW: Final = 0.6
"""The share of that time that is left when a claim is renewed."""

_FORGOTTEN: Final = 2_000_000
"""Microseconds before a server's death whose deliveries it may forget.

It records them ten times a second. Forgotten tasks are delivered to others, so their claims are given up.
"""


@dataclass(slots=True)
class Delivery:
    """A delivery that this session works on."""

    row: Row
    """The task as its claimant knows it; each renewal increments the version."""
    subject: str
    sequence: int
    reply: str
    connection: Connection
    """The connection of the delivery: after a reconnection, nothing is certain."""
    since: int
    """A lower bound of the time of delivery, on `stopwatch`; after a wait, a rough one."""
    came: int
    """An upper bound of the time of delivery."""
    wait: int
    """How long the server waits for an acknowledgement, in microseconds."""
    deadline: int
    """Until when it is certainly nobody else's, on `stopwatch`."""
    ends: int | None = None
    """When its lease ends, on `stopwatch`; None: with the session."""
    asked: int = 0
    """How many times its settlement was requested; more than once if answers were lost."""
    sent: bool = False
    """Whether its settlement was sent."""
    over: tuple[int, ...] = ()
    """Messages that it replaced and that may still exist: they must be removed before it is replaced."""
    line: Line | None = None
    """For a token, the line of its key when it was claimed."""
    ready: asyncio.Task[None] | None = None
    """The task that removes those messages and reads the line."""

    def unused(self) -> Row:
        """The task as it is given back if nobody began with it."""
        return self.row._replace(attempt=max(0, self.row.attempt - self.row.begun))

    def unclaimed(self) -> Row:
        """The task as it was before this claim."""
        return self.unused()._replace(claims=self.row.claims - 1)


def claimed(row: Row, session: str, until: int | None, begins: int) -> Row:
    """The row of a claimed task; `begins` is that of `Work`.

    Starts can't be reported to the server, so 0 has the same effect as 1.
    """
    begun = max(begins, 1) > row.alone
    return row._replace(
        session=session, until=until, claims=row.claims + 1, attempt=row.attempt + begun, begun=begun
    )


def is_forgotten(delivery: Delivery, connection: Connection) -> bool:
    """Whether the server may have been killed before it recorded this delivery."""
    ended = delivery.connection.ended_at
    return delivery.connection.process != connection.process and (
        ended is None or delivery.came >= ended - _FORGOTTEN
    )


def is_plain(row: Row) -> bool:
    """Whether an acknowledgement alone is enough when the task is done."""
    return row.key is None and row.dedupe is None


def by_queue(some: Sequence[Delivery]) -> list[list[Delivery]]:
    """Claims grouped by consumer, each of which processes commands in order."""
    found: dict[str, list[Delivery]] = {}
    for delivery in some:
        found.setdefault(delivery.row.queue, []).append(delivery)
    return list(found.values())
