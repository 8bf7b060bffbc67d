"""Turns commands on tasks into statements for PostgreSQL (tasks.sql), and rows into their answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

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
    Failed,
    Finished,
    Insert,
    Modified,
    Modify,
    OutcomeRow,
    Outcomes,
    QueueStats,
    Range,
    Release,
    Row,
    Select,
    Session,
    Sessions,
    Work,
    Worked,
    sound,
)
from intervalq_stores.postgres._pool import Lines
from intervalq_stores.postgres._task.heads import Heads
from intervalq_stores.postgres._task.kept import SEPARATOR, columns, parts_of

A = TypeVar("A")

_PLAIN: Final = re.compile(r"plain-(0|[1-9][0-9]{0,2})-([1-9][0-9]{0,17})")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-79a-f][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_MODIFY: Final = b"select * from intervalq.modify(%s, %s, %s)"
_CANCEL: Final = b"select intervalq.cancel(%s::uuid[], %s)"
_INSERT: Final = b"select intervalq.insert_plain(%s::uuid[], %s, %s, %s::bigint[], %s)"
_WORK: Final = (
    b"select * from intervalq.work(%s, %s::uuid[], %s::integer[], %s::bigint[], %s::bigint[], %s, %s, %s, %s,"
    b" %s, %s, %s, %s, %s::bigint[], %s::uuid[], %s, %s::uuid[], %s)"
)
_PUT: Final = b"select intervalq.put(%s, %s)"
_BEGIN: Final = b"select intervalq.begin_session(%s, %s, %s, %s, %s, %s)"
_BEAT: Final = b"select intervalq.beat(%s, %s)"
_END: Final = b"select intervalq.end_session(%s, %s)"
_ACQUIRE: Final = b"select * from intervalq.acquire_lock(%s, %s, %s, %s, %s)"
_RELEASE: Final = b"select intervalq.release_lock(%s, %s, %s, %s)"
_SELECT: Final = b"select * from intervalq.tasks_of(%s, %s::uuid[], %s, %s, %s)"
_OUTCOMES: Final = b"select * from intervalq.outcomes_of(%s::uuid[], %s, %s, %s, %s)"
_COUNT: Final = b"select * from intervalq.stats(%s, %s, %s, %s)"
_SESSIONS: Final = b"select * from intervalq.live_sessions()"


class Asked(NamedTuple):
    """A command as a statement, and the reader of its rows."""

    sql: bytes
    values: tuple[object, ...]
    read: Callable[[Lines], Any]
    again: Callable[[Lines], bool] = lambda _: False
    """Whether to retry in a moment, because others had locked something."""


def uuid_of(task: str) -> str:
    """The UUID in the table for the id of a task: the id itself, or a UUID of version 8.

    The UUID of a plain task says where it is; others are derived from a hash of the id.
    """
    if _UUID.fullmatch(task):
        return task
    if plain := _PLAIN.fullmatch(task):
        digits = f"{0:012x}8{int(plain[1]):03x}{int(plain[2]):016x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    digits = hashlib.sha256(task.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{digits[16:20]}-{digits[20:32]}"


def _own(task: str, uuid: str) -> str | None:
    return None if task == uuid else task


def _array(texts: Iterable[object]) -> str:
    """An array's literal, of things without quotes and commas."""
    return f"{{{','.join(map(str, texts))}}}"


def ask(command: Command[A], now: int | None, heads: Heads) -> Asked:
    """The statement for a command."""
    return _ASK[type(command)](command, now, heads)


# --- modify ------------------------------------------------------------------------------------------


def quick(command: Command[A], now: int | None) -> Asked | None:
    """The statement for simple inserts, which most are. It fails with 23505 if an id exists."""
    if not isinstance(command, Modify) or command.changes or command.deletes or command.depends:
        return None
    inserts = command.inserts
    ids = [insert.id for insert in inserts]
    if not ids or not all(map(_is_simple, inserts)) or not all(map(_UUID.fullmatch, ids)):
        return None
    queues = list(dict.fromkeys([insert.queue for insert in inserts]))
    if len(queues) > 1:
        queues = [insert.queue for insert in inserts]
    names, jsons = SEPARATOR.join(queues), SEPARATOR.join([insert.json for insert in inserts])
    if names.count(SEPARATOR) != len(queues) - 1 or jsons.count(SEPARATOR) != len(inserts) - 1:
        return None
    ats = None
    if any(insert.at is not None for insert in inserts):
        ats = _array("null" if insert.at is None else insert.at for insert in inserts)

    def read(lines: Lines) -> Modified:
        at = lines[0][0]
        rows = [
            Row(i.id, 0, i.queue, at if i.at is None else i.at, i.json, created=at, modified=at)
            for i in inserts
        ]
        return Modified(inserted=tuple(rows))

    return Asked(_INSERT, (_array(ids), names, jsons, ats, now), read)


def _is_simple(insert: Insert) -> bool:
    return (
        insert.key is None
        and insert.dedupe is None
        and not insert.dedupe_for
        and not (insert.delay and insert.at is None)
        and not insert.attempt
        and not insert.error
        and not insert.priority
        and not insert.keep_for
        and insert.per_key == 1
        and not insert.follow_up
        and not insert.awaits
    )


def _modify(command: Modify, now: int | None, heads: Heads) -> Asked:
    del heads
    ids = [insert.id for insert in command.inserts] + [delete.id for delete in command.deletes]
    ids += [change.id for change in command.changes] + [depend.id for depend in command.depends]
    names = {uuid_of(task): task for task in ids}
    asked = {
        "force": command.force,
        "inserts": [_insert(insert) for insert in command.inserts],
        "changes": [_change(change) for change in command.changes],
        "deletes": [_delete(part) for part in command.deletes],
        "depends": [[uuid_of(part.id), part.version] for part in command.depends],
    }

    def read(lines: Lines) -> Modified:
        if lines and lines[0][0] == "D":
            failed = json.loads(lines[0][5])
            raise DependencyError(
                **{kind: tuple(names[uuid] for uuid in ids) for kind, ids in failed.items()}
            )
        if lines and lines[0][0] == "F":
            raise InboxFull(lines[0][3], lines[0][6], lines[0][7])
        return Modified(
            inserted=tuple(sound(Row(*line[1:])) for line in lines if line[0] == "i"),
            changed=tuple(sound(Row(*line[1:])) for line in lines if line[0] == "c"),
            existing=tuple((command.inserts[line[7]].id, line[6]) for line in lines if line[0] == "e"),
        )

    return Asked(_MODIFY, (command.session, now, _json(asked)), read)


def _insert(insert: Insert) -> list[object]:
    uuid = uuid_of(insert.id)
    return [
        *(uuid, _own(insert.id, uuid), insert.queue, insert.json, insert.key, insert.at, insert.delay),
        *(insert.attempt, insert.error, insert.skip, insert.dedupe, insert.dedupe_for, insert.inbox),
        *(insert.replace, insert.priority, insert.keep_for),
        *(insert.per_key if insert.per_key != 1 else None, insert.follow_up or None, insert.awaits or None),
    ]


def _change(change: Change) -> list[object]:
    return [
        *(uuid_of(change.id), change.version, change.queue, change.json, change.at, change.delay),
        *(change.attempt, change.error, change.keep, change.lease, change.progress),
        *(change.priority, parts_of(change.kept)),
    ]


def _delete(delete: Delete) -> list[object]:
    return [uuid_of(delete.id), delete.version, None, parts_of(delete.kept)]


def _json(value: object) -> str:
    # allow_nan=False: numbers such as `nan` aren't JSON.
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _cancel(command: Cancel, now: int | None, heads: Heads) -> Asked:
    del heads
    names = {uuid_of(task): task for task in command.ids}

    def read(lines: Lines) -> Cancelled:
        removed, stopping = (tuple(names[uuid] for uuid in uuids) for uuids in lines[0][0])
        return Cancelled(removed, stopping)

    return Asked(_CANCEL, (_array(names), now), read)


# --- work --------------------------------------------------------------------------------------------


def _work(command: Work, now: int | None, heads: Heads) -> Asked:
    ids = versions = parts = kept = None
    if Change in set(map(type, command.settled)):
        # Moves between queues may depend on earlier parts, so all parts are sent, in order.
        parts = _json(
            [_change(part) if isinstance(part, Change) else _delete(part) for part in command.settled]
        )
    elif command.settled:
        tasks, numbers, ends = zip(*cast("tuple[Delete, ...]", command.settled), strict=True)
        kept = columns(ends)
        ids = _array(tasks if all(map(_UUID.fullmatch, tasks)) else map(uuid_of, tasks))
        versions = _array(numbers)
    finished = _json([_finished(part) for part in command.finished]) if command.finished else None
    starts = [heads.take(queue) for queue in command.queues]
    values = (
        *(command.session, ids, versions, *(kept or (None, None, None)), parts, finished),
        *(list(command.queues), command.limit, command.lease, command.most, command.idle),
        _array("null" if head is None else head.ready for head in starts),
        _array("null" if head is None else head.id for head in starts),
        command.begins,
        _array(map(uuid_of, command.begun)),
        now,
    )
    return Asked(_WORK, values, lambda lines: _worked(command, lines, heads))


def _finished(finished: Finished) -> list[object]:
    r = finished.range
    failed = [_failed(failed) for failed in finished.failed]
    return [r.queue, r.part, r.low, r.high, failed, finished.until, finished.count, finished.begun]


def _failed(failed: Failed) -> list[object]:
    return [failed.number, _insert(failed.insert)]


def _worked(command: Work, lines: Lines, heads: Heads) -> Worked:
    head = lines.pop()
    claims = head[11]
    others = [line for line in lines if line[0] != "t"]
    if others:
        lines = [line for line in lines if line[0] == "t"]
    # In a third of the time of Row(...).
    rows = tuple([sound(tuple.__new__(Row, line[1:])) for line in lines])
    lost_parts = {"lost": [], "ranges": []} if head[5] is None else json.loads(head[5])
    lost = set(lost_parts["lost"])
    firsts = {line[3]: line for line in others if line[0] == "f"}
    for queue, line in firsts.items():
        heads.put(queue, line[4], line[1])
    if command.limit >= _BATCH:
        # Rows of a queue come in the order in which they became ready.
        for row in {row.queue: row for row in rows if not row.priority}.values():
            if row.queue not in firsts:
                heads.put(row.queue, row.at, uuid_of(row.id))
    return Worked(
        alive=claims != 0,
        lost=tuple(part.id for part in command.settled if uuid_of(part.id) in lost) if lost else (),
        claimed=rows,
        wait=next((line[10] for line in others if line[0] == "n"), None),
        ranges=tuple([_range(line) for line in others if line[0] == "r"]),
        lost_ranges=tuple(command.finished[number].range for number in lost_parts["ranges"]),
    )


def _range(line: Sequence[Any]) -> tuple[Range, tuple[tuple[int, str], ...]]:
    numbers = range(line[4], line[10] + 1) if line[6] is None else map(int, line[6].split(","))
    values = line[5].split(SEPARATOR)
    return Range(line[3], line[7], line[4], line[10]), tuple(zip(numbers, values, strict=True))


def handed(notices: Sequence[str]) -> Worked | None:
    """The tasks that notifications hand to a session, and those of its own that are cancelled; None: none.

    Everybody who can connect to the database can send notifications: malformed ones are ignored.
    """
    claimed: list[Row] = []
    ranges: list[tuple[Range, tuple[tuple[int, str], ...]]] = []
    cancelled: list[Delete] = []
    for whom, _, text in (notice.partition(" ") for notice in notices):
        try:
            lines = json.loads(text) if text and whom != "*" else ()
            rows = [sound(Row(*line[1:])) for line in lines if line[0] == "t"]
            some = [_range(line) for line in lines if line[0] not in {"t", "x"}]
            gone = [Delete(str(line[1]), int(line[2])) for line in lines if line[0] == "x"]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            continue
        claimed += rows
        ranges += some
        cancelled += gone
    if not (claimed or ranges or cancelled):
        return None
    return Worked(claimed=tuple(claimed), ranges=tuple(ranges), cancelled=tuple(cancelled))


def put(queue: str, jsons: Sequence[str]) -> Asked:
    """The statement that inserts plain tasks."""
    return Asked(_PUT, (queue, SEPARATOR.join(jsons)), lambda _: None)


# --- sessions and queries ----------------------------------------------------------------------------


def _begin(command: Begin, now: int | None, heads: Heads) -> Asked:
    del heads
    s = command.session
    return Asked(_BEGIN, (s.id, s.host, s.pid, s.consumer, s.expiry, now), lambda _: None)


def _beat(command: Beat, now: int | None, heads: Heads) -> Asked:
    del heads

    def read(lines: Lines) -> Beaten:
        alive, held, lapsed, _, marked = lines[0][0]
        cancelled = tuple(Delete(task, version) for task, version in marked)
        return Beaten(alive=alive, claim_count=held, lapsed=tuple(lapsed), cancelled=cancelled)

    return Asked(_BEAT, (command.session, now), read)


def _end(command: End, now: int | None, heads: Heads) -> Asked:
    del heads
    return Asked(_END, (command.session, now), lambda _: None, again=lambda lines: bool(lines[0][0]))


def _acquire(command: Acquire, now: int | None, _: Heads) -> Asked:
    values = (command.name, command.owner, command.expiry, command.refresh, now)
    return Asked(_ACQUIRE, values, lambda lines: Acquired(*lines[0]))


def _release(command: Release, now: int | None, _: Heads) -> Asked:
    values = (command.name, command.owner, command.waiters, now)
    return Asked(_RELEASE, values, lambda lines: lines[0][0])


def _select(command: Select, now: int | None, heads: Heads) -> Asked:
    del now, heads
    ids = _array(dict.fromkeys(map(uuid_of, command.ids))) if command.ids else None
    values = (command.queue, ids, command.session, command.values, command.limit)
    return Asked(_SELECT, values, lambda lines: tuple([sound(Row(*line[1:])) for line in lines]))


def _outcomes(command: Outcomes, now: int | None, heads: Heads) -> Asked:
    del heads
    ids = _array(dict.fromkeys(map(uuid_of, command.ids))) if command.ids else None
    values = (ids, command.queue, command.state, command.limit, now)
    return Asked(_OUTCOMES, values, lambda lines: tuple([sound(OutcomeRow(*line)) for line in lines]))


def _count(command: Count, now: int | None, heads: Heads) -> Asked:
    del heads
    values = (list(command.names), list(command.prefixes), command.limit, now)
    return Asked(_COUNT, values, lambda lines: tuple([sound(QueueStats(*line)) for line in lines]))


def _sessions(command: Sessions, now: int | None, heads: Heads) -> Asked:
    del command, now, heads
    return Asked(_SESSIONS, (), lambda lines: tuple([sound(Session(*line)) for line in lines]))


_BATCH: Final = 16  # claims of at least this many tasks take the first ones, see tasks.sql
_ASK: Final[dict[type[Command[Any]], Callable[[Any, int | None, Heads], Asked]]] = {
    Modify: _modify,
    Cancel: _cancel,
    Work: _work,
    Begin: _begin,
    Beat: _beat,
    End: _end,
    Acquire: _acquire,
    Release: _release,
    Select: _select,
    Outcomes: _outcomes,
    Count: _count,
    Sessions: _sessions,
}
