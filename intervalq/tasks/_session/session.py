"""A worker's session: begins with the first claim, sends heartbeats, and ends with all of its claims."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import anyio

from intervalq._timing.backends import EventWaker, spawn, wakers
from intervalq._timing.heartbeat import Heartbeat
from intervalq.errors import IntervalqError, QueueClosed, StoreError, StoreUnavailable
from intervalq.tasks._claim.endings import unused
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._claim.values import USUAL, Form
from intervalq.tasks._session.alone import RunAlone
from intervalq.tasks._session.batcher import Batcher
from intervalq.tasks._session.commit import ack_with, commit, refuse_report
from intervalq.tasks._session.demand import Demand, Request, WaitingCalls
from intervalq.tasks._session.server_pull import pull
from intervalq.tasks._session.server_pull import settle as settle_one
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks._session.waking import AGAIN, hear, watch
from intervalq.tasks._spec.ids import new_id
from intervalq.tasks.rules import (
    Beat,
    Begin,
    Change,
    Delete,
    Depend,
    End,
    Insert,
    Row,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import Forgetting, Guarding, Isolation, Pulling, TaskStore, Waking

log: Final = logging.getLogger("intervalq")

_FAREWELL: Final = 5.0
"""Seconds that the end of a session may take; after that, the session is left to expire."""

_LAST_MOMENT: Final = 1.0
"""Seconds that a caller whose time is up waits for the answer of a call in flight."""


class WorkSession:
    """All claims of one process in a store, as one consumer."""

    def __init__(self, store: TaskStore, expiry: float, consumer: str = "", form: Form = USUAL) -> None:
        self.store = store
        self._pulling = store if isinstance(store, Pulling) else None
        self._forgetting = store if isinstance(store, Forgetting) else None
        self.expiry = expiry
        self.consumer = consumer
        self.form = form
        """How values are written and read."""
        self.batcher = Batcher(store, self, self.lapsed)
        self.run_alone = RunAlone()
        self._callers: dict[tuple[tuple[str, ...], int | None, int | None], WaitingCalls] = {}
        self._running = False
        self._closing = False
        self._is_lapsed = False
        self._ended = anyio.Event()
        self._begun = anyio.Event()  # set when a session has begun, or can't, in which case there is an error
        self._error: IntervalqError | None = None
        self._pulls: set[anyio.CancelScope] = set()  # of calls that wait at the store
        self._renewals: dict[Claim, Settle] = {}  # those in flight
        self._scope = anyio.CancelScope()

    # --- claims -------------------------------------------------------------------------------------

    async def claims(
        self,
        queues: tuple[str, ...],
        limit: int,
        *,
        lease: int | None = None,
        most: int | None = None,
        once: bool = False,
        timeout: float | None = None,
        last: float = _LAST_MOMENT,
    ) -> list[Claim]:
        """Claim tasks as soon as there is one; after `timeout` seconds, or with `once` at once, return none.

        A request in flight at the timeout is awaited for up to `last` more seconds, so that its tasks are not
        claimed for a caller that has left.

        Raises:
            StoreError: the store can't be asked; if it is unreachable, after a minute.
        """
        if self._pulling is not None:
            work = Work(self.batcher.session, queues=queues, limit=limit, lease=lease, most=most, begins=2)
            with anyio.CancelScope() as scope:
                self._pulls.add(scope)
                try:
                    return await pull(self, self._pulling, work, 0 if once else timeout)
                finally:
                    self._pulls.remove(scope)
            raise QueueClosed(", ".join(queues))
        name = (queues, lease, most)
        callers = self._callers.get(name)
        if callers is None:
            callers = self._callers[name] = WaitingCalls(queues, lease, most, self._without)
            self.batcher.add(callers)
        request = Request(limit, wakers()(), once=once)
        callers.join(request)
        self.begin()
        self.batcher.poke()
        taken = False
        try:
            with anyio.move_on_after(timeout):
                await request.waker
            if not request.is_answered and (request.asked or not request.was_asked):
                request.is_over = request.asked
                request.once, request.waker = True, wakers()()
                with anyio.move_on_after(last):
                    await request.waker
            taken = True
        finally:
            callers.leave(request)
            if not taken:
                for claim in request.claims:
                    self.batcher.settle(Settle(claim, unused(claim._row)))
        if request.error is not None:
            raise request.error
        return request.claims

    async def ready(self) -> str:
        """The id of the session, which begins now if there was none, or once the one before has ended.

        Raises:
            StoreError: it could not begin. If the store was unreachable, this goes on to be tried.
        """
        while True:
            while self._running and self._closing:
                await self._ended.wait()
            self.begin()
            if self._begun.is_set():
                return self.batcher.session
            await self._begun.wait()
            if self._error is not None:
                raise self._error

    def _without(self, callers: WaitingCalls) -> None:
        name = (callers.queues, callers.lease, callers.most)
        if self._callers.get(name) is callers:
            del self._callers[name]
            self.batcher.drop(callers)

    def waiting(self) -> int:
        """How many calls wait for tasks."""
        return sum(len(callers.requests) for callers in self._callers.values()) + len(self._pulls)

    def add(self, demand: Demand) -> None:
        """Claim for a demand from now on."""
        self.batcher.add(demand)
        self.begin()

    # --- settling -----------------------------------------------------------------------------------

    async def settle(self, claim: Claim, part: Delete | Change) -> None:
        """Settle a claim, and wait until that is done. See `Claim`."""
        if not claim.open:
            raise claim._lost()
        settle = Settle(claim, part, waker := wakers()())
        if self._pulling is not None and self._running and self._begun.is_set():
            await settle_one(self, settle)
        else:
            self.batcher.settle(settle)
        self.begin()
        try:
            await waker
        except BaseException:
            settle.waker = None  # it is still done, however long that takes
            raise
        settle.check()

    async def renew(
        self, claim: Claim, lease: int | None, report: Callable[[str], str] | None = None
    ) -> None:
        """See `Claim.in_progress`. Equal calls at the same moment are combined.

        Args:
            claim: the claim to renew.
            lease: for how long, in microseconds; None: as long as the session.
            report: gives what is known of the work from what was known before; None: that stays.
        """
        if report is not None:
            refuse_report(claim, self.store)
        while (settle := self._renewals.get(claim)) is not None and (
            settle.is_answered or settle.lease != lease or report is not None
        ):
            await self.renewed(claim)
        if not claim.open:
            raise claim._lost()
        if settle is None:
            progress = None if report is None else report(claim._row.progress)
            part = Change(claim.id, claim.version, keep=True, lease=lease, progress=progress)
            settle = self._renewals[claim] = Settle(claim, part, EventWaker())
            settle.ended = partial(self._renewals.pop, claim, None)
            self.batcher.settle(settle)
            self.begin()
        await self.renewed(claim)
        settle.check()
        claim._lease = lease

    async def renewed(self, claim: Claim) -> None:
        """Wait for a renewal in flight, to know the version after it."""
        settle = self._renewals.get(claim)
        if settle is None or settle.waker is None:
            return
        await settle.waker

    async def ack_with(self, claim: Claim, changes: Sequence[Insert | Change | Delete | Depend]) -> None:
        """See `Claim.ack`."""
        await ack_with(self, [claim], changes)

    def commit(self, claims: Sequence[Claim], isolation: Isolation) -> AbstractAsyncContextManager[Any]:
        """See `Claim.commit`."""
        return commit(self, claims, isolation)

    def holds(self, claim: Claim) -> bool:
        """Whether it has the claim, as far as this process knows."""
        return self.batcher.holds(claim)

    @property
    def may_doubt(self) -> bool:
        """Whether the store may forget claims; otherwise no claim is ever in doubt."""
        return self._forgetting is not None

    def is_in_doubt(self, claim: Claim) -> bool:
        """Whether others may have the task by now, so that work on it must not begin."""
        store = self._forgetting
        return store is not None and claim.open and not store.holds(self.batcher.session, claim._row)

    def settled(self, claim: Claim) -> None:
        """Note that a change of tasks by the user settled the claim."""
        if self.batcher.forget(claim):
            claim.open = False
            self.batcher.poke()

    def changed(self, claim: Claim, row: Row) -> None:
        """Note that a change of tasks by the user changed the task, which is still claimed."""
        if self.holds(claim):
            claim._row = row

    def gone(self, claim: Claim) -> None:
        """Note that a claim is lost."""
        if self.batcher.forget(claim):
            claim._lose()

    def lapsed(self) -> None:
        """Drop all claims and begin another session, because the store no longer knows this one."""
        if not self._is_lapsed:
            self._is_lapsed, self._begun = True, anyio.Event()  # of its successor
            log.warning("session %s has expired: its claims are lost", self.batcher.session)
            self.batcher.lose_all()
            self.batcher.poke()

    # --- lifecycle ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the session, unless it has begun."""
        if not self._running:
            self._running = True
            self._closing = self.batcher.hurries = False
            self._ended = anyio.Event()
            self._begun, self._error = anyio.Event(), None
            self._scope = anyio.CancelScope()
            spawn(self._run)

    async def close(self) -> None:
        """Send all settlements and end, which frees other claims. Call it shielded; it can be used again."""
        for scope in self._pulls:
            scope.cancel()
        if not self._running:
            return
        self._closing = self.batcher.hurries = True
        self.batcher.refuse()
        with anyio.move_on_after(_FAREWELL):
            await self._ended.wait()
            return
        self._scope.cancel()
        with anyio.move_on_after(_FAREWELL):
            await self._ended.wait()

    async def leave(self) -> None:
        """End the session if nobody waits for tasks or has any, because one of its users has left."""
        held = self.batcher.ranges or any(claim.open for claim in self.batcher.claims.values())
        if not (self.batcher.wanted or self._pulls or held):
            await self.close()

    async def _run(self) -> None:
        try:
            with self._scope:
                while not (self._closing and self.batcher.at_rest) and await self._begin():
                    try:
                        await self._live()
                    finally:
                        if not self._is_lapsed:
                            await self._end()
                            self.batcher.lose_all()
        except Exception as error:
            log.exception("session %s ends", self.batcher.session)
            self._error = StoreError(self.store.url, f"it raised an undocumented error: {error!r}")
            self.batcher.fail(self._error)
        finally:
            self._running = False
            self.batcher.lose_all()
            self._begun.set()
            self._ended.set()
        if self._closing and self.batcher.wanted:  # a caller came while it ended
            self.begin()

    async def _begin(self) -> bool:
        """Begin a session; returns whether it did. It doesn't if the store can't be used."""
        host, pid = socket.gethostname(), os.getpid()
        self._is_lapsed = False
        while True:
            session = new_id()
            try:
                expiry = round(self.expiry * 1e6)
                await self.store.apply(Begin(Session(session, host, pid, self.consumer, expiry)))
            except StoreUnavailable as error:
                if self._closing:
                    return False
                self._error = error
                self._begun.set()  # those who wait for it know how long they want to
                self._begun = anyio.Event()
                await self.batcher.bear(error)
            except IntervalqError as error:
                self.batcher.fail(error)
                self._error = error
                self._begun.set()
                return False
            else:
                self.batcher.session, self._error = session, None
                self._begun.set()
                return True

    async def _live(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(Heartbeat(self._beat, self.expiry).run)
            if isinstance(self.store, Waking):
                group.start_soon(hear, self.batcher, self.store, lambda: self._is_lapsed)
            if isinstance(self.store, Guarding):
                guards = anyio.Event()
                group.start_soon(watch, self.batcher, self.store, guards)
                with anyio.move_on_after(AGAIN):  # a running function may keep others from beginning
                    await guards.wait()
            while not (self._is_lapsed or self.batcher.is_to_end or (self._closing and self.batcher.at_rest)):
                await self.batcher.turn()
            group.cancel_scope.cancel()

    async def _end(self) -> None:
        with anyio.move_on_after(_FAREWELL, shield=True):
            try:
                await self.store.apply(End(self.batcher.session))
            except IntervalqError as error:
                log.warning("a session could not be ended, so it expires in %g s: %s", self.expiry, error)

    async def _beat(self) -> bool:
        before = self.batcher.claims.copy()
        lost = tuple(self.batcher.cancelled.lost)
        try:
            beaten = await self.store.apply(Beat(self.batcher.session))
            if not beaten.alive:
                self.lapsed()
                return False
            self.batcher.cancelled.learn(beaten.cancelled)
            self.batcher.cancelled.not_told(lost)
            if beaten.lapsed:
                self.batcher.ask_now()
            if beaten.claim_count < len(before):
                await self._look(before)
            elif self.batcher.lost_call and beaten.claim_count > len(before):
                self.batcher.ask_now(missed=True)  # it may have come late, and claimed something
        except IntervalqError as error:
            log.debug("a heartbeat of session %s: %s", self.batcher.session, error)
        return True

    async def _look(self, before: dict[str, Claim]) -> None:
        """Find lost claims: their tasks were changed by force, or a lease ended."""
        there = {row.id for row in await self.store.apply(Select(session=self.batcher.session, values=False))}
        for id_, claim in before.items():
            if id_ not in there and claim.open and self.batcher.claims.get(id_) is claim:
                self.gone(claim)
