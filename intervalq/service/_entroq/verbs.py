"""EntroQ's verbs on a store of tasks: a message in, a message out, whatever carries them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from google.protobuf.message import Message

from intervalq.errors import DependencyError
from intervalq.service._access import Anybody, Caller, need
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.claimants import LONGEST, Claimants, session_of
from intervalq.service._entroq.claims import Claims, shown
from intervalq.service._entroq.model import MILLISECOND, at_of, detail, span_of, stats_of, task_of
from intervalq.service._entroq.values import Values
from intervalq.service._entroq.waiting import Waiting
from intervalq.service._large import COUNTED, LARGE, Answers, away, size_of
from intervalq.service._refusal import Code, Refusal
from intervalq.service._tasks_access import check_modify
from intervalq.store import wall_clock
from intervalq.tasks._claim.values import error_text, insert, queue_name, text
from intervalq.tasks.rules import (
    SECOND,
    Change,
    Count,
    Delete,
    Depend,
    Insert,
    Modified,
    Modify,
    QueueStats,
    Row,
    Select,
)
from intervalq.tasks.store import MAX_ROWS, TaskStore

_LEASE: Final = 30 * SECOND
"""EntroQ's usual claim, for a request that names none."""
_WAITED: Final = 100
"""The most queues that a claim may wait for."""
_MAX_ATTEMPT: Final = 1_000_000_000
_TOLD: Final = 300
"""The maximum number of characters in the text of an error, whose details name the tasks."""
_REMEMBERED: Final = 10_000
_MAX_SHOWN: Final = 10_000
"""The maximum number of tasks or queues in an answer, because it is one message."""


class Verbs:
    """A store of tasks as an EntroQ service."""

    def __init__(
        self, store: TaskStore, answers: Answers | None = None, clock: Callable[[], int] = wall_clock
    ) -> None:
        self._store, self._clock = store, clock
        self.answers = Answers() if answers is None else answers
        self._claimants = Claimants(store)
        self._inserters: OrderedDict[str, str] = OrderedDict()
        self._claims = Claims(store, self._claimants)
        self.waiting = Waiting(store, self._claims.give_back)

    async def aclose(self) -> None:
        """Await what is still to be given back; the store stays open."""
        await self._claims.aclose()

    # --- claims --------------------------------------------------------------------------------------

    async def try_claim(self, request: pb.ClaimRequest, caller: Caller) -> pb.ClaimResponse:
        """Claim a task that is ready; the answer has no task if there is none."""
        claimant, queues, lease = await self._wanted(request, caller)
        return pb.ClaimResponse(task=(await self._claims.claim(claimant, queues, lease)).task)

    async def claim(self, request: pb.ClaimRequest, caller: Caller) -> pb.ClaimResponse:
        """A task, claimed as soon as there is one."""
        claimant, queues, lease = wanted = await self._wanted(request, caller)
        if len(queues) > _WAITED:
            raise Refusal(
                Code.INVALID_ARGUMENT, f"a claim waits for at most {_WAITED} queues, not {len(queues)}"
            )
        task = (await self._claims.claim(*wanted)).task
        if task is None:
            row = await self.waiting.wait(queues, lambda: self._claims.claim(claimant, queues, lease))
            try:  # the right may have been taken away meanwhile
                await need(caller, [("claim", row.queue)], request.claimant_id)
            except Refusal:
                await self._claims.give_back(row)
                raise
            task = task_of(row)
        return pb.ClaimResponse(task=task)

    async def _wanted(self, request: pb.ClaimRequest, caller: Caller) -> tuple[str, tuple[str, ...], int]:
        """The claimant, the queues and the lease of a claim, checked."""
        if not request.queues or len(request.queues) > MAX_ROWS or not request.claimant_id:
            raise Refusal(
                Code.INVALID_ARGUMENT, f"a claim needs a claimant_id and 1 to {MAX_ROWS} queues to claim from"
            )
        queues = tuple(sorted({*map(queue_name, request.queues)}))
        lease = request.duration_ms * MILLISECOND or _LEASE
        if not 0 < lease <= LONGEST:
            raise Refusal(
                Code.INVALID_ARGUMENT, f"duration_ms={request.duration_ms} is not a time of up to an hour"
            )
        await need(caller, [("claim", queue) for queue in queues], request.claimant_id)
        return caller.claimant(request.claimant_id), queues, lease

    # --- changes -------------------------------------------------------------------------------------

    async def modify(self, request: pb.ModifyRequest, caller: Caller) -> pb.ModifyResponse:
        """Inserts, changes, deletes and depends: all or nothing."""
        _refuse_docs(request)
        claimant = caller.claimant(request.claimant_id)
        command = await away(request.ByteSize() > LARGE, self._command, request, session_of(claimant))
        try:
            await check_modify(self._store, command, caller, request.claimant_id)
            if command.session and any(change.keep for change in command.changes):
                await self._claimants.session(claimant)
            modified = await self._modify(command)
        except DependencyError as error:
            raise _dependency(error, request) from error
        self.waiting.notify({row.queue for row in (*modified.inserted, *modified.changed)})
        self._remember(modified.inserted, request.claimant_id)
        return await away(request.ByteSize() > LARGE, _done, modified, request.claimant_id)

    def _command(self, request: pb.ModifyRequest, session: str) -> Modify:
        """What a request asks of the store."""
        count = len(request.inserts) + len(request.changes) + len(request.deletes) + len(request.depends)
        if count > MAX_ROWS:
            raise Refusal(Code.INVALID_ARGUMENT, f"a change has at most {MAX_ROWS} parts, not {count}")
        values = Values()
        command = Modify(
            session=session,
            inserts=tuple([_insert(one, values) for one in request.inserts]),
            changes=tuple([self._change(one, values) for one in request.changes]),
            deletes=tuple([Delete(text("id", one.id), one.version) for one in request.deletes]),
            depends=tuple([Depend(text("id", one.id), one.version) for one in request.depends]),
        )
        if count > 1 and len({one.id for part in _parts(command) for one in part}) < count:
            raise Refusal(Code.INVALID_ARGUMENT, "a change names one task twice: name each task once")
        return command

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

    def _change(self, change: pb.TaskChange, values: Values) -> Change:
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
                json=values.json_of(new.value),
                attempt=_attempt(new.attempt),
                error=error_text(new.err),
            )
        if ahead is None:
            return replace(timed, delay=0)
        moves = old.queue and timed.queue not in (old.queue, None)
        if moves or ahead > LONGEST:  # then nobody has claimed it
            return replace(timed, delay=ahead)
        return replace(timed, keep=True, lease=ahead)

    def _ahead(self, data: pb.TaskData) -> int | None:
        """How far ahead a time lies, in microseconds; None: it is now, or past."""
        ahead = span_of(data.by_ms) if data.by_ms else (at_of(data.at_ms) or 0) - self._clock()
        return ahead if ahead > 0 else None

    # --- looks ---------------------------------------------------------------------------------------

    async def tasks(self, request: pb.TasksRequest, caller: Caller) -> pb.TasksResponse:
        """Tasks of a queue, or those with these ids; a claimant sees its own, and those that nobody has."""
        look = await self._look(request, caller)
        async with self.answers.making(look.select.ids):
            rows = await look.fit(await self.answers.list_of(self._store, look.select))
            return await away(size_of(rows) > LARGE, self._listed, rows[: look.limit], look)

    async def stream_tasks(self, request: pb.TasksRequest, caller: Caller) -> AsyncIterator[pb.TasksResponse]:
        """As `tasks`, each in a message of its own."""
        look = await self._look(request, caller)
        pages = self.answers.pages(self._store, look.select)
        left = look.limit
        while left > 0:
            async with self.answers.making(look.select.ids):
                page = await anext(pages, None)
            if page is None:
                return
            rows = (await look.fit(page))[:left]
            left -= len(rows)
            taken = self.answers.waits(max(COUNTED, size_of(rows)))  # so that small ones count, too
            try:
                for row in rows:
                    yield self._listed([row], look)
            finally:
                if taken is not None:
                    taken()

    def _listed(self, rows: list[Row], look: Look) -> pb.TasksResponse:
        inserters = self._inserters
        return pb.TasksResponse(
            tasks=[
                shown(row, inserter=None if row.version else inserters.get(row.id), value=look.select.values)
                for row in rows
            ]
        )

    async def _look(self, request: pb.TasksRequest, caller: Caller) -> Look:
        """What a client wants to see, if it may."""
        if not request.queue and not request.task_id:
            raise Refusal(Code.INVALID_ARGUMENT, "give a queue or ids of tasks")
        limit = min(_count("limit", request.limit) or _MAX_SHOWN, _MAX_SHOWN)
        ids = _few("task_id", [text("id", one) for one in request.task_id])
        queue = queue_name(request.queue) if request.queue else None
        if queue is not None:
            await need(caller, [("read", queue)])
        mine = session_of(caller.claimant(request.claimant_id))
        # A store takes ids or a queue. Of the tasks of a claimant, only the first of the queue are looked at.
        select = Select(
            queue=None if ids else queue,
            ids=ids,
            limit=None if ids else _MAX_SHOWN if mine else limit,
            values=not request.omit_values,
        )
        return Look(select, limit, queue, mine, caller, self._clock())

    async def queues(self, request: pb.QueuesRequest, caller: Caller) -> pb.QueuesResponse:
        """The queues that have tasks, with the number of their tasks."""
        stats = await self._stats(request, caller)
        return pb.QueuesResponse(queues=[pb.QueueStats(name=one.name, num_tasks=one.size) for one in stats])

    async def queue_stats(self, request: pb.QueuesRequest, caller: Caller) -> pb.QueuesResponse:
        """The queues that have tasks, with their numbers by state."""
        return pb.QueuesResponse(queues=map(stats_of, await self._stats(request, caller)))

    async def _stats(self, request: pb.QueuesRequest, caller: Caller) -> list[QueueStats]:
        limit = min(_count("limit", request.limit) or _MAX_SHOWN, _MAX_SHOWN)
        # Those that the caller may not read don't count.
        asked = limit if isinstance(caller, Anybody) else None
        names, prefixes = _few("match_exact", request.match_exact), _few("match_prefix", request.match_prefix)
        found = await self._store.apply(Count(names, prefixes, asked))
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


class Look(NamedTuple):
    """What a client wants to see of the tasks."""

    select: Select
    limit: int
    queue: str | None
    """The queue that it may read; None: it asks for ids, wherever they are."""
    mine: str
    """The session whose tasks it sees, beside those that nobody has; empty: all."""
    caller: Caller
    now: int

    async def fit(self, rows: list[Row]) -> list[Row]:
        """Those of these tasks that it may see, and wants to."""
        queues = {row.queue for row in rows} if self.queue is None else {self.queue}
        readable = await _readable(self.caller, queues)
        return [
            row
            for row in rows
            if row.queue in readable
            and (not self.mine or row.session == self.mine or not row.is_held(self.now))
        ]


async def _readable(caller: Caller, queues: set[str]) -> set[str]:
    return queues - {queue for _, queue in await caller.denied({("read", queue) for queue in queues}, "")}


def _no_docs() -> Refusal:
    return Refusal(Code.UNIMPLEMENTED, "this service has no docs: keep such data in a database of your own")


def _refuse_docs(request: pb.ModifyRequest) -> None:
    if request.doc_inserts or request.doc_changes or request.doc_deletes or request.doc_depends:
        raise _no_docs()


def _insert(data: pb.TaskData, values: Values) -> Insert:
    return insert(data.queue, None, id=data.id or None)._replace(
        json=values.json_of(data.value),
        at=None if data.by_ms else at_of(data.at_ms),
        delay=max(0, span_of(data.by_ms)),
        attempt=_attempt(data.attempt),
        error=error_text(data.err),
    )


def _few(what: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Texts to look for, checked.

    Raises:
        Refusal: there are too many, or one can't be in a store.
    """
    found = tuple(texts)
    if len(found) > MAX_ROWS or not all(one.isprintable() for one in found):
        raise Refusal(
            Code.INVALID_ARGUMENT, f"{what} has more than {MAX_ROWS} entries, or one with control characters"
        )
    return found


def _attempt(value: int) -> int:
    if not 0 <= value <= _MAX_ATTEMPT:
        raise Refusal(Code.INVALID_ARGUMENT, f"attempt={value} is out of range: give 0 to {_MAX_ATTEMPT:,}")
    return value


def _count(what: str, value: int) -> int:
    if value < 0:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what}={value} is below 0")
    return value


def _parts(command: Modify) -> Iterable[Iterable[Insert | Change | Delete | Depend]]:
    return command.inserts, command.changes, command.deletes, command.depends


def _done(modified: Modified, claimant: str) -> pb.ModifyResponse:
    """The answer to a change."""
    return pb.ModifyResponse(
        inserted=[shown(row, inserter=claimant) for row in modified.inserted],
        changed=[shown(row) for row in modified.changed],
    )


def _dependency(error: DependencyError, request: pb.ModifyRequest) -> Refusal:
    asked = {one.id: one for one in (*request.deletes, *request.depends)}
    asked |= {change.old_id.id: change.old_id for change in request.changes}
    new = {one.id: pb.TaskID(id=one.id, queue=one.queue) for one in request.inserts}
    details = [
        pb.ModifyDep(type=pb.DETAIL, msg=f"{error}"[:_TOLD]),
        *detail(pb.INSERT, error.inserts, new),
        *detail(pb.CHANGE, error.changes, asked),
        *detail(pb.DELETE, error.deletes, asked),
        *detail(pb.DEPEND, error.depends, asked),
        *detail(pb.CLAIM, error.claims, asked),
    ]
    return Refusal(Code.NOT_FOUND, str(error), details)
