"""Revocations: claims that others have ended. A session receives them, or looks for them if in doubt.

Whoever changes a task that others may have claimed, or stores it again, publishes a revocation before the
message that completes the step. So a session that is connected to the stream's own server, or through it,
receives it before any answer that the server gives after the step: a session that has received none needn't
look. Requests to delete or purge messages, or to delete a consumer, are received in the same way: tasks that
they concern aren't acknowledged, but replaced on condition that they exist.

With replicas, the leader's answers take another path than messages of others, and an acknowledgement is
answered before the message is removed from the stream. So only conditional messages are certain there. The
same holds for a user who may not subscribe to these subjects.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from nats.aio.msg import Msg

from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict, Part
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._task.delivery import Delivery, by_queue
from intervalq_stores.nats._task.message import PREFIX, REVOCATIONS, STREAM, matches, revocations_of
from intervalq_stores.nats._task.stream import Stream
from intervalq_stores.nats._url import WITHIN

_MANY: Final = 10_000
"""How many revoked claims are remembered; for older claims, the session queries the stream."""

_PURGING: Final = round(WITHIN * 1e6)
"""Microseconds that a purge may take; claims made until then are uncertain."""

_MARGIN: Final = 60
"""Seconds for which a revocation is kept, beyond twice the longest time between renewals of a claim."""


async def revoking(stream: Stream, tasks: Iterable[tuple[str, int]]) -> list[Part]:
    """The revocations of some tasks, by queue and sequence, for sessions that may have claimed them."""
    sequences: dict[str, list[int]] = {}
    for queue, sequence in tasks:
        sequences.setdefault(queue, []).append(sequence)
    parts: list[Part] = []
    for queue, some in sequences.items():
        wait = (await stream.consumer(queue))["ack_wait"] // 1_000_000_000
        parts.append(batch.revoked(queue, some, wait * 2 + _MARGIN))
    return parts


def may_have_expired(delivery: Delivery) -> bool:
    """Whether a claim was lost so long ago that its revocation may have expired."""
    return stopwatch() >= delivery.deadline + delivery.wait + (_MARGIN - 10) * SECOND


class Revocations:
    """The revocations that a session has received."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._connection: Connection | None = None
        self._since: int | None = None  # since when it has received all of them, on `stopwatch`
        self._heard: set[int] = set()
        self._deleted: set[int] = set()
        self._purges: list[tuple[int, str, int]] = []  # when it was, its subjects, and below which sequence
        self._before = 0  # the last message when it began to listen
        self._doubled = False  # whether some subjects then had several messages

    async def listen(self, connection: Connection) -> None:
        """Listen for revocations from now on, on this connection."""
        self._connection, self._since = connection, None
        self._heard.clear()
        self._deleted.clear()
        self._purges.clear()
        if self._stream.is_replicated:
            return
        async with self._stream.server.bounded():
            allowed = await connection.hear(
                {
                    f"{REVOCATIONS}.>": self._came,
                    f"$JS.API.STREAM.MSG.DELETE.{STREAM}": self._is_deleted,
                    f"$JS.API.STREAM.PURGE.{STREAM}": self._is_purged,
                    f"$JS.API.CONSUMER.DELETE.{STREAM}.*": self._is_unknown,
                }
            )
        state = await self._stream.state()
        self._before, self._doubled = state["last_seq"], state["messages"] > state.get("num_subjects", 0)
        self._since = stopwatch() if allowed else None

    async def of(self, mine: Sequence[Delivery]) -> list[Delivery]:
        """Those claims whose tasks others have changed without a claim."""
        found: list[Delivery] = []
        for some in by_queue([delivery for delivery in mine if not self.is_safe(delivery)]):
            revoked, _ = await self._stream.revoked(
                some[0].row.queue, [delivery.sequence for delivery in some]
            )
            found += [delivery for delivery in some if delivery.sequence in revoked]
        return found

    async def is_revoked(self, delivery: Delivery) -> bool:
        """Whether others have changed the task, whichever replica answers.

        A former leader may not know of a change. So a read counts only if a conditional message confirms
        that it was up to date.
        """
        if not self._stream.is_replicated:
            return bool(await self.of([delivery]))
        pattern = f"{revocations_of(delivery.row.queue)}.*"
        while True:
            top, _ = await self._stream.last(pattern)
            revoked, last = await self._stream.revoked(delivery.row.queue, [delivery.sequence])
            if revoked:
                return True
            with suppress(Conflict):
                if top == last or top <= delivery.sequence:
                    await batch.store(self._stream.server, [batch.seen(pattern, top)])
                    return False

    def is_safe(self, delivery: Delivery) -> bool:
        """Whether a revocation would have been received; not every received one was stored in the end."""
        heard = (
            self._since is not None
            and delivery.connection is self._connection
            and delivery.since >= self._since
        )
        return heard and delivery.connection.is_open and not self.is_heard(delivery)

    def is_heard(self, delivery: Delivery) -> bool:
        """Whether a revocation of a claim, or a request to remove its message, was received."""
        return delivery.sequence in self._heard or delivery.sequence in self._deleted

    def is_removed(self, delivery: Delivery, since: int) -> bool:
        """Whether a request that may have removed its message was received after `since`, on `stopwatch`."""
        return delivery.sequence in self._deleted or any(
            at >= since and delivery.sequence < below and matches(delivery.subject, pattern)
            for at, pattern, below in self._purges
        )

    def is_first(self, delivery: Delivery) -> bool:
        """Whether nobody else can have got the message, or changed it without a received revocation.

        This is so if this process of the server has stored it, because it knows all of its deliveries.
        """
        return delivery.sequence > self._before and self.is_safe(delivery)

    def may_be_outdated(self, delivery: Delivery) -> bool:
        """Whether a message that is delivered for the first time may have been replaced by another.

        A killed server may have forgotten an earlier delivery, and the revocation may have come before
        this session began to listen.
        """
        if delivery.row.key is not None or self._since is None:
            return not self.is_first(delivery)
        return self._doubled and delivery.sequence <= self._before

    def _came(self, message: Msg) -> None:
        self._forget(self._heard)
        try:
            self._heard.update(json.loads(message.data))
        except (ValueError, TypeError):
            self._since = None

    def _is_deleted(self, message: Msg) -> None:
        self._forget(self._deleted)
        with suppress(ValueError, TypeError, KeyError):  # the server refuses it, too
            self._deleted.add(json.loads(message.data)["seq"])

    def _is_purged(self, message: Msg) -> None:
        request: object = {}  # the server takes a request that isn't JSON to mean everything
        with suppress(ValueError):
            request = json.loads(message.data)
        if isinstance(request, list):
            return  # the server refuses requests with wrong types, too
        some = request if isinstance(request, dict) else {}
        pattern, below = some.get("filter") or ">", some.get("seq") or sys.maxsize
        if isinstance(pattern, str) and isinstance(below, int):
            self._doubt(pattern, below)

    def _is_unknown(self, message: Msg) -> None:
        """Note that a consumer is deleted: its successor delivers claimed tasks again."""
        self._doubt(f"{PREFIX}.w.{message.subject.rpartition('.')[2]}.>", sys.maxsize)

    def _doubt(self, pattern: str, below: int) -> None:
        now = stopwatch()
        self._since = None if self._since is None else max(self._since, now + _PURGING)
        self._purges = [purge for purge in self._purges if purge[0] > now - 2 * _PURGING]
        self._purges.append((now, pattern, below))

    def _forget(self, some: set[int]) -> None:
        """Limit the number of revocations; earlier claims are then uncertain."""
        if len(some) > _MANY:
            some.clear()
            self._since = None if self._since is None else max(self._since, stopwatch())
