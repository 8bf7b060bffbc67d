"""Packed tasks: how the tables in Redis keep them. See HEAD in tasks_table.lua."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import md5
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from intervalq.tasks.rules import Insert, Row

_WHOLE: Final = Struct(">HBIIIIqqqqqHHHIH")
_SIZE: Final = _WHOLE.size
_KEY, _WAITING, _SESSION, _UNTIL, _DEDUPE, _AHEAD, _ALONE, _EXTRA = 1, 2, 4, 8, 16, 32, 64, 128
_MORE: Final = Struct(">BI")
_KEPT, _JOINED = 64, 128
_KEEP: Final = Struct(">qI")
_JOIN: Final = Struct(">IIH")
_UNJOINED: Final = (1, "", 0)
"""The last fields of a task that runs alone of its key, and is in no batch."""
_MAX_ATTEMPTS: Final = 2**31
"""A bound of attempts that leaves room for as many claims."""
MAX_SPAN: Final = 2**52
"""More than a hundred years, in microseconds: a span that can safely be added to any current time."""


class Unfit(ValueError):
    """A value that the tables can't hold."""


def within(number: int, most: int, name: str) -> None:
    """Check that a number, and what is added to it later, can be stored."""
    if not 0 <= number < most:
        raise Unfit(f"{name}={number} is not from 0 to below {most}")


def check_attempt(attempt: int) -> None:
    """Check that a number of attempts can be stored."""
    within(attempt, _MAX_ATTEMPTS, "attempt")


def inserted(insert: Insert) -> tuple[bytes, str, bytes]:
    """The id of a new task, its flags (see `read_inserts` in tasks_modify.lua), and the packed task.

    Raises:
        Unfit: a text or number can't be kept.
        UnicodeEncodeError: a text isn't Unicode.
    """
    (
        queue, json, id_, key, at, delay, attempt, error, skip, dedupe, dedupe_for, inbox, replace, level,
        keep_for, per_key, follow_up, awaits,
    ) = insert  # fmt: skip
    flags = 0
    options = "" if at is None else "a"
    if skip or key is not None or dedupe is not None:
        flags = _KEY * (key is not None) + _DEDUPE * (dedupe is not None)
        options += "s" * skip + "d" * (dedupe is not None)
        if key is not None:
            options += "k" + "r" * replace + ("" if inbox is None else f"i{inbox}")
    extra = b""
    if level or keep_for or follow_up or awaits or per_key != 1:
        flags |= _EXTRA | _WAITING * (awaits > 0)
        options += "p" * (level != 0) + "e" * (keep_for > 0 and error != "") + "w" * (awaits > 0)
        extra = _new_extra(level, keep_for, per_key, follow_up, awaits)
    check_attempt(attempt)
    within(dedupe_for, MAX_SPAN, "dedupe_for")
    parts = (queue, key or "", error, dedupe or "")
    text = "".join((*parts, json)).encode()
    queue_size, key_size, error_size, dedupe_size = _sizes(parts, len(text) - len(json))
    name = id_.encode()
    spread = md5(name, usedforsecurity=False).digest()
    try:
        head = _WHOLE.pack(
            *(spread[0] << 8 | spread[1], flags, 0, 0, 0, attempt, delay if at is None else at, 0, 0, 0),
            *(dedupe_for, queue_size, key_size, 0, error_size, dedupe_size),
        )
    except struct_error as problem:
        raise Unfit(f"a number is out of range or a name too long: {problem}") from problem
    if extra:
        names = queue_size + key_size + error_size + dedupe_size
        return name, options, b"".join((head, text[:names], extra, text[names:]))
    return name, options, head + text


@lru_cache(64)
def _new_extra(level: int, keep_for: int, per_key: int, follow_up: str, awaits: int) -> bytes:
    """The optional fields of a new task: priority, time to keep, follow-up, and concurrency of its key."""
    within(keep_for, MAX_SPAN, "keep_for")
    within(per_key, _MAX_ATTEMPTS, "per_key")
    within(awaits, _MAX_ATTEMPTS, "awaits")
    extra_flags, kept, joined = 2 * (level % 32), b"", b""
    if keep_for:
        extra_flags, kept = extra_flags + _KEPT, _KEEP.pack(keep_for, 0)
    if follow_up or awaits or per_key != 1:
        name = follow_up.encode()
        within(len(name), 2**16, "the length of follow_up")
        extra_flags, joined = extra_flags + _JOINED, _JOIN.pack(per_key, awaits, len(name)) + name
    return _MORE.pack(extra_flags, 0) + kept + joined


def _sizes(parts: tuple[str, ...], total: int) -> Iterable[int]:
    """The sizes of texts in bytes, which are their lengths if all of them are ASCII."""
    sizes = list(map(len, parts))
    return sizes if sum(sizes) == total else [len(part.encode()) for part in parts]


def row_of(id_: bytes, packed: bytes) -> Row:
    """A task as the server gave it.

    Raises:
        UnicodeDecodeError, struct.error: it is broken.
    """
    numbers = _WHOLE.unpack_from(packed)
    _, flags, version, place, claims, attempt, at, created, modified, until, dedupe_for, *sizes = numbers
    queue, key, session, error, dedupe = sizes
    key += queue
    session += key
    error += session
    dedupe += error
    extra_flags, keep_for, progress, errors = 0, 0, "", ""
    joined = _UNJOINED
    text: Any = packed[_SIZE:]
    if flags & _EXTRA:
        extra_flags, progress, keep_for, errors, joined, value = _extra(packed, _SIZE + dedupe)
        text = text[:dedupe] + packed[value:]
    if text.isascii():  # so that its characters are the same, and it is decoded only once
        text = text.decode()
        decode: Callable[[Any], str] = str
    else:
        decode = bytes.decode
    return tuple.__new__(
        Row,
        (
            id_.decode(),
            *(version, decode(text[:queue])),
            at,
            decode(text[dedupe:]),
            decode(text[queue:key]) if flags & _KEY else None,
            place,
            flags & _WAITING > 0,
            decode(text[key:session]) if flags & _SESSION else None,
            until if flags & _UNTIL else None,
            *(claims, attempt),
            decode(text[session:error]),
            *(created, modified),
            decode(text[error:dedupe]) if flags & _DEDUPE else None,
            dedupe_for,
            flags & (_SESSION | _AHEAD) == _SESSION,
            flags & _ALONE > 0,
            extra_flags % 2 == 1,
            progress,
            (extra_flags // 2 + 16) % 32 - 16,
            *(keep_for, errors, *joined),
        ),
    )


def _extra(packed: bytes, at: int) -> tuple[int, str, int, str, tuple[int, str, int], int]:
    """The optional fields of a task: flags, progress, time to keep, errors, and what joins it to others.

    The last is where the value begins.
    """
    extra_flags, size = _MORE.unpack_from(packed, at)
    at += _MORE.size
    progress = packed[at : at + size].decode() if size else ""
    at += size
    keep_for, errors = 0, ""
    if extra_flags & _KEPT:
        keep_for, size = _KEEP.unpack_from(packed, at)
        at += _KEEP.size
        errors = packed[at : at + size].decode() if size else ""
        at += size
    if extra_flags < _JOINED:
        return extra_flags, progress, keep_for, errors, _UNJOINED, at
    per_key, awaits, size = _JOIN.unpack_from(packed, at)
    at += _JOIN.size
    joined = (per_key, packed[at : at + size].decode(), awaits)
    return extra_flags, progress, keep_for, errors, joined, at + size
