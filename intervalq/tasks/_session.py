"""A worker's session: begins with the first claim, beats while it lives, and ends with all of its claims."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from intervalq._backend import EventBell, bells, spawn
from intervalq.errors import (
    BackendUnsupported,
    DependencyError,
    IntervalqError,
    InvalidOption,
    StoreUnavailable,
)
from intervalq.tasks._demand import Callers, Demand, Request
from intervalq.tasks._desk import Desk, Settle
from intervalq.tasks._ids import new_id
from intervalq.tasks._ranges import PLAIN
from intervalq.tasks._task import Claim, unused
from intervalq.tasks.rules import (
    Beat,
    Begin,
    Change,
    Delete,
    Depend,
    End,
    Insert,
    Modify,
    Select,
    Session,
    Work,
)
from intervalq.tasks.store import Guarding, Isolation, TaskStore, Transactional, Waking

log: Final = logging.getLogger("intervalq")

_BEATS: Final = 5
"""How often it beats within its expiry: some may be late or lost."""

_WATCH: Final = 0.2
"""Seconds between two looks at whether another worker's process has died."""

_FAREWELL: Final = 5.0
"""Seconds that the end of a session may take; then it lapses by itself."""

_AGAIN: Final = 1.0
"""Seconds until wake-ups that broke off are asked for again."""


class WorkSession:
    """All that one process claims of a store, as one consumer."""

    def __init__(self, store: TaskStore, expiry: float, consumer: str = "") -> None:
        self.store = store
        self.expiry = expiry
        self.consumer = consumer
        self.desk = Desk(store, self)
        self._callers: dict[tuple[tuple[str, ...], int | None, int | None], Callers] = {}
        self._running = False
        self._closing = False
        self._is_lapsed = False
        self._ended = anyio.Event()
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
    ) -> list[Claim]:
        """Claim tasks: as soon as there is one, or nothing after `timeout` seconds; with `once`, at once.

        Raises:
            StoreError: it can't be asked; of one that is away, after a minute.
        """
        name = (queues, lease, most)
        callers = self._callers.get(name)
        if callers is None:
            callers = self._callers[name] = Callers(queues, lease, most, lambda: self._without(name))
            self.desk.add(callers)
        request = Request(limit, bells()(), once=once)
        callers.join(request)
        self.begin()
        self.desk.poke()
        taken = False
        try:
            with anyio.move_on_after(timeout):
                await request.bell
            taken = True
        finally:
            callers.leave(request)
            if not taken:
                for claim in request.claims:
                    self.desk.settle(Settle(claim, unused(claim.row)))
        if request.error is not None:
            raise request.error
        return request.claims

    def _without(self, name: tuple[tuple[str, ...], int | None, int | None]) -> None:
        callers = self._callers.pop(name, None)
        if callers is not None:
            self.desk.drop(callers)

    def waiting(self) -> int:
        """How many calls wait for tasks."""
        return sum(len(callers.line) for callers in self._callers.values())

    def add(self, demand: Demand) -> None:
        """Claim for a demand from now on."""
        self.desk.add(demand)
        self.begin()

    # --- settling -----------------------------------------------------------------------------------

    async def settle(self, claim: Claim, part: Delete | Change) -> None:
        """Have a claim settled, and wait for it. See `Claim`."""
        if not claim.open:
            raise claim.lost()
        settle = Settle(claim, part, bell := bells()())
        self.desk.settle(settle)
        self.begin()
        await bell
        _check(settle)

    async def renew(self, claim: Claim, lease: int | None) -> None:
        """See `Claim.in_progress`. Calls at the same moment are one."""
        if not claim.open:
            raise claim.lost()
        settle = claim.renewal
        if settle is None:
            part = Change(claim.id, claim.version, keep=True, lease=lease)
            settle = claim.renewal = Settle(claim, part, EventBell())
            self.desk.settle(settle)
            self.begin()
        await self._renewed(claim)
        _check(settle)

    async def _renewed(self, claim: Claim) -> None:
        if claim.renewal is not None and claim.renewal.bell is not None:
            await claim.renewal.bell
            claim.renewal = None

    async def ack_with(self, claim: Claim, changes: Sequence[Insert | Change | Delete | Depend]) -> None:
        """See `Claim.ack`."""
        self._refuse_plain(claim, "changes that are made with its acknowledgement")
        await self._renewed(claim)
        if not claim.open:
            raise claim.lost()
        claim.open = False
        command = modification((*changes, Delete(claim.id, claim.version)), self.desk.session)
        try:
            await self.store.apply(command)
        except DependencyError as error:
            if claim.id in (*error.deletes, *error.claims):
                self._gone(claim)
                raise claim.lost() from error
            claim.open = True
            raise
        except BaseException:
            claim.open = True
            raise
        self.desk.held.pop(claim.id, None)

    @asynccontextmanager
    async def commit(self, claim: Claim, isolation: Isolation) -> AsyncIterator[Any]:
        """See `Claim.commit`."""
        if not isinstance(self.store, Transactional):
            raise BackendUnsupported(
                self.store.url,
                "this store has no transactions for its users: write results so that they may be written "
                "twice, and then claim.ack()",
            )
        self._refuse_plain(claim, "a transaction of its own")
        await self._renewed(claim)
        if not claim.open:
            raise claim.lost()
        async with self.store.transaction(isolation) as transaction:
            yield transaction.connection
            if not claim.open:
                raise claim.lost()
            delete = Delete(claim.id, claim.version)
            worked = await transaction.apply(Work(self.desk.session, (delete,)))
            if worked.lost:
                self._gone(claim)
                raise claim.lost()
        claim.open = False
        self.desk.held.pop(claim.id, None)

    def _refuse_plain(self, claim: Claim, what: str) -> None:
        if claim.id.startswith(PLAIN):
            raise InvalidOption(
                f"a plain task of queue {claim.queue!r} can't have {what}: insert such tasks with insert(), "
                "not put()"
            )

    def _gone(self, claim: Claim) -> None:
        self.desk.held.pop(claim.id, None)
        claim.lose()

    def lapsed(self) -> None:
        """The store no longer knows the session: what it had claimed is lost, and another one begins."""
        if not self._is_lapsed:
            self._is_lapsed = True
            log.warning("session %s has lapsed: what it had claimed is lost", self.desk.session)
            self.desk.lose_all()
            self.desk.poke()

    # --- its life -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin, if it hasn't."""
        if not self._running:
            self._running = True
            self._closing = False
            self._ended = anyio.Event()
            self._scope = anyio.CancelScope()
            spawn(self._run)

    async def close(self) -> None:
        """Settle what is to be settled, and end, which frees the rest. It begins again when used again."""
        if not self._running:
            return
        self._closing = True
        self.desk.finish_ranges()
        with anyio.move_on_after(_FAREWELL, shield=True):
            await self._ended.wait()
            return
        self._scope.cancel()
        with anyio.move_on_after(_FAREWELL, shield=True):
            await self._ended.wait()

    async def _run(self) -> None:
        try:
            with self._scope:
                while not (self._closing and self.desk.at_rest) and await self._begin():
                    try:
                        await self._live()
                    finally:
                        if not self._is_lapsed:
                            await self._end()
        finally:
            self._running = False
            self.desk.lose_all()
            self._ended.set()

    async def _begin(self) -> bool:
        """Whether a session began; not if the store says that it can't work."""
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
                await self.desk.bear(error)
            except IntervalqError as error:
                self.desk.fail(error)
                return False
            else:
                self.desk.session = session
                return True

    async def _live(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._beat)
            if isinstance(self.store, Waking):
                group.start_soon(self._hear, self.store)
            if isinstance(self.store, Guarding):
                group.start_soon(self._watch, self.store)
            while not self._is_lapsed and not (self._closing and self.desk.at_rest):
                await self.desk.turn()
            group.cancel_scope.cancel()

    async def _end(self) -> None:
        with anyio.move_on_after(_FAREWELL, shield=True):
            try:
                await self.store.apply(End(self.desk.session))
            except IntervalqError as error:
                log.warning("a session could not be ended, it lapses in %g s: %s", self.expiry, error)

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(self.expiry / _BEATS)
            before = {id_: claim for id_, claim in self.desk.held.items() if not id_.startswith(PLAIN)}
            try:
                beaten = await self.store.apply(Beat(self.desk.session))
                if not beaten.alive:
                    self.lapsed()
                    return
                if beaten.lapsed:
                    self.desk.ask_now()
                if beaten.held < len(before):
                    await self._look(before)
            except IntervalqError as error:
                log.debug("a beat of session %s: %s", self.desk.session, error)

    async def _look(self, before: dict[str, Claim]) -> None:
        """Find out which claims are gone: somebody changed those tasks by force, or a lease ended."""
        there = {row.id for row in await self.store.apply(Select(session=self.desk.session, values=False))}
        for id_, claim in before.items():
            if id_ not in there and claim.open and self.desk.held.get(id_) is claim:
                self._gone(claim)

    async def _hear(self, store: Waking) -> None:
        while True:
            try:
                async with store.wakeups(self.desk.session) as woken:
                    self.desk.hears = True
                    self.desk.ask_now()  # what came before this is not told
                    while True:
                        await woken()
                        self.desk.ask_now()
            except IntervalqError as error:
                log.debug("no wake-ups for session %s: %s", self.desk.session, error)
            finally:
                self.desk.hears = False
            await anyio.sleep(_AGAIN)

    async def _watch(self, store: Guarding) -> None:
        while True:
            try:
                async with store.guard(self.desk.session) as look:
                    while True:
                        await anyio.sleep(_WATCH)
                        if await look():
                            self.desk.ask_now()
            except IntervalqError as error:
                log.debug("session %s watches nobody: %s", self.desk.session, error)
            await anyio.sleep(_AGAIN)


def _check(settle: Settle) -> None:
    if settle.error is not None:
        raise settle.error
    if settle.lost:
        raise settle.claim.lost()


def modification(
    parts: Sequence[Insert | Change | Delete | Depend], session: str, *, force: bool = False
) -> Modify:
    """Parts as one command.

    Raises:
        InvalidOption: the same task is named twice.
    """
    ids = [part.id for part in parts]
    if len(set(ids)) < len(ids):
        twice = next(id_ for id_ in ids if ids.count(id_) > 1)
        raise InvalidOption(f"task {twice} is named twice in one change: say in one part what becomes of it")
    return Modify(
        session,
        tuple(part for part in parts if isinstance(part, Insert)),
        tuple(part for part in parts if isinstance(part, Change)),
        tuple(part for part in parts if isinstance(part, Delete)),
        tuple(part for part in parts if isinstance(part, Depend)),
        force=force,
    )
