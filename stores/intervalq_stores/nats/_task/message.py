"""A task as a message of JetStream: its subject, its headers, and the row that they represent.

One stream holds everything. A task without a key has a subject of its own. The first task of a key has the
subject of the key, which is the token for working on it; those behind it wait under subjects of their own,
which consumers don't deliver. One filter covers all that a consumer delivers, another all messages of a key.
Of several messages with one subject the last one counts, so an id or a token exists once; `_task.commit`
describes how a message replaces another one.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from nats.aio.msg import Msg

from intervalq.errors import CorruptState
from intervalq.tasks.rules import Row, sound
from intervalq_stores.nats._client import header
from intervalq_stores.nats._names import decoded, encoded
from intervalq_stores.nats._url import Headers

STREAM: Final = "intervalq-tasks"
PREFIX: Final = "intervalq.tasks"
REVOCATIONS: Final = f"{PREFIX}.r"

_META: Final = "Iq-Task"
_GONE: Final = "Iq-Gone"

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"

# The names of a row's fields in the header, and their values if they are missing.
_FIELDS: Final[list[tuple[str, str, Any]]] = [
    ("at", "at", 0),
    ("n", "claims", 0),
    ("a", "attempt", 0),
    ("e", "error", ""),
    ("c", "created", 0),
    ("d", "dedupe", None),
    ("f", "dedupe_for", 0),
    ("l", "alone", False),
]

TOKEN: Final = ".0"  # noqa: S105 - no secret
"""The suffix of the subject of a key's first task: one part more than for a task without a key."""

_HANDED_OUT: Final = f"{PREFIX}.w."
_DOTS: Final = 5
"""The number of dots in the subject of a token."""

GONE: Final[Headers] = {_GONE: "1"}
"""The header of a tombstone: the task was removed."""

ROLLUP: Final[Headers] = {"Nats-Rollup": "sub"}
"""Removes all earlier messages with the same subject."""

OVER: Final = "Iq-Over"
"""The sequences of messages that this one replaces, which must be removed before it."""

BY: Final = "Iq-By"
"""The sender, so that a sender without an answer can find out what was done."""


class Delivered(NamedTuple):
    """The data about a delivery in the subject for its acknowledgement."""

    times: int
    sequence: int
    stored: int
    """When the message was stored, in microseconds since 1970."""


def subject_of(queue: str, id_: str) -> str:
    """The subject of a task without a key."""
    return f"{PREFIX}.w.{encoded(queue)}.{encoded(id_)}"


def token_of(queue: str, key: str) -> str:
    """The subject of the first task of a key."""
    return f"{PREFIX}.w.{encoded(queue)}.{encoded(key)}{TOKEN}"


def place_of(queue: str, key: str, id_: str) -> str:
    """The subject under which a task waits for the token of its key."""
    return f"{PREFIX}.k.{encoded(queue)}.{encoded(key)}.{encoded(id_)}"


def line_of(queue: str, key: str) -> str:
    """The pattern of all messages of a key."""
    return f"{PREFIX}.*.{encoded(queue)}.{encoded(key)}.*"


def line_at(subject: str) -> str:
    """The pattern of all messages of the key with this token."""
    *_, queue, key, _ = subject.split(".")
    return f"{PREFIX}.*.{queue}.{key}.*"


def lines_of(queue: str | None) -> str:
    """The pattern of all messages of all keys of a queue, or of all queues."""
    return f"{PREFIX}.*.{'*' if queue is None else encoded(queue)}.*.*"


def mark_of(queue: str, dedupe: str) -> str:
    """The subject of the mark of a taken `dedupe_key`."""
    return f"{PREFIX}.d.{encoded(queue)}.{encoded(dedupe)}"


def filter_of(queue: str) -> str:
    """The filter of a queue's consumer. With two filters, each request would cost the server a fifth more."""
    return f"{PREFIX}.w.{encoded(queue)}.>"


def queue_of(subject: str) -> str:
    """The queue of a subject."""
    return decoded(subject.split(".")[3])


def home_of(row: Row) -> str:
    """The subject of a row."""
    if row.key is None:
        return subject_of(row.queue, row.id)
    return place_of(row.queue, row.key, row.id) if row.waiting else token_of(row.queue, row.key)


def headers_of(row: Row) -> Headers:
    """The headers for what subject and body don't contain; none for a new task that is ready.

    If `at` and `created` are 0, they are those of the message.
    """
    meta = {short: value for short, name, usual in _FIELDS if (value := getattr(row, name)) != usual}
    if row.key is not None:
        meta["i"] = row.id
        if row.waiting and row.place:  # it was changed, and keeps its place
            meta["p"] = row.place
    return {_META: json.dumps(meta, separators=(",", ":"))} if meta else {}


def revocations_of(queue: str) -> str:
    """The subject of revocations: of tasks that may be claimed and that others have changed."""
    return f"{REVOCATIONS}.{encoded(queue)}"


def rests(row: Row) -> bool:
    """Whether the task has a time of its own before which it may not be claimed."""
    return row.at != row.modified  # a fresh one has the time at which the server stored it in both


def is_handed_out(subject: str) -> bool:
    """Whether consumers deliver messages of this subject: tasks without a key, and tokens."""
    return subject.startswith(_HANDED_OUT)


def is_token(subject: str) -> bool:
    """Whether it is the subject of the first task of a key."""
    return subject.startswith(_HANDED_OUT) and subject.count(".") == _DOTS


def is_task(subject: str) -> bool:
    """Whether it is the subject of a task; others are those of marks, locks and conditions."""
    return subject.startswith((f"{PREFIX}.w.", f"{PREFIX}.k."))


def is_gone(message: Msg) -> bool:
    """Whether a message is a tombstone."""
    return header(message, _GONE) is not None


def matches(subject: str, pattern: str) -> bool:
    """Whether a subject is one of a pattern."""
    parts, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        parts = parts[: len(wanted)] if len(parts) > len(wanted) else []
    return len(parts) == len(wanted) and all(
        one in {"*", part} for part, one in zip(parts, wanted, strict=True)
    )


def over_of(message: Msg) -> list[int]:
    """The sequences of messages that a message replaces, if they may still exist."""
    words = (header(message, OVER) or "").split()
    return [int(word) for word in words if word.isdecimal() and word.isascii()]


def delivered(message: Msg) -> Delivered:
    """The data about a delivery in its reply subject (whose second form begins with domain and account)."""
    parts = message.reply.split(".")
    parts = parts[4:] if len(parts) < 11 else parts[6:]
    return Delivered(int(parts[0]), int(parts[1]), int(parts[3]) // 1_000)


def row_of(message: Msg, subject: str, sequence: int, stored: int, url: str) -> Row:
    """The row of a stored message.

    Raises:
        CorruptState: it is not a task.
    """
    try:
        kind, queue, name, *rest = subject[len(PREFIX) + 1 :].split(".")
        text = header(message, _META)
        if text is None and not rest:  # most tasks
            return Row(
                decoded(name), sequence, decoded(queue), stored, message.data.decode(),
                created=stored, modified=stored,
            )  # fmt: skip
        meta = json.loads(text or "")
        key = decoded(name) if rest else None
        row = Row(
            meta["i"] if rest else decoded(name),
            sequence,
            decoded(queue),
            stored,
            message.data.decode(),
            key=key,
            place=0 if not rest else 1 if kind == "w" else meta.get("p", sequence + 1),
            waiting=kind == "k",
            created=stored,
            modified=stored,
        )
        return sound(row._replace(**{field: meta[short] for short, field, _ in _FIELDS if short in meta}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptState(url, f"message {sequence} of stream {STREAM} is not a task: remove it") from error
