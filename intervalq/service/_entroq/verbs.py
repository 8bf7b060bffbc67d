"""EntroQ's verbs on a store of tasks: a message in, a message out, whatever carries them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from google.protobuf.message import Message

from intervalq.errors import DependencyError
from intervalq.service._access import Anybody, Caller, need
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.claimants import LONGEST, Claimants, session_of
from intervalq.service._entroq.model import MILLISECOND, at_of, detail, json_of, stats_of, task_of
from intervalq.service._entroq.waiting import Waiting
from intervalq.service._refusal import Code, Refusal
from intervalq.store import wall_clock
from intervalq.tasks._claim.values import insert, queue_name, text
from intervalq.tasks.rules import (
    SECOND,
    Change,
    Count,
    Delete,
    Depend,
    Failed,
    Finished,
    Insert,
    Modified,
    Modify,
    QueueStats,
    Range,
    Row,
    Select,
    Work,
)
from intervalq.tasks.store import MAX_ROWS, TaskStore

_LEASE: Final = 30 * SECOND
"""EntroQ's usual claim, for a request that names none."""
_REMEMBERED: Final = 10_000
_MOST: Final = 10_000
"""The most tasks or queues in an answer, because it is one message."""


class Verbs:
    """A store of tasks as an EntroQ service."""

    def __init__(self, store: TaskStore, clock: Callable[[], int] = wall_clock) -> None:
        self._store, self._clock = store, clock
        self._claimants = Claimants(store)
        self._inserters: OrderedDict[str, str] = OrderedDict()
        self.waiting = Waiting(store)

    # --- claims --------------------------------------------------------------------------------------

    async def try_claim(self, request: pb.ClaimRequest, caller: Caller) -> pb.ClaimResponse:
        """A task that is ready, claimed; an answer without a task: there is none."""
        row = await self._claim(request, caller)
        return pb.ClaimResponse() if row is None else pb.ClaimResponse(task=task_of(row))

    async def claim(self, request: pb.ClaimRequest, caller: Caller) -> pb.ClaimResponse:
        """A task, claimed as soon as there is one."""
        row = await self._claim(request, caller)
        if row is None:
            row = await self.waiting.wait(
                tuple(request.queues), lambda: self._claim(request, caller), self._give_back
            )
        return pb.ClaimResponse(task=task_of(row))

    async def _claim(self, request: pb.ClaimRequest, caller: Caller) -> Row | None:
        queues = tuple(dict.fromkeys(map(queue_name, request.queues)))
        if not queues or len(queues) > MAX_ROWS or not request.claimant_id:
            raise Refusal(
                Code.INVALID_ARGUMENT, f"a claim needs a claimant_id and 1 to {MAX_ROWS} queues to claim from"
            )
        lease = request.duration_ms * MILLISECOND or _LEASE
        if not 0 < lease <= LONGEST:
            raise Refusal(
                Code.INVALID_ARGUMENT,
                f"duration_ms={request.duration_ms} is not a time of up to a day",
            )
        await need(caller, [("claim", queue) for queue in queues], request.claimant_id)
        claimant = caller.claimant(request.claimant_id)
        session = await self._claimants.session(claimant)
        work = Work(session, queues=queues, limit=1, lease=lease)
        while True:
            worked = await self._store.apply(work)
            if not worked.alive:
                await self._claimants.session(claimant, again=True)
            elif worked.ranges:  # plain tasks, which have no versions: they become ordinary ones
                finished = tuple(_ordinary(*part) for part in worked.ranges)
                await self._store.apply(Work(session, finished=finished))
            else:
                return worked.claimed[0] if worked.claimed else None

    async def _give_back(self, row: Row) -> None:
        free = Change(row.id, row.version, delay=0)
        await self._store.apply(Work(row.session or "", settled=(free,)))
        self.waiting.notify([row.queue])

    # --- changes -------------------------------------------------------------------------------------

    async def modify(self, request: pb.ModifyRequest, caller: Caller) -> pb.ModifyResponse:
        """Inserts, changes, deletes and depends: all or nothing."""
        _refuse_docs(request)
        claimant = caller.claimant(request.claimant_id)
        session = session_of(claimant)
        changes = tuple(self._change(change) for change in request.changes)
        if session and any(change.keep for change in changes):
            await self._claimants.session(claimant)
        command = Modify(
            session=session,
            inserts=tuple(_insert(one) for one in request.inserts),
            changes=changes,
            deletes=tuple(Delete(text("id", one.id), one.version) for one in request.deletes),
            depends=tuple(Depend(text("id", one.id), one.version) for one in request.depends),
        )
        _check_parts(command)
        await self._check_access(command, caller, request.claimant_id)
        try:
            modified = await self._modify(command)
        except DependencyError as error:
            raise _dependency(error, request) from error
        self.waiting.notify({row.queue for row in (*modified.inserted, *modified.changed)})
        self._remember(modified.inserted, request.claimant_id)
        return pb.ModifyResponse(
            inserted=[task_of(row, claimant=request.claimant_id) for row in modified.inserted],
            changed=[task_of(row) for row in modified.changed],
        )

    async def _check_access(self, command: Modify, caller: Caller, claimant: str) -> None:
        """Check what a change does in which queue: in the one that the store has, whatever the client says.

        A task that moves meanwhile has another version, so that the change is refused then.
        """
        wanted = [("insert", insert.queue) for insert in command.inserts]
        ids = [one.id for one in command.changes]
        ids += [one.id for one in command.deletes]
        ids += [one.id for one in command.depends]
        if ids and not isinstance(caller, Anybody):
            rows = {row.id: row for row in await self._store.apply(Select(ids=tuple(ids), values=False))}
            wanted += [("delete", rows[one.id].queue) for one in command.deletes if one.id in rows]
            wanted += [("read", rows[one.id].queue) for one in command.depends if one.id in rows]
            for change in command.changes:
                row = rows.get(change.id)
                if row is not None and change.queue in (None, row.queue):
                    wanted.append(("change", row.queue))
                elif row is not None:
                    wanted += [("delete", row.queue), ("insert", change.queue or "")]
        await need(caller, wanted, claimant)

    def _remember(self, rows: tuple[Row, ...], claimant: str) -> None:
        """Note who has inserted tasks: the protocol shows that as the claimant until a task is touched.

        A store doesn't keep that, and nothing depends on it, so the last inserts of this process are enough.
        """
        for row in rows:
            self._inserters[row.id] = claimant
        while len(self._inserters) > _REMEMBERED:
            self._inserters.popitem(last=False)

    async def _modify(self, command: Modify) -> Modified:
        """Do a change. Renewals of tasks that the caller hasn't claimed only set the time, as in EntroQ."""
        try:
            return await self._store.apply(command)
        except DependencyError as error:
            kept = {change.id for change in command.changes if change.keep} & {*error.claims}
            if not kept or error.inserts or error.changes or error.deletes or error.depends:
                raise
            rows = {row.id: row for row in await self._store.apply(Select(ids=tuple(kept)))}
            now = self._clock()
            if any(row.is_held(now) and row.session != command.session for row in rows.values()):
                raise
            changes = tuple(
                replace(change, keep=False, at=now + (change.lease or 0), lease=None)
                if change.id in kept
                else change
                for change in command.changes
            )
            return await self._store.apply(replace(command, changes=changes))

    def _change(self, change: pb.TaskChange) -> Change:
        """A change of all fields, as EntroQ has it. Until a time ahead the caller keeps its claim."""
        old, new = change.old_id, change.new_data
        ahead = self._ahead(new)
        if change.mode == pb.CHANGE_LEASE:
            timed = Change(text("id", old.id), old.version)
        else:
            timed = Change(
                text("id", old.id),
                old.version,
                queue=queue_name(new.queue),
                json=json_of(new.value),
                attempt=_count("attempt", new.attempt),
                error=new.err,
            )
        if ahead is None:
            return replace(timed, delay=0)
        if old.queue and timed.queue not in (old.queue, None):  # what moves is no longer claimed
            return replace(timed, delay=ahead)
        return replace(timed, keep=True, lease=ahead)

    def _ahead(self, data: pb.TaskData) -> int | None:
        """How far ahead a time lies, in microseconds; None: it is now, or past."""
        at = at_of(data.at_ms) or 0
        ahead = data.by_ms * MILLISECOND if data.by_ms else at - self._clock()
        if ahead > LONGEST:
            raise Refusal(Code.INVALID_ARGUMENT, "a claim ends more than a day ahead: renew it later")
        return ahead if ahead > 0 else None

    # --- looks ---------------------------------------------------------------------------------------

    async def tasks(self, request: pb.TasksRequest, caller: Caller) -> pb.TasksResponse:
        """Tasks of a queue, or those with these ids; a claimant sees its own, and those that nobody has."""
        return pb.TasksResponse(tasks=[task async for task in self._tasks(request, caller)])

    async def stream_tasks(self, request: pb.TasksRequest, caller: Caller) -> AsyncIterator[pb.TasksResponse]:
        """As `tasks`, each in a message of its own."""
        async for task in self._tasks(request, caller):
            yield pb.TasksResponse(tasks=[task])

    async def _tasks(self, request: pb.TasksRequest, caller: Caller) -> AsyncIterator[pb.Task]:
        if not request.queue and not request.task_id:
            raise Refusal(Code.INVALID_ARGUMENT, "give a queue or ids of tasks")
        limit = _count("limit", request.limit) or _MOST
        ids = tuple(text("id", one) for one in request.task_id)
        queue = queue_name(request.queue) if request.queue else None
        # A store takes ids or a queue.
        select = Select(queue=None if ids else queue, ids=ids, limit=None, values=not request.omit_values)
        if not ids and not request.claimant_id:
            select = replace(select, limit=min(limit, _MOST))
        if queue is not None:
            await need(caller, [("read", queue)])
        mine, now, shown = session_of(caller.claimant(request.claimant_id)), self._clock(), 0
        rows = await self._store.apply(select)
        names = {row.queue for row in rows} if queue is None else {queue}
        readable = await _readable(caller, names)
        for row in rows:
            is_asked_for = row.queue in readable
            if is_asked_for and (not mine or row.session == mine or not row.is_held(now)) and shown < limit:
                shown += 1
                inserter = None if row.version else self._inserters.get(row.id)
                yield task_of(row, claimant=inserter, value=not request.omit_values)

    async def queues(self, request: pb.QueuesRequest, caller: Caller) -> pb.QueuesResponse:
        """The queues that have tasks, with the number of their tasks."""
        stats = await self._stats(request, caller)
        return pb.QueuesResponse(queues=[pb.QueueStats(name=one.name, num_tasks=one.size) for one in stats])

    async def queue_stats(self, request: pb.QueuesRequest, caller: Caller) -> pb.QueuesResponse:
        """The queues that have tasks, with their numbers by state."""
        return pb.QueuesResponse(queues=map(stats_of, await self._stats(request, caller)))

    async def _stats(self, request: pb.QueuesRequest, caller: Caller) -> list[QueueStats]:
        limit = min(_count("limit", request.limit) or _MOST, _MOST)
        # Those that the caller may not read don't count.
        asked = limit if isinstance(caller, Anybody) else None
        found = await self._store.apply(Count(tuple(request.match_exact), tuple(request.match_prefix), asked))
        readable = await _readable(caller, {one.name for one in found})
        return [one for one in found if one.name in readable][:limit]

    async def time(self, request: pb.TimeRequest, caller: Caller) -> pb.TimeResponse:
        """The time on the clock of this service."""
        del request, caller
        return pb.TimeResponse(time_ms=self._clock() // MILLISECOND)

    # --- docs ----------------------------------------------------------------------------------------

    async def docs(self, request: Message, caller: Caller) -> Message:
        """Refused: this service has tasks only."""
        del request, caller
        raise _no_docs()

    claim_docs = namespace_stats = docs


async def _readable(caller: Caller, queues: set[str]) -> set[str]:
    return queues - {queue for _, queue in await caller.denied({("read", queue) for queue in queues}, "")}


def _no_docs() -> Refusal:
    return Refusal(Code.UNIMPLEMENTED, "this service has no docs: keep such data in a database of your own")


def _refuse_docs(request: pb.ModifyRequest) -> None:
    if request.doc_inserts or request.doc_changes or request.doc_deletes or request.doc_depends:
        raise _no_docs()


def _insert(data: pb.TaskData) -> Insert:
    return insert(data.queue, None, id=data.id or None)._replace(
        json=json_of(data.value),
        at=None if data.by_ms else at_of(data.at_ms),
        delay=max(0, data.by_ms) * MILLISECOND,
        attempt=_count("attempt", data.attempt),
        error=data.err,
    )


def _ordinary(range_: Range, tasks: tuple[tuple[int, str], ...]) -> Finished:
    """Give back a range as ordinary tasks, with the ids that they have."""
    again = (
        Failed(number, Insert(range_.queue, value, f"plain-{range_.part}-{number}"))
        for number, value in tasks
    )
    return Finished(range_, tuple(again))


def _count(what: str, value: int) -> int:
    if value < 0:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what}={value} is below 0")
    return value


def _check_parts(command: Modify) -> None:
    """Refuse a change that names a task twice, or has too many parts."""
    ids = [one.id for one in command.inserts]
    ids += [one.id for one in command.changes]
    ids += [one.id for one in command.deletes]
    ids += [one.id for one in command.depends]
    if len(ids) > MAX_ROWS:
        raise Refusal(Code.INVALID_ARGUMENT, f"a change has at most {MAX_ROWS} parts, not {len(ids)}")
    if len({*ids}) < len(ids):
        raise Refusal(Code.INVALID_ARGUMENT, "a change names one task twice: name each task once")


def _dependency(error: DependencyError, request: pb.ModifyRequest) -> Refusal:
    asked = {one.id: one for one in (*request.deletes, *request.depends)}
    asked |= {change.old_id.id: change.old_id for change in request.changes}
    new = {one.id: pb.TaskID(id=one.id, queue=one.queue) for one in request.inserts}
    details = [
        pb.ModifyDep(type=pb.DETAIL, msg=str(error)),
        *detail(pb.INSERT, error.inserts, new),
        *detail(pb.CHANGE, error.changes, asked),
        *detail(pb.DELETE, error.deletes, asked),
        *detail(pb.DEPEND, error.depends, asked),
        *detail(pb.CLAIM, error.claims, asked),
    ]
    return Refusal(Code.NOT_FOUND, str(error), details)
