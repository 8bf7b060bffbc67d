"""`Tasks`: the handle of a store of durable tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from anyio import lowlevel

from intervalq._observe.telemetry import telemetry
from intervalq._queue.options import Duration, whole
from intervalq._spec import parse
from intervalq._spec.codec import Codec, checked_codec
from intervalq.tasks._claim import values as _values
from intervalq.tasks._claim.task import Claim, Task
from intervalq.tasks._handle.scheduling import Scheduling
from intervalq.tasks._session.commit import checkpoints, modification, settled
from intervalq.tasks._spec.ids import new_ids
from intervalq.tasks._worker.job import Work
from intervalq.tasks.rules import (
    Change,
    Delete,
    Depend,
    Insert,
    Modify,
)
from intervalq.tasks.store import (
    MAX_ROWS,
    Ranging,
    TaskStore,
    Transactional,
    checked_task_store,
    refuse_inserts,
)

log: Final = logging.getLogger("intervalq")

F = TypeVar("F", bound=Work)
A = TypeVar("A")


class Modified(NamedTuple):
    """What `Tasks.modify` did, in the order of its parts."""

    inserted: tuple[Task, ...]
    changed: tuple[Task, ...]
    existing: tuple[tuple[str, str], ...]
    """Inserts that were left out: their id, and the id of the existing task."""


class Tasks(Scheduling):
    """Durable tasks in a store: any worker may run one, and its result is committed once.

    A handle doesn't connect until it is used, so it may be created at import time. It belongs to one event
    loop and one process, and is pickled as its settings. What it claims belongs to its session, which begins
    with the first claim and ends with `aclose` (or `async with tasks:`).

    Args:
        store: a URL, a path, or a store object: `postgresql://`, `redis://` and its variants, `nats://`,
            `sqlite:///app.db` or `memory://`. None: the environment variable `INTERVALQ_STORE`, else the
            SQLite database `tasks.db` in the user's state folder (queues use `state.db` in the same folder).
        expiry: how long after its last sign of life a process loses its claims; from 0.1 s to an hour. The
            default, 5 s with a heartbeat each second, tolerates pauses of a few seconds.
        max_bytes: the largest size of a value, as JSON or as its codec wrote it.
        codec: an object with `encode(bytes)` and `decode(bytes)`, which both return bytes. Values and
            checkpoints pass through it on their way into the store and back, for example to be encrypted (see
            SECURITY.md). Ids, keys, names, times, notes and the errors of failed attempts don't. Values that
            were written without a codec are read as they are. None: values are stored as JSON.

    Raises:
        InvalidInterval, InvalidOption: at once; also if `store` is an object that holds queues or ledgers.
        UnknownStore, MissingExtra, StoreError: at first use.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | TaskStore | None = None,
        *,
        expiry: Duration = 5.0,
        max_bytes: int = _values.MAX_BYTES,
        codec: Codec | None = None,
    ) -> None:
        if isinstance(store, os.PathLike):
            store = os.fspath(store)
        super().__init__(
            store if isinstance(store, str) else None,
            None if store is None or isinstance(store, str) else checked_task_store(store),
            parse.duration(expiry, least=100_000, most=3_600_000_000, what="expiry") / 1e6,
            _values.Form(whole("max_bytes", max_bytes, 2, 1 << 28), checked_codec(codec)),
        )

    # --- inserting ----------------------------------------------------------------------------------

    def new(
        self,
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
    ) -> Insert:
        """A task to be inserted by `modify`, or with an acknowledgement.

        Args:
            queue: the queue of the task; a queue exists while it has tasks.
            value: any JSON value.
            id: an id of your own, up to 128 characters. None: a new UUID.
            key: tasks of one queue with the same key run one after the other, in order of insertion; see
                `concurrency_per_key`.
            at: not before this time: seconds since 1970, or a datetime with a time zone. None: now.
            delay: instead of `at`, a duration from now.
            dedupe_key: nothing is inserted while this queue has a task with the same dedupe key, and for
                `dedupe_for` after that.
            dedupe_for: see `dedupe_key`; the default of five minutes covers callers that retry.
            inbox: with a key: how many tasks of it may wait behind those that may run; beyond that,
                `InboxFull`.
            replace: with a key: replace its tasks that nobody has claimed.
            skip: with an id: insert nothing if the id exists, instead of refusing everything.
            priority: tasks of a higher one are claimed first, from -9 to 9: each step counts as if the task
                had become ready a minute earlier, so none waits for ever. Tasks of one key keep their order.
                With a priority, `insert` and `modify` raise UnsupportedOperation on NATS.
            keep: how long its outcome is kept after its end, from a second to 400 days, see `outcomes`. None:
                as its worker says, by default not at all, because each outcome takes time and room. With it,
                `insert` and `modify` raise UnsupportedOperation on stores that keep no outcomes.
            concurrency_per_key: with a key: how many of its tasks may run at a time, 1 to 1,000; they begin
                in the order of their insertion. That of the key's last task applies to all of them. Above 1,
                `insert` and `modify` raise UnsupportedOperation on NATS.

        Raises:
            InvalidName, InvalidTask, InvalidInterval, InvalidOption: an argument is wrong.
        """
        return _values.insert(
            queue, value, id=id, key=key, at=at, delay=delay, dedupe_key=dedupe_key, dedupe_for=dedupe_for,
            inbox=inbox, replace=replace, skip=skip, priority=priority, keep=keep,
            concurrency_per_key=concurrency_per_key, form=self._form,
        )  # fmt: skip

    async def insert(
        self,
        queue: str,
        value: object,
        *,
        id: str | None = None,  # noqa: A002
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
        connection: Any = None,  # noqa: ANN401 - of the store's driver
    ) -> str:
        """Insert a task, and return its id; with `dedupe_key` or `skip`, that of the existing task, if any.

        Args as for `new`, and `connection`: as for `modify`.

        Raises:
            DependencyError: the id exists.
            InboxFull: see `inbox`.
            StoreError: the task was not inserted. After a StoreTimeout it may have been: with an id and
                `skip`, or with a `dedupe_key`, it is safe to insert it again.
        """
        part = self.new(
            queue, value, id=id, key=key, at=at, delay=delay, dedupe_key=dedupe_key, dedupe_for=dedupe_for,
            inbox=inbox, replace=replace, skip=skip, priority=priority, keep=keep,
            concurrency_per_key=concurrency_per_key,
        )  # fmt: skip
        modified = await self.modify(part, connection=connection)
        return dict(modified.existing).get(part.id, part.id)

    async def batch(self, parts: Iterable[Insert], follow_up: Insert) -> str:
        """Insert tasks, and their follow-up, which is free once all of them have ended; returns its id.

        A task has ended when it is done, cancelled or deleted, or goes to a dead-letter queue; not while it
        moves on to other queues. A dead-letter task that is put back doesn't count again.

        Args:
            parts: 1 to 1,000,000 tasks from `new`, without `dedupe_key` and `skip`: one that is left out
                would never end.
            follow_up: a task from `new` without `key`, `dedupe_key` and `skip`.

        Raises:
            DependencyError, InboxFull, InvalidOption: nothing was inserted.
            UnsupportedOperation: on NATS; on Redis and Valkey, of more than 10,000 tasks.
            StoreError: the store can't be reached, or can't be trusted.
        """
        some = _values.checked_batch(parts, follow_up)
        refuse_inserts(self._here(), some)
        if len(some) > MAX_ROWS and isinstance(self._here(), Transactional):
            async with self.transaction() as connection:
                for first in range(0, len(some), MAX_ROWS):
                    await self.modify(*some[first : first + MAX_ROWS], connection=connection)
        else:
            await self._apply(Modify(inserts=tuple(some)))
            if (found := telemetry()) is not None:
                found.inserted([(part.queue, part.id) for part in some])
        self._wake()
        return follow_up.id

    async def put(self, queue: str, values: Iterable[object]) -> int:
        """Insert many plain tasks as fast as the store can, and return how many.

        Plain tasks have no key, time or priority, get their ids from the store, and run in no particular
        order. On Postgres they are handed out in ranges, several times as fast as others; elsewhere they are
        ordinary tasks. Each batch of a thousand is all or nothing: after an error, some batches may have been
        inserted.
        """
        queue = _values.queue_name(queue)
        store = self._here()
        count = 0
        errors: list[Exception] = []
        turn = anyio.Semaphore(1)  # while the store takes one batch, the next is prepared

        async def send(batch: list[str]) -> None:
            nonlocal count
            try:
                await self._put(store, queue, batch)
                count += len(batch)
            except Exception as error:  # noqa: BLE001 - it is raised below, without an exception group
                errors.append(error)
            finally:
                turn.release()

        async with anyio.create_task_group() as group:
            try:
                for batch in _batches(values, self._form):
                    await turn.acquire()
                    if errors:
                        break
                    group.start_soon(send, batch)
                    await lowlevel.checkpoint()  # let the batch be sent meanwhile
            except Exception as error:  # noqa: BLE001 - raised by the iteration of the values
                errors.append(error)
        if errors:
            raise errors[0]
        return count

    async def _put(self, store: TaskStore, queue: str, jsons: list[str]) -> None:
        if isinstance(store, Ranging):
            await store.put(queue, jsons)
        else:
            inserts = tuple(
                Insert(queue, json, id_) for json, id_ in zip(jsons, new_ids(len(jsons)), strict=True)
            )
            await store.apply(Modify(inserts=inserts))
        self._wake()

    async def modify(
        self,
        *parts: Insert | Change | Delete | Depend,
        connection: Any = None,  # noqa: ANN401 - of the store's driver
    ) -> Modified:
        """Insert, change and delete tasks, depending on others: all or nothing.

        A change of a task that this handle has claimed is a checkpoint: the claim continues, and the next
        attempt finds the new values. If the task is deleted or moved to another queue, it is settled.

        Args:
            parts: `tasks.new(...)`, `task.change(...)`, `task.delete()`, `task.depend()`; each task once, and
                at most a thousand.
            connection: psycopg's AsyncConnection (Postgres) or sqlite3's Connection (SQLite). The changes are
                made in its transaction, so they take effect when, and only if, it is committed. None: at
                once.

        Raises:
            DependencyError, InboxFull: nothing was done.
            InvalidOption: a task appears twice, or there are too many; or a checkpoint is of a plain task, or
                has `at`, `delay` or `connection`.
            UnsupportedOperation: a checkpoint on NATS.
            StoreError: the store can't be reached, or can't be trusted.
        """
        refuse_inserts(self._here(), [part for part in parts if isinstance(part, Insert)])
        session, claims = self._claims_among(parts)
        parts = await checkpoints(parts, claims, connection) if claims else parts
        modified = await self._apply(modification(parts, session), connection)
        if modified.inserted and (found := telemetry()) is not None:
            found.inserted([(row.queue, row.id) for row in modified.inserted])
        if connection is None:
            settled(parts, claims, modified.changed)
        if modified.inserted or modified.changed:
            self._wake()
        return Modified(
            tuple(Task(row, self._form) for row in modified.inserted),
            tuple(Task(row, self._form) for row in modified.changed),
            modified.existing,
        )

    def _claims_among(self, parts: Sequence[Insert | Change | Delete | Depend]) -> tuple[str, list[Claim]]:
        """The claims that are changed or deleted, and the session that holds them.

        Another session of this process may still know an earlier claim of a task, whose lease has lapsed; its
        version is older.
        """
        versions = {part.id: part.version for part in parts if isinstance(part, Change | Delete)}
        session_here = self._sessions.get("")
        found, claims = session_here.batcher.session if session_here else "", list[Claim]()
        most = -1
        for session in self._sessions.values():
            some = [claim for claim in map(session.batcher.find, versions) if claim is not None]
            current = sum(claim._row.version == versions[claim.id] for claim in some)
            if some and current > most:
                found, claims, most = session.batcher.session, some, current
        return found, claims

    def __reduce__(self) -> tuple[Callable[..., Tasks], tuple[Any, ...]]:
        if self._given is not None:
            raise TypeError(f"{self!r} was given a store object, which can't be pickled: give it a URL")
        return _revived, (self._url, self._expiry, *self._form)


def _batches(values: Iterable[object], form: _values.Form) -> Iterator[list[str]]:
    batch: list[str] = []
    for value in values:
        batch.append(_values.encode(value, form))
        if len(batch) == MAX_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _revived(url: str | None, expiry: float, max_bytes: int, codec: Codec | None) -> Tasks:
    return Tasks(url, expiry=expiry, max_bytes=max_bytes, codec=codec)
