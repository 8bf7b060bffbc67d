"""Queries of tasks and their numbers, which block nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from nats.aio.msg import Msg

from intervalq.tasks.rules import Count, QueueStats, Row, Select
from intervalq.tasks.store import Position, Pulled
from intervalq_stores.nats import _batch as batch
from intervalq_stores.nats._batch import Conflict
from intervalq_stores.nats._names import decoded, encoded
from intervalq_stores.nats._task.claims import Claims
from intervalq_stores.nats._task.message import PREFIX, STREAM, is_gone, lines_of, over_of, rests
from intervalq_stores.nats._task.stream import Stream

_EXACT: Final = 1000
"""The maximum number of tasks of a queue whose figures are exact. Those of larger queues include some tasks
that have just been removed, and, for each idle key, the last one that was removed from its inbox."""

_AT_ONCE: Final = 250
"""How many messages are asked for at once."""


async def select(stream: Stream, sessions: dict[str, Claims], command: Select) -> tuple[Row, ...]:
    """See `Select`. Claims of other processes are unknown."""
    rows_here = {
        one.row.id: one.row for claims in sessions.values() for one in claims.holdings.deliveries.values()
    }
    if command.session is not None:
        claims = sessions.get(command.session)
        rows = [one.row for one in claims.holdings.deliveries.values()] if claims is not None else []
    elif command.ids:
        known = [rows_here[id_] for id_ in command.ids if id_ in rows_here]
        others = [id_ for id_ in command.ids if id_ not in rows_here]
        there = {row.id: row for row in (*known, *await stream.with_ids(others, command.queue))}
        rows = [there[id_] for id_ in command.ids if id_ in there]
    else:
        name = "*" if command.queue is None else encoded(command.queue)
        rows = await stream.rows(f"{PREFIX}.w.{name}.*", command.limit)
        rows += await stream.rows(lines_of(command.queue), command.limit)
        rows = sorted((rows_here.get(row.id, row) for row in rows), key=lambda row: (row.at, row.id))
    if command.queue is not None:
        rows = [row for row in rows if row.queue == command.queue]
    rows = rows if command.limit is None else rows[: command.limit]
    return tuple(rows if command.values else [row._replace(json="null") for row in rows])


async def count(stream: Stream, command: Count) -> tuple[QueueStats, ...]:
    """See `Count`. That a named queue is empty is certain, even with replicas, because workers then end."""
    found = await _counted(stream, command)
    if stream.is_replicated:
        for queue in {*command.names} - {stats.name for stats in found}:
            if left := await _left(stream, queue):
                found.append(QueueStats(queue, left, ready=left))
    found.sort(key=lambda stats: stats.name)
    return tuple(found if command.limit is None else found[: command.limit])


async def _left(stream: Stream, queue: str) -> int:
    """How many tasks a queue has, claimed or not, whichever replica answers.

    Consumers and replicas may be behind the leader, and a former leader behind the present one. So what was
    read counts only if a conditional message confirms that it was up to date.
    """
    patterns = [f"{PREFIX}.{kind}.{encoded(queue)}.>" for kind in "wk"]
    while True:
        tops = [(await stream.last(pattern))[0] for pattern in patterns]
        subjects = [subject for pattern in patterns for subject in await stream.subjects(pattern)]
        found: dict[int, Msg] = {}
        for start in range(0, len(subjects), _AT_ONCE):
            lasts = await asyncio.gather(*map(stream.last, subjects[start : start + _AT_ONCE]))
            found |= {sequence: message for sequence, message in lasts if message is not None}
        over = {sequence for message in found.values() for sequence in over_of(message)}
        if left := {sequence for sequence, message in found.items() if not is_gone(message)} - over:
            return len(left)
        if {*tops} <= {0, *found}:
            with suppress(Conflict):
                conditions = [batch.seen(pattern, top) for pattern, top in zip(patterns, tops, strict=True)]
                await batch.store(stream.server, conditions)
                return 0


async def _counted(stream: Stream, command: Count) -> list[QueueStats]:
    """The figures of queues: those of a small one by reading its tasks, else the consumer's counters.

    By these, delayed tasks count as ready until they are first delivered, then as claimed.
    """
    found: list[QueueStats] = []
    for info in await stream.consumers():
        queue = decoded(info["config"]["durable_name"])
        if (command.names or command.prefixes) and not (
            queue in command.names or any(map(queue.startswith, command.prefixes))
        ):
            continue
        inbox = len(await stream.subjects(f"{PREFIX}.k.{encoded(queue)}.*.*"))
        ready, claimed = info["num_pending"], info["num_ack_pending"]
        stats = QueueStats(queue, ready + claimed + inbox, claimed=claimed, ready=ready, inbox=inbox)
        if 0 < stats.size <= _EXACT:
            rows = await stream.rows(f"{PREFIX}.w.{encoded(queue)}.*", None)
            stats = _of(queue, rows + await stream.rows(lines_of(queue), None), info, stream.now())
        if stats.size:
            found.append(stats)
    return found


def _of(queue: str, rows: Sequence[Row], info: Any, now: int) -> QueueStats:  # noqa: ANN401 - the server's
    """The figures of a queue with these tasks.

    A delivered task is claimed, unless its time has not come: then it was refused with a delay.
    """
    inbox = sum(row.waiting for row in rows)
    future = [row for row in rows if not row.waiting and rests(row) and row.at > now]
    refused = sum(row.version <= info["delivered"]["stream_seq"] for row in future)
    here = len(rows) - inbox - len(future)
    claimed = min(max(0, info["num_ack_pending"] - refused), here)
    return QueueStats(
        queue, len(rows), claimed=claimed, ready=here - claimed, future=len(future), inbox=inbox
    )


async def advice(stream: Stream) -> list[tuple[str, str]]:
    """The report for `doctor` about the stream of tasks."""
    connection = await stream.connection()
    config = (await stream.server.ask(f"STREAM.INFO.{STREAM}"))["config"]
    found = [("ok", f"the server is NATS {connection.version}, which stores several messages all or none")]
    name = f"stream {STREAM!r}"
    if config.get("num_replicas", 1) > 1:
        why = (
            f"{name} has {config['num_replicas']} replicas, so it works while most of them do. Replicas "
            "don't replace a disk: unless sync_interval: always is set, a power cut of several machines, or "
            "a crash of one while another is cut off or paused, may lose tasks of the last minutes"
        )
        found.append(("ok", why))
    elif config["storage"] == "memory":
        found.append(("warning", f"{name} is kept in memory: tasks are gone after a restart of the server"))
    else:
        why = (
            f"{name} is kept in files, which survive a crash or kill -9 of the server, but are written to "
            "the disk only every two minutes: a power cut or a crash of the machine may lose tasks of the "
            "last minutes and bring finished ones back. Set sync_interval: always in the server's jetstream "
            "block if that matters"
        )
        found.append(("warning", why))
    for limit in ("max_age", "max_bytes", "max_msgs"):
        if config.get(limit, -1) > 0:
            why = f"{name} has {limit} {config[limit]}, which removes or refuses tasks: remove this limit"
            found.append(("warning", why))
    return found


async def pulled(stream: Stream, queues: Sequence[str]) -> dict[str, Pulled]:
    """The state of the consumers of some queues, over all processes."""
    found: dict[str, Pulled] = {}
    for queue in queues:
        info = await stream.info(queue)
        if info is not None:
            found[queue] = Pulled(
                delivered=_position(info["delivered"]),
                ack_floor=_position(info["ack_floor"]),
                pending=info["num_pending"],
                ack_pending=info["num_ack_pending"],
                redelivered=info["num_redelivered"],
                waiting=info["num_waiting"],
                config=info["config"],
            )
    return found


def _position(reply: Any) -> Position:  # noqa: ANN401 - the server's
    return Position(reply["consumer_seq"], reply["stream_seq"])
