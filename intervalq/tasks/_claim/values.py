"""Checks what users give for a task: values as JSON, ids, keys, times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from intervalq._queue.options import Duration, whole
from intervalq._spec import codec, parse
from intervalq._spec.codec import Codec
from intervalq._spec.strict_json import writer
from intervalq.errors import InvalidName, InvalidOption, InvalidTask, short
from intervalq.rules import FOREVER
from intervalq.tasks._spec.ids import DOCS, PLAIN, new_id
from intervalq.tasks._spec.outcome import living_queue
from intervalq.tasks.rules import DAY, HIGHEST, SECOND, Insert

MAX_BYTES: Final = 256 * 1024
"""The default limit of a value: keep larger ones in a file or table, and put their names into tasks."""

_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}")
_MAX_NAME: Final = 120
_QUEUE: Final = re.compile(rf"(?=.{{1,{_MAX_NAME}}}\Z)[A-Za-z0-9/](?: ?[A-Za-z0-9._/=:-])*")
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_MAX_ERROR: Final = 4_000
_MAX_DEPTH: Final = 200
"""The deepest nesting of lists and dicts: it can be parsed even deep in a call stack."""

_QUICK: Final = 1 << 62
_USUAL: Final = (None, None, None, None, None, None, False, False, 0, None, 1)

_MAX_IN_BATCH: Final = 1_000_000

MAX_PER_KEY: Final = 1_000
"""The largest `concurrency_per_key`."""

_MAX_KEEP: Final = 400 * DAY

_written: Final = writer(json.JSONEncoder(allow_nan=False, separators=(",", ":")))


def queue_name(value: object) -> str:
    """A queue's name, unchanged: 1 to 120 letters, digits and `. _ - / = :`, first a letter, a digit or `/`.

    Single spaces may stand between them. Names of dead-letter queues are five characters longer.

    Raises:
        InvalidName: `value` is not such a name.
    """
    if not isinstance(value, str) or not _QUEUE.fullmatch(living_queue(value)):
        raise InvalidName(value, _MAX_NAME, "/=: ")
    return value


def text(what: str, value: object) -> str:
    """An id or key, unchanged: 1 to 128 characters without control characters.

    Raises:
        InvalidTask: `value` is not such text.
    """
    if not isinstance(value, str) or not _TEXT.fullmatch(value):
        raise InvalidTask(
            f"{what}={short(value)} can't be used: give 1 to 128 characters without control characters"
        )
    return value


def task_id(value: object) -> str:
    """The id of a task, unchanged: text that begins otherwise than the ids of docs.

    Raises:
        InvalidTask: `value` is not such text.
    """
    refuse_doc(known := text("id", value))
    return known


def refuse_doc(id_: str) -> None:
    """Check that an id is not a doc's.

    Raises:
        InvalidTask: it is.
    """
    if id_.startswith(DOCS):
        raise InvalidTask(
            f"id={short(id_)} can't be used: ids that begin with {DOCS!r} are those of docs, which only "
            "clients of EntroQ insert and change"
        )


def _own_id(value: str) -> str:
    if task_id(value).startswith(PLAIN):
        raise InvalidTask(
            f"id={short(value)} can't be used: ids that begin with {PLAIN!r} are reserved for plain tasks"
        )
    return value


class Form(NamedTuple):
    """How the values of a handle's tasks are written."""

    most: int = MAX_BYTES
    """The maximum size of a value in the store, in bytes."""
    codec: Codec | None = None


USUAL: Final = Form()


def encode(value: object, form: Form = USUAL, what: str = "a task's value") -> str:
    """A value as the JSON text to store, all ASCII. `what` names it in messages.

    Raises:
        InvalidTask: it can't be written as JSON, takes too many bytes, or looks like an encoded value.
    """
    if type(value) is int and -_QUICK < value < _QUICK and form.most > 20 and form.codec is None:
        return str(value)
    try:
        written = _written(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTask(
            f"{what} must be JSON (None, bool, finite numbers, str, list, dict): {error}"
        ) from error
    refuse_deep(written, what)
    if form.codec is not None:
        written = codec.encoded(form.codec, written)
    elif codec.is_encoded(written):
        raise InvalidTask(f"{what} can't begin with {codec.MARK!r}, which marks values of a codec=")
    if len(written) > form.most:
        how = "as JSON" if form.codec is None else "as the codec wrote it"
        raise InvalidTask(
            f"{what} takes {len(written)} bytes {how}, but {form.most} are allowed: keep it "
            "elsewhere and put its name into the task, or allow more with Tasks(max_bytes=...)"
        )
    return written


def refuse_deep(written: str, what: str = "a task's value") -> None:
    """Check the nesting of JSON text.

    Raises:
        InvalidTask: it is too deep.
    """
    if written.count("[") + written.count("{") > _MAX_DEPTH and depth(written) > _MAX_DEPTH:
        raise InvalidTask(
            f"{what} has lists or dicts nested deeper than {_MAX_DEPTH}: keep it elsewhere and put "
            "its name into the task"
        )


def depth(written: str) -> int:
    """The deepest nesting of lists and dicts in JSON text."""
    depth = most = 0
    for mark in _BRACKET.findall(written):  # strings are matched, too, because they may contain brackets
        if mark in "[{":
            depth += 1
            most = max(most, depth)
        elif mark in "]}":
            depth -= 1
    return most


def instant(value: float | datetime) -> int:
    """A time in microseconds since 1970.

    Raises:
        InvalidTask: not a finite number, a datetime without a time zone, or out of range.
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise InvalidTask(f"at={value} has no time zone: give one, for example datetime.now(UTC)")
        value = value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTask(
            f"at={short(value)} is not a time: give seconds since 1970, or a datetime with a time zone"
        )
    if not 0 <= value < FOREVER / 1_000_000 or (micros := round(value * 1_000_000)) >= FOREVER:
        raise InvalidTask(f"at={short(value)} is out of range: give seconds since 1970, or a datetime")
    return micros


def insert(
    queue: str,
    value: object,
    *,
    id: str | None = None,  # noqa: A002 - the name that tasks use
    key: str | None = None,
    at: float | datetime | None = None,
    delay: Duration | None = None,
    dedupe_key: str | None = None,
    dedupe_for: Duration = 300,
    inbox: int | None = None,
    replace: bool = False,
    skip: bool = False,
    priority: int = 0,
    keep: Duration | None = None,
    concurrency_per_key: int = 1,
    form: Form = USUAL,
) -> Insert:
    """The insert of a task, checked. See `Tasks.new`."""
    given = (id, key, at, delay, dedupe_key, inbox, replace, skip, priority, keep, concurrency_per_key)
    if given == _USUAL and type(priority) is int:  # most inserts have none of these
        return Insert(queue_name(queue), encode(value, form), new_id())
    if at is not None and delay is not None:
        raise InvalidOption("give at= or delay=, not both: each says when the task may be claimed")
    if key is None and (inbox is not None or replace):
        raise InvalidOption("inbox= and replace= apply to the tasks of a key: give key= with them")
    if key is None and concurrency_per_key != 1:
        raise InvalidOption("concurrency_per_key= applies to the tasks of a key: give key= with it")
    if replace and concurrency_per_key != 1:
        raise InvalidOption("replace=True keeps only the newest task of a key: omit concurrency_per_key=")
    if inbox is not None:
        whole("inbox", inbox, 0, 1_000_000)
    if inbox is not None and replace:
        raise InvalidOption("give inbox= or replace=, not both: replace=True keeps only the newest task")
    if skip and id is None:
        raise InvalidOption("skip=True leaves out a task whose id already exists: give id= with it")
    return Insert(
        queue=queue_name(queue),
        json=encode(value, form),
        id=new_id() if id is None else _own_id(id),
        key=None if key is None else text("key", key),
        at=None if at is None else instant(at),
        delay=0 if delay is None else parse.duration(delay, what="delay"),
        skip=skip,
        dedupe=None if dedupe_key is None else text("dedupe_key", dedupe_key),
        dedupe_for=0 if dedupe_key is None else parse.duration(dedupe_for, what="dedupe_for"),
        inbox=inbox,
        replace=replace,
        priority=checked_priority(priority),
        keep_for=keep_time(keep),
        per_key=whole("concurrency_per_key", concurrency_per_key, 1, MAX_PER_KEY),
    )


def checked_batch(parts: Iterable[Insert], follow_up: Insert) -> list[Insert]:
    """The tasks of a batch behind the one that waits for them.

    Raises:
        InvalidOption: some can't be in a batch, or there are none or too many.
    """
    members = list(parts)
    for part in (*members, follow_up):
        if not isinstance(part, Insert):
            raise InvalidOption(f"a batch is of tasks from new(...), not of {short(part)}")
        if part.dedupe is not None or part.skip or part.follow_up or part.awaits:
            raise InvalidOption(
                "a task of a batch can't have dedupe_key= or skip=True, or be in another batch: if it were "
                "left out, nobody would know when the batch has ended"
            )
    if len({part.id for part in (*members, follow_up)}) <= len(members):
        raise InvalidOption("two tasks of the batch have the same id, or it has its own follow-up in it")
    if follow_up.key is not None:
        raise InvalidOption("the follow-up of a batch can't have a key=: others of its key would wait for it")
    if len(members) > _MAX_IN_BATCH:
        raise InvalidOption(f"{len(members)} tasks are too many for a batch: at most {_MAX_IN_BATCH}")
    if not members:
        raise InvalidOption(
            "a batch without tasks has nothing to wait for, so its follow-up would start at once: if that is "
            "meant, insert that alone, with modify(follow_up)"
        )
    first = follow_up._replace(awaits=len(members))
    return [first, *(part._replace(follow_up=follow_up.id) for part in members)]


def keep_time(keep: Duration | None) -> int:
    """For how many microseconds an outcome is kept; 0: it isn't.

    Raises:
        InvalidInterval: it is shorter than a second, or longer than 400 days.
    """
    return 0 if keep is None else parse.duration(keep, least=SECOND, most=_MAX_KEEP, what="keep")


def checked_priority(value: object) -> int:
    """A priority, unchanged.

    Raises:
        InvalidOption: `value` is not a whole number from -9 to 9.
    """
    return whole("priority", value, -HIGHEST, HIGHEST)


def error_text(error: object) -> str:
    """The text of an error as a task keeps it: shortened, and without what a store can't hold."""
    try:
        text = str(error) if isinstance(error, str) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - raised by the __str__ of a user's class
        text = type(error).__name__
    return "".join(c if c == "\n" or c.isprintable() else "?" for c in text[:_MAX_ERROR])


def seconds(value: Duration | timedelta) -> float:
    """A duration in seconds."""
    return parse.duration(value) / 1e6
