"""The stream of tasks and its consumers, one per queue: created when they are needed, and read directly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from nats.aio.msg import Msg

from intervalq.store import stopwatch
from intervalq.tasks.rules import SECOND, Row
from intervalq_stores.nats import _lists
from intervalq_stores.nats._connection import Connection
from intervalq_stores.nats._names import encoded
from intervalq_stores.nats._server import Refused, Server
from intervalq_stores.nats._task.message import (
    PREFIX,
    STREAM,
    filter_of,
    is_gone,
    is_task,
    is_token,
    over_of,
    revocations_of,
    row_of,
    token_of,
)

_CONFIG: Final[dict[str, Any]] = {
    "name": STREAM,
    "description": "durable tasks of intervalq",
    "subjects": [f"{PREFIX}.>"],
    "storage": "file",
    "retention": "workqueue",  # acknowledged messages are removed
    "max_msgs_per_subject": -1,  # messages that a limit removes may come back: see `_task.commit`
    "discard": "old",
    "allow_msg_ttl": True,
    "allow_rollup_hdrs": True,
    "allow_atomic": True,
    "allow_direct": True,
}
_NEEDED: Final = [
    "subjects", "retention", "max_msgs_per_subject", "discard",
    "allow_msg_ttl", "allow_rollup_hdrs", "allow_atomic", "allow_direct",
]  # fmt: skip

_NO_CONSUMER: Final = 10014
_CONSUMER_EXISTS: Final = 10148
_PAGE: Final = 1000
_AT_ONCE: Final = 250
"""How many requests are sent at once: the server drops all of them if 10,000 are waiting."""

ROUNDED: Final = SECOND
"""How much earlier a restarted server may believe that it delivered a message: its files have whole seconds.

With replicas this may happen at any time, without anybody noticing."""

# Descriptions of a consumer, which tell whether a worker has set its ack wait, or an inserter has guessed it.
_ASKED: Final = "workers of intervalq"
_NOBODY_ASKED: Final = "tasks of intervalq, and no worker yet"

Consumer = dict[str, Any]


class Stream:
    """A store's access to its stream."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._checked: Connection | None = None
        self._clustered = False
        self._ahead = 0  # on `stopwatch`
        self.made = ""
        """When the stream was created: a claim of a removed stream would match a task of its successor."""
        self._consumers: dict[str, Consumer] = {}  # their configuration, by queue

    async def connection(self) -> Connection:
        """The connection, after making sure that the stream exists."""
        if self._checked is not None and self._checked.is_open:
            return self._checked
        async with self.server.bounded():
            connection = await self.server.connection()
        if connection is not self._checked:
            sent = stopwatch()
            made = await self.server.ensure(_CONFIG, _NEEDED, "tasks")
            self._ahead = _microseconds(made["ts"]) - (sent + stopwatch()) // 2
            self.made = made["created"]
            self._clustered = made.get("cluster") is not None or not connection.has_jetstream
            self._consumers.clear()
            self._checked = connection
        return connection

    @property
    def is_replicated(self) -> bool:
        """Whether a server other than that of this connection may answer."""
        return self._clustered

    async def state(self) -> Any:  # noqa: ANN401 - whatever the server says
        """The server's figures about the messages: how many, of how many subjects, and so on."""
        return (await self.server.ask(f"STREAM.INFO.{STREAM}"))["state"]

    def forget(self) -> None:
        """Check again that the stream and its consumers exist, because something went wrong."""
        self._checked = None

    def now(self) -> int:
        """The server's clock, in microseconds since 1970, as it was when the connection was made."""
        return stopwatch() + self._ahead

    # --- consumers ----------------------------------------------------------------------------------

    async def consumer(self, queue: str, ack_wait: int | None = None) -> Consumer:
        """The configuration of a queue's consumer, which is created if there is none.

        Args:
            queue: the queue whose tasks it delivers.
            ack_wait: the least time after which it delivers a task again, in microseconds. It is the same for
                all workers of the queue: the longest that any of them has requested. None: the caller is no
                worker.
        """
        await self.connection()
        if ack_wait is not None and self._clustered:
            ack_wait += ROUNDED
        known = self._consumers.get(queue)
        if known is None:
            known = await self._make(queue, ack_wait)
        elif ack_wait is None or (known["ack_wait"] >= ack_wait * 1_000 and known["description"] == _ASKED):
            return known  # in most calls
        wanted = dict(known)
        if ack_wait is not None:
            nobody_asked = known.get("description") == _NOBODY_ASKED
            wanted["ack_wait"] = (
                ack_wait * 1_000 if nobody_asked else max(known["ack_wait"], ack_wait * 1_000)
            )
            wanted["description"] = _ASKED
        if wanted != known:
            name = known["durable_name"]
            made = await self.server.place(
                f"CONSUMER.DURABLE.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": wanted}
            )
            known = made["config"]
        self._consumers[queue] = known
        return known

    def surely(self, consumer: Consumer) -> int:
        """The least time for which a delivered message is delivered to nobody else, in microseconds."""
        return int(consumer["ack_wait"]) // 1_000 - (ROUNDED if self._clustered else 0)

    async def _make(self, queue: str, ack_wait: int | None) -> Consumer:
        name = encoded(queue)
        config = {
            "durable_name": name,
            "description": _NOBODY_ASKED if ack_wait is None else _ASKED,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "filter_subject": filter_of(queue),
            "ack_wait": (5 * SECOND if ack_wait is None else ack_wait) * 1_000,
            "max_ack_pending": -1,
            "max_waiting": self.server.made.max_waiting,
            "max_deliver": -1,
        }
        subject = f"CONSUMER.DURABLE.CREATE.{STREAM}.{name}"
        try:
            made = await self.server.place(
                subject, {"stream_name": STREAM, "config": config, "action": "create"}
            )
        except Refused as refused:
            if refused.code != _CONSUMER_EXISTS:
                raise
            made = await self.server.ask(f"CONSUMER.INFO.{STREAM}.{name}")
        found: Consumer = made["config"]
        return found

    async def info(self, queue: str) -> Any | None:  # noqa: ANN401 - whatever the server says
        """The server's info about a queue's consumer; None: there is none."""
        await self.connection()
        try:
            return await self.server.ask(f"CONSUMER.INFO.{STREAM}.{encoded(queue)}")
        except Refused as refused:
            if refused.code == _NO_CONSUMER:
                return None
            raise

    async def consumers(self) -> list[Any]:
        """The server's info about all consumers."""
        await self.connection()
        return await _lists.consumers(self.server, STREAM)

    # --- messages -----------------------------------------------------------------------------------

    async def subjects(self, pattern: str) -> dict[str, int]:
        """The number of messages of each subject."""
        await self.connection()
        return await _lists.subjects(self.server, STREAM, pattern)

    async def last(self, pattern: str) -> tuple[int, Msg | None]:
        """The last message of a subject or pattern, and its sequence; 0 if there is none."""
        message = await self._one({"last_by_subj": pattern})
        return (0, None) if message is None else (_sequence(message), message)

    async def at(self, sequence: int) -> Msg | None:
        """The message with this sequence; None: it no longer exists."""
        return await self._one({"seq": sequence})

    async def _one(self, body: dict[str, Any]) -> Msg | None:
        """The present state of one message. With replicas, the leader is asked: others may be behind."""
        await self.connection()
        if self._clustered:
            return await self.server.message(STREAM, body)
        for message in await self.server.messages(STREAM, body):
            return message
        return None

    async def lasts(self, subjects: Sequence[str]) -> dict[str, int]:
        """The sequences of the last messages of some subjects."""
        await self.connection()
        found: dict[str, int] = {}
        for start in range(0, len(subjects), _AT_ONCE):
            some = subjects[start : start + _AT_ONCE]
            if self._clustered:
                lasts = await asyncio.gather(*(self.last(subject) for subject in some))
                found |= {subject: last for subject, (last, _) in zip(some, lasts, strict=True)}
            else:
                page = await self.server.messages(STREAM, {"multi_last": some})
                found |= {_subject(message): _sequence(message) for message in page}
        return found

    async def revoked(self, queue: str, sequences: Sequence[int]) -> tuple[set[int], int]:
        """Which of these tasks were changed by others without a claim; and the last revocation, or 0."""
        pattern, after, found, last = f"{revocations_of(queue)}.*", min(sequences) + 1, set[int](), 0
        while True:
            body = {"seq": after, "next_by_subj": pattern}
            if self._clustered:
                one = await self._one(body)
                page = [] if one is None else [one]
            else:
                page = await self.server.messages(STREAM, body | {"batch": _PAGE})
            for message in page:
                found.update(json.loads(message.data))
            if not page:
                return found & set(sequences), last
            last = _sequence(page[-1])
            after = last + 1

    async def rows(self, pattern: str, limit: int | None) -> list[Row]:
        """The tasks of a pattern, in the order in which they were stored."""
        await self.connection()
        found: list[Row] = []
        over: set[int] = set()
        after = 1
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = await self.server.messages(STREAM, {"seq": after, "next_by_subj": pattern, "batch": size})
            last = {_subject(message): message for message in page}  # without leftovers of replaced messages
            found += [self.row(message) for message in last.values() if not is_gone(message)]
            over.update(sequence for message in page for sequence in over_of(message))
            if len(page) < size:
                break
            after = _sequence(page[-1]) + 1
        return [row for row in found if row.version not in over]

    async def line(self, pattern: str) -> tuple[int, list[Row], dict[str, int]]:
        """The last sequence of a key, its tasks, and the tombstones of recently removed ones.

        Leftovers of replaced messages are removed.
        """
        found: dict[str, Msg] = {}
        beneath: list[int] = []
        last = 0
        while True:
            page = await self.server.messages(
                STREAM, {"seq": last + 1, "next_by_subj": pattern, "batch": _PAGE}
            )
            for message in page:
                before = found.pop(_subject(message), None)
                beneath += [] if before is None else [_sequence(before)]
                found[_subject(message)] = message
            last = _sequence(page[-1]) if page else last
            if len(page) < _PAGE:
                break
        for name, message in [(name, message) for name, message in found.items() if is_token(name)]:
            over = over_of(message)
            waited = [other for other, one in found.items() if _sequence(one) in over and other != name]
            beneath += [_sequence(found.pop(other)) for other in waited]
        await self.removed(beneath)
        rows = [self.row(message) for message in found.values() if not is_gone(message)]
        return last, rows, {name: _sequence(message) for name, message in found.items() if is_gone(message)}

    async def with_ids(self, ids: Iterable[str], queue: str | None = None) -> list[Row]:
        """Tasks with these ids, in any queue or a given one. All tasks with tokens are searched."""
        found: list[Row] = []
        tokens: list[Row] | None = None
        name = "*" if queue is None else encoded(queue)
        for id_ in ids:
            before = len(found)
            for pattern in (f"{PREFIX}.w.{name}.{encoded(id_)}", f"{PREFIX}.k.{name}.*.{encoded(id_)}"):
                for subject in [pattern] if "*" not in pattern else await self.subjects(pattern):
                    _, message = await self.last(subject)
                    if message is not None and not is_gone(message):
                        found.append(await self._promoted(self.row(message)))
            if len(found) == before:
                if tokens is None:
                    tokens = await self.rows(f"{PREFIX}.w.{name}.*.0", None)
                found += [row for row in tokens if row.id == id_]
        return found

    async def _promoted(self, row: Row) -> Row:
        """The task that has the token, if it is the one that seems to wait."""
        if row.waiting:
            _, message = await self.last(token_of(row.queue, str(row.key)))
            if message is not None and row.version in over_of(message):
                return self.row(message)
        return row

    async def task(self, sequence: int) -> Row | None:
        """The task with this sequence; None: it no longer exists, or is something else.

        The messages that it replaced are removed, so that it can be changed or removed itself.
        """
        message = await self.at(sequence) if sequence > 0 else None
        if message is None or is_gone(message) or not is_task(_subject(message)):
            return None
        if (await self.last(_subject(message)))[0] != sequence:
            return None
        await self.removed(over_of(message))
        return self.row(message)

    async def tombstone(self, subject: str) -> tuple[bool, int]:
        """Whether a task exists, and the sequence of a tombstone; 0: there is none."""
        sequence, message = await self.last(subject)
        if message is None or not is_gone(message):
            return message is not None, 0
        await self.removed(over_of(message))
        return False, sequence

    def row(self, message: Msg) -> Row:
        """The row of a message that was read directly."""
        headers = message.headers or {}
        return row_of(message, headers["Nats-Subject"], _sequence(message), _stored(message), self.server.url)

    async def remove(self, sequence: int) -> bool:
        """Remove a message; returns whether it existed. Of several callers, only one succeeds."""
        try:
            await self.server.ask(f"STREAM.MSG.DELETE.{STREAM}", {"seq": sequence, "no_erase": True})
        except Refused:
            return False
        return True

    async def removed(self, sequences: Sequence[int]) -> None:
        """Remove messages, if they exist."""
        for start in range(0, len(sequences), _AT_ONCE):
            await asyncio.gather(*map(self.remove, sequences[start : start + _AT_ONCE]))

    async def close(self) -> None:
        """Close the connection."""
        self._checked = None
        await self.server.close()


def _subject(message: Msg) -> str:
    return str((message.headers or {})["Nats-Subject"])


def _sequence(message: Msg) -> int:
    return int((message.headers or {})["Nats-Sequence"])


def _stored(message: Msg) -> int:
    """When a message was stored, in microseconds since 1970."""
    return _microseconds((message.headers or {})["Nats-Time-Stamp"])


def _microseconds(text: str) -> int:
    """An instant as the server writes it: with nanoseconds, which Python can't read."""
    whole, _, rest = text.rstrip("Z").partition(".")
    seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
    return seconds * 1_000_000 + int(f"{rest:0<6}"[:6])
