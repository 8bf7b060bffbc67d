"""EntroQ's verbs on a store of tasks: a message in, a message out, whatever carries them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

import anyio

from intervalq.errors import DependencyError
from intervalq.service._access import Anybody, Caller, need
from intervalq.service._entroq import docs
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.changes import Changes, dependency, done
from intervalq.service._entroq.claimants import LONGEST, Claimants, session_of
from intervalq.service._entroq.claims import Claims, shown
from intervalq.service._entroq.model import MILLISECOND, stats_of, task_of
from intervalq.service._entroq.namespaces import Namespaces
from intervalq.service._entroq.values import Budget, fitting
from intervalq.service._entroq.waiting import Waiting
from intervalq.service._large import COUNTED, LARGE, Answers, away, size_of
from intervalq.service._refusal import Code, Refusal
from intervalq.service._tasks_access import check_modify
from intervalq.store import wall_clock
from intervalq.tasks._claim.values import queue_name, text
from intervalq.tasks._handle.operations import queues_of_tasks
from intervalq.tasks.rules import SECOND, Count, QueueStats, Row, Select
from intervalq.tasks.store import MAX_ROWS, TaskStore

_LEASE: Final = 30 * SECOND
"""EntroQ's usual claim, for a request that names none."""
_WAITED: Final = 100
"""The most queues that a claim may wait for."""
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
        self._namespaces = Namespaces(store, self.answers, clock)
        self._changes = Changes(store, self._namespaces, clock)
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
            except BaseException:  # or the client goes away
                with anyio.CancelScope(shield=True):
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
        lease = _lease(request.duration_ms)
        await need(caller, [("claim", queue) for queue in queues], request.claimant_id)
        return caller.claimant(request.claimant_id), queues, lease

    # --- changes -------------------------------------------------------------------------------------

    async def modify(self, request: pb.ModifyRequest, caller: Caller) -> pb.ModifyResponse:
        """Inserts, changes, deletes and depends: all or nothing."""
        claimant = caller.claimant(request.claimant_id)
        command = await away(request.ByteSize() > LARGE, self._changes.command, request, claimant)
        try:
            await check_modify(self._store, command, caller, request.claimant_id)
            if command.session and any(change.keep for change in command.changes):
                await self._claimants.session(claimant)
            modified = await self._changes.apply(command, claimant)
        except DependencyError as error:
            raise dependency(error, request) from error
        self.waiting.notify({row.queue for row in (*modified.inserted, *modified.changed)})
        self._remember(modified.inserted, request.claimant_id)
        return await away(request.ByteSize() > LARGE, done, modified, request.claimant_id)

    def _remember(self, rows: tuple[Row, ...], claimant: str) -> None:
        """Note who has inserted tasks: the protocol shows that as the claimant until a task is touched.

        A store doesn't keep that, and nothing depends on it, so the last inserts of this process are enough.
        """
        for row in rows:
            self._inserters[row.id] = claimant
        while len(self._inserters) > _REMEMBERED:
            self._inserters.popitem(last=False)

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
        inserters, budget, value = self._inserters, Budget(), look.select.values
        return pb.TasksResponse(
            tasks=[
                shown(row, budget, inserter=None if row.version else inserters.get(row.id), value=value)
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
        found = await queues_of_tasks(self._store.apply, Count(names, prefixes, asked))
        readable = await _readable(caller, {one.name for one in found})
        return [one for one in found if one.name in readable][:limit]

    async def time(self, request: pb.TimeRequest, caller: Caller) -> pb.TimeResponse:
        """The time on the clock of this service."""
        del request, caller
        return pb.TimeResponse(time_ms=self._clock() // MILLISECOND)

    # --- docs ----------------------------------------------------------------------------------------

    async def docs(self, request: pb.DocsRequest, caller: Caller) -> pb.DocsResponse:
        """Docs of a namespace by their keys, or those with these ids."""
        query = request.query
        queue = docs.queue_of(query.namespace)
        limit = min(_count("limit", query.limit) or _MAX_SHOWN, _MAX_SHOWN)
        ids = _few("ids", [docs.row_id(query.namespace, one) for one in query.ids])
        values = not query.omit_values
        await need(caller, [("read", queue)])
        async with self.answers.making(ids):
            if ids:
                rows = await self._namespaces.of_ids(queue, ids, values)
            else:
                rows = await self._namespaces.of_keys(queue, docs.range_of(query), limit, values)
            return await away(size_of(rows) > LARGE, _docs, rows, values)

    async def claim_docs(self, request: pb.ClaimDocsRequest, caller: Caller) -> pb.ClaimDocsResponse:
        """Claim all docs of a key, or none if another claimant has one of them."""
        query = request.claim_query
        queue = docs.queue_of(query.namespace)
        if not session_of(query.claimant):
            raise Refusal(Code.INVALID_ARGUMENT, "a claim needs a claimant")
        lease = _lease(query.duration_ms)
        await need(caller, [("claim", queue)], query.claimant)
        async with self.answers.making():
            try:
                rows = await self._namespaces.claim(queue, query.key, caller.claimant(query.claimant), lease)
            except DependencyError as error:
                raise dependency(error) from error
            return await away(size_of(rows) > LARGE, _claimed, rows)

    async def namespace_stats(self, request: pb.NamespacesRequest, caller: Caller) -> pb.NamespacesResponse:
        """The namespaces that have docs, with their numbers."""
        limit = min(_count("limit", request.limit) or _MAX_SHOWN, _MAX_SHOWN)
        names, prefixes = _few("match_exact", request.match_exact), _few("match_prefix", request.match_prefix)
        found = await self._namespaces.stats(names, prefixes)
        readable = await _readable(caller, {one.name for one in found})
        stats = [docs.stats_of(one) for one in found if one.name in readable]
        return pb.NamespacesResponse(namespaces=stats[:limit])


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
            and not docs.is_doc(row.queue)
            and (not self.mine or row.session == self.mine or not row.is_held(self.now))
        ]


async def _readable(caller: Caller, queues: set[str]) -> set[str]:
    return queues - {queue for _, queue in await caller.denied({("read", queue) for queue in queues}, "")}


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


def _count(what: str, value: int) -> int:
    if value < 0:
        raise Refusal(Code.INVALID_ARGUMENT, f"{what}={value} is below 0")
    return value


def _lease(duration_ms: int) -> int:
    """How long a claim lasts, in microseconds."""
    lease = duration_ms * MILLISECOND or _LEASE
    if not 0 < lease <= LONGEST:
        raise Refusal(Code.INVALID_ARGUMENT, f"duration_ms={duration_ms} is not a time of up to an hour")
    return lease


def _docs(rows: Iterable[Row], values: bool) -> pb.DocsResponse:
    budget = Budget()
    return pb.DocsResponse(docs=[docs.doc_of(row, budget, value=values) for row in rows])


def _claimed(rows: Iterable[Row]) -> pb.ClaimDocsResponse:
    """Without values once these are too many together: the docs are claimed, and can be listed."""
    budget = Budget()
    return pb.ClaimDocsResponse(docs=[fitting(partial(docs.doc_of, row, budget)) for row in rows])
