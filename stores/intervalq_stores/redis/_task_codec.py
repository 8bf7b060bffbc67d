"""Encodes commands on tasks for the script in Redis, and decodes its answers into those of the rules."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

from intervalq.errors import DependencyError, InboxFull
from intervalq.tasks.rules import (
    Acquire,
    Acquired,
    Beat,
    Beaten,
    Begin,
    Cancel,
    Cancelled,
    Change,
    Command,
    Count,
    Delete,
    End,
    Insert,
    Modified,
    Modify,
    QueueStats,
    Release,
    Row,
    Select,
    Session,
    Sessions,
    Work,
    Worked,
    sound,
    with_error,
)
from intervalq_stores.redis._task_keys import WAKE
from intervalq_stores.redis._task_outcomes import kept_text
from intervalq_stores.redis._task_rows import MAX_SPAN, Unfit, check_attempt, inserted, row_of, within

Arguments: TypeAlias = list[str | bytes]

_MAX_NAME_BYTES: Final = 2**16 - 1


# --- commands ----------------------------------------------------------------------------------------


def asked(command: Command[Any]) -> tuple[str, Arguments]:
    """The name of a command, and its arguments.

    Raises:
        Unfit: a text or number can't be kept.
        UnicodeEncodeError: a text isn't Unicode.
    """
    name, make = _ASK[type(command)]
    return name, make(command)


def _modify(command: Modify) -> Arguments:
    parts = (command.inserts, command.changes, command.deletes, command.depends)
    arguments: Arguments = [command.session, _flag(command.force), *(str(len(part)) for part in parts)]
    for insert in command.inserts:
        arguments += inserted(insert)
    for change in command.changes:
        arguments += _change(change)
    for delete in command.deletes:
        arguments += _delete(delete)
    for depend in command.depends:
        arguments += depend.id, f"x{depend.version}"
    return arguments


def _delete(delete: Delete) -> Arguments:
    id_, version, kept = delete
    return [id_, f"x{version}"] if kept is None else [id_, f"xo{version}", kept_text(kept)]


def _change(change: Change) -> Arguments:
    given = (
        ("q", change.queue),
        ("j", change.json),
        ("a", change.at),
        ("d", change.delay),
        ("t", change.attempt),
        ("e", change.error),
        ("g", change.progress),
        ("p", change.priority),
        ("l", change.lease),
    )
    if change.queue is not None:
        _short(change.queue)
    if change.attempt is not None:
        check_attempt(change.attempt)
    letters = "".join(letter for letter, value in given if value is not None)
    values: Arguments = [str(value) for _, value in given if value is not None]
    if change.kept is not None:
        letters += "o"
        values.append(kept_text(change.kept))
    return [change.id, f"{letters}{'k' * change.keep}{change.version}", *values]


def _short(*names: str) -> None:
    """Check that these names fit into the index."""
    for name in names:
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise Unfit("a name takes more than 65,535 bytes")


def _work(command: Work) -> Arguments:
    arguments: Arguments = [
        command.session,
        str(command.limit),
        _maybe(command.lease),
        _maybe(command.most),
        _flag(command.idle),
        str(command.begins),
        str(len(command.begun)),
        str(len(command.settled)),
        *command.begun,
    ]
    for part in command.settled:
        arguments += _delete(part) if type(part) is Delete else _change(cast("Change", part))
    _short(command.session, *command.queues)
    return [*arguments, *random.sample(command.queues, len(command.queues))]


def _begin(command: Begin) -> Arguments:
    session = command.session
    _short(session.id, session.host, session.consumer)
    within(session.expiry, MAX_SPAN, "expiry")
    return [session.id, session.host, str(session.pid), session.consumer, str(session.expiry)]


def _acquire(command: Acquire) -> Arguments:
    within(command.expiry, MAX_SPAN, "expiry")
    return [command.owner, str(command.expiry), _flag(command.refresh)]


def _named(command: Beat | End) -> Arguments:
    _short(command.session)
    return [command.session]


def _select(command: Select) -> Arguments:
    queue, session = ("" if name is None else f"={name}" for name in (command.queue, command.session))
    _short(queue, session)
    return [queue, session, _maybe(command.limit), _flag(command.values), *command.ids]


def _count(command: Count) -> Arguments:
    _short(*command.names)
    return [_maybe(command.limit), str(len(command.names)), *command.names, *command.prefixes]


def _flag(value: bool) -> str:
    return "1" if value else ""


def _maybe(number: int | None) -> str:
    return "" if number is None else str(number)


_ASK: Final[dict[type, tuple[str, Callable[[Any], Arguments]]]] = {
    Modify: ("modify", _modify),
    Cancel: ("cancel", lambda command: list(dict.fromkeys(command.ids))),
    Work: ("work", _work),
    Begin: ("begin", _begin),
    Beat: ("beat", _named),
    End: ("end", _named),
    Acquire: ("acquire", _acquire),
    Release: ("release", lambda command: [command.owner, f"{WAKE}{command.waiters}"]),
    Select: ("select", _select),
    Count: ("count", _count),
    Sessions: ("sessions", lambda _: []),
}


# --- answers -----------------------------------------------------------------------------------------


def answered(command: Command[Any], reply: list[Any]) -> Any:  # noqa: ANN401 - that of the command
    """The answer in the script's numbers and texts.

    Raises:
        DependencyError, InboxFull: if that is the answer.
        UnicodeDecodeError: a text isn't UTF-8.
    """
    kind, *rest = reply
    if kind == 1:
        inserts, changes, deletes, depends, claims = (tuple(map(bytes.decode, ids)) for ids in rest)
        raise DependencyError(
            inserts=inserts, changes=changes, deletes=deletes, depends=depends, claims=claims
        )
    if kind == 2:
        queue, key, limit = rest
        raise InboxFull(queue.decode(), key.decode(), limit)
    now, *rest = rest
    return _READ[type(command)](command, now, *rest)


def _modified(
    command: Modify, now: int, existing: list[bytes], placed: list[Any], changed: list[bytes]
) -> Modified:
    there = tuple((id_.decode(), first.decode()) for id_, first in _by(2, existing))
    left_out = {id_ for id_, _ in there}
    new = [insert for insert in command.inserts if insert.id not in left_out] if there else command.inserts
    places = {id_.decode(): (place, waiting == 1) for id_, place, waiting in _by(3, placed)}
    return Modified(tuple(_inserted(insert, now, places) for insert in new), _rows(changed), there)


def _inserted(insert: Insert, now: int, places: dict[str, tuple[int, bool]]) -> Row:
    (
        queue, json, id_, key, at, delay, attempt, error, _, dedupe, dedupe_for, _, _, priority, keep,
        per_key, follow_up, awaits,
    ) = insert  # fmt: skip
    place, waiting = (0, awaits > 0) if key is None else places[id_]
    if at is None:
        at = now + delay
    errors = with_error("", error, attempt, now) if keep and error else ""
    return tuple.__new__(  # twice as fast as Row(...)
        Row,
        (
            *(id_, 0, queue, at, json, key, place, waiting, None, None, 0, attempt, error, now, now),
            *(dedupe, dedupe_for, False, False, False, "", priority, keep, errors),
            *(per_key, follow_up, awaits),
        ),
    )


def _worked(
    _: Work, __: int, alive: int, lost: list[bytes], claimed: list[bytes], wait: int | bytes
) -> Worked:
    return Worked(
        alive=alive == 1,
        lost=tuple(map(bytes.decode, lost)),
        claimed=_rows(claimed),
        wait=wait if isinstance(wait, int) else None,
    )


def _cancelled(_: Cancel, __: int, removed: list[bytes], stopping: list[bytes]) -> Cancelled:
    return Cancelled(tuple(map(bytes.decode, removed)), tuple(map(bytes.decode, stopping)))


def _beaten(_: Beat, __: int, alive: int, held: int, lapsed: list[bytes], cancelled: list[Any]) -> Beaten:
    return Beaten(
        alive=alive == 1,
        claim_count=held,
        lapsed=tuple(map(bytes.decode, lapsed)),
        cancelled=tuple(Delete(id_.decode(), version) for id_, version in _by(2, cancelled)),
    )


def notified(messages: list[bytes]) -> Worked | None:
    """What messages notify a session of; None: nothing. Wrong ones, which others may send, are ignored."""
    cancelled: list[Delete] = []
    for message in messages:
        with suppress(ValueError, TypeError, RecursionError):
            parts = [Delete(id_, version) for id_, version in json.loads(message)]
            if all(type(part.id) is str and type(part.version) is int for part in parts):
                cancelled += parts
    return Worked(cancelled=tuple(cancelled)) if cancelled else None


def _selected(command: Select, _: int, found: list[bytes]) -> tuple[Row, ...]:
    rows = list(_rows(found))
    if not command.ids:
        rows.sort(key=lambda row: (row.at, row.id))
    return tuple(rows[: command.limit])


def _counted(command: Count, _: int, found: list[Any]) -> tuple[QueueStats, ...]:
    stats = [sound(QueueStats(name.decode(), *numbers)) for name, *numbers in _by(7, found)]
    return tuple(sorted(stats)[: command.limit])


def _sessions(_: Sessions, __: int, found: list[Any]) -> tuple[Session, ...]:
    sessions = [
        sound(Session(id_.decode(), host.decode(), pid, consumer.decode(), *numbers))
        for id_, host, pid, consumer, *numbers in _by(7, found)
    ]
    return tuple(sorted(sessions, key=lambda session: (session.started, session.id)))


def _rows(flat: list[bytes]) -> tuple[Row, ...]:
    return tuple(row_of(id_, packed) for id_, packed in _by(2, flat))


def _by(size: int, parts: list[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*[iter(parts)] * size, strict=True)


_READ: Final[dict[type, Callable[..., Any]]] = {
    Modify: _modified,
    Cancel: _cancelled,
    Work: _worked,
    Begin: lambda *_: None,
    Beat: _beaten,
    End: lambda *_: None,
    Acquire: lambda _, __, fence, wait: Acquired(fence, wait),
    Release: lambda _, __, released: released == 1,
    Select: _selected,
    Count: _counted,
    Sessions: _sessions,
}
