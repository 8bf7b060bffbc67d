"""Several messages stored atomically, each on condition that what was seen of it is unchanged."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from intervalq_stores.nats._server import Refused, Server
from intervalq_stores.nats._task.message import (
    EXPECTED,
    EXPECTED_OF,
    GONE,
    OVER,
    PREFIX,
    ROLLUP,
    is_handed_out,
    revocations_of,
)
from intervalq_stores.nats._url import Headers

if TYPE_CHECKING:
    from intervalq_stores.nats._connection import Connection

MAX_MESSAGES: Final = 1000
"""How many messages the server accepts at once."""

_WRONG_SEQUENCE: Final = frozenset({10071, 10164})
_TAKEN: Final = 10077


class Part(NamedTuple):
    """A message to store."""

    subject: str
    data: bytes
    headers: Headers
    over: tuple[int, ...] = ()
    """The sequences of the messages that it replaces, which must be removed afterwards."""
    ends: bool = False
    """Whether it must itself be removed after those."""


class Conflict(Exception):
    """Something has changed since it was seen: nothing was stored."""


def new(subject: str, data: bytes, headers: Headers) -> Part:
    """A message on a subject that must have none."""
    return instead(subject, 0, data, headers)


def instead(subject: str, sequence: int, data: bytes, headers: Headers) -> Part:
    """A message that replaces the one with this sequence (0: none), which must exist."""
    return above(Part(subject, data, headers | {EXPECTED: str(sequence)}), sequence)


def above(part: Part, sequence: int) -> Part:
    """The message as one that replaces the one with this sequence (0: none)."""
    if not sequence:
        return part
    if is_handed_out(part.subject):
        return removing(part, (sequence,))
    return part._replace(headers=part.headers | ROLLUP)


def removing(part: Part, sequences: Sequence[int]) -> Part:
    """The message as one after which these must be removed, too."""
    over = (*part.over, *sequences)
    if not over or not is_handed_out(part.subject):
        return part._replace(over=over)
    return part._replace(headers=part.headers | {OVER: " ".join(map(str, over))}, over=over)


def within(part: Part, line: str, last: int) -> Part:
    """The message, on condition that nothing after `last` was stored on the subjects of a filter."""
    return part._replace(headers=part.headers | {EXPECTED: str(last), EXPECTED_OF: line})


def gone(subject: str, sequence: int) -> Part:
    """The removal of the message with this sequence, which must exist."""
    return instead(subject, sequence, b"", GONE)._replace(ends=True)


def seen(subject: str, sequence: int) -> Part:
    """A message that only demands that one with this sequence exists; kept for a second."""
    headers = {"Nats-TTL": "1s", EXPECTED: str(sequence), EXPECTED_OF: subject}
    return Part(f"{PREFIX}.x.{secrets.token_hex(8)}", b"", headers)


def taken(subject: str, id_: str, micros: int) -> Part:
    """A marker that a dedupe key is taken, for a while after its task is gone."""
    seconds = max(1, -(-micros // 1_000_000))  # the server counts whole ones
    return Part(subject, id_.encode(), ROLLUP | {"Nats-TTL": f"{seconds}s"})


def revoked(queue: str, sequences: Sequence[int], seconds: int) -> Part:
    """A revocation of the claims of these messages; kept for as long as a claim may go without renewal."""
    subject = f"{revocations_of(queue)}.{secrets.token_hex(8)}"
    return Part(subject, json.dumps(list(sequences)).encode(), {"Nats-TTL": f"{seconds}s"})


async def store(server: Server, parts: Sequence[Part], connection: Connection | None = None) -> int:
    """Store messages, all or none; return the sequence of the last. The others directly precede it.

    Args:
        server: the server that stores them.
        parts: the messages.
        connection: use only this connection; None: connect if necessary.

    Raises:
        Conflict: one of them can't be stored.
        StoreError.
    """
    async with server.bounded():
        connection = connection or await server.connection()
        if len(parts) == 1:
            subject, data, headers, *_ = parts[0]
            answer = await connection.request(subject, data, headers or None)
        else:
            name = secrets.token_hex(8)
            numbered = [
                (
                    part.subject,
                    part.data,
                    {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)} | part.headers,
                )
                for number, part in enumerate(parts, 1)
            ]
            numbered[-1][2]["Nats-Batch-Commit"] = "1"
            answer = await connection.send(numbered)
    try:
        reply = server.read(answer.data)
    except Refused as refused:
        if refused.code in _WRONG_SEQUENCE or refused.code == _TAKEN:
            raise Conflict(str(refused)) from refused
        raise
    sequence: int = reply["seq"]
    return sequence
