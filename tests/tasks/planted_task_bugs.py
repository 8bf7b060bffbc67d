"""Bugs planted in the rules and the client of tasks, each with the mix of faults that finds it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import anyio

from intervalq.tasks import rules
from intervalq.tasks._session import commit as _commit
from intervalq.tasks._session.batcher import Batcher
from intervalq.tasks._session.begun import Begun
from intervalq.tasks._session.cancelled import CancelledClaims
from intervalq.tasks._session.demand import Request, WaitingCalls
from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._session.settlement import Settle
from intervalq.tasks._worker import chunks, outcomes
from intervalq.tasks.rules import Beat, Beaten, Change, Delete, Modified, Modify, Row, Table
from planted.planting import Plant, instead

BUGS: Final[dict[str, tuple[str, int, Plant]]] = {}
"""By name: the mix, the seed of the first schedule that found it, and the function that plants it."""


def bug(name: str, mix: str, seed: int = 0) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        BUGS[name] = (mix, seed, plant)
        return plant

    return add


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the context is open; an empty name plants none."""
    yield from BUGS[name][2]() if name else iter((None,))


@bug("unguarded-commit", "stalls")
def _() -> Iterator[None]:
    """A task is acknowledged without a check whether it still exists, and at which version."""
    guarded = rules._modify

    def blind(table: Table, command: Modify, now: int) -> Modified:
        there = table.find([delete.id for delete in command.deletes])
        deletes = tuple(Delete(row.id, row.version) for row in there.values())
        return guarded(table, replace(command, deletes=deletes, force=True), now)

    return iter_dict(rules._RULES, Modify, blind)


@bug("ledger-first", "stalls")
def _() -> Iterator[None]:
    """The changes of an acknowledgement are made in a separate step, before it."""
    together = WorkSession.ack_with

    async def apart(self: WorkSession, claim: Any, changes: Any) -> None:
        await self.store.apply(_commit.modification(changes, self.batcher.session))
        await together(self, claim, ())

    return instead(WorkSession, "ack_with", apart)


@bug("silent-loss", "hands")
def _() -> Iterator[None]:
    """Whoever settles or renews a claim that is lost isn't told so."""
    return instead(Settle, "check", lambda _settle: None)


@bug("leaves-for-all", "hands-beside")
def _() -> Iterator[None]:
    """When the workers of a handle end, its session ends, too, although others wait for tasks."""
    return instead(WorkSession, "leave", WorkSession.close)


@bug("late-alone", "crashes")
def _() -> Iterator[None]:
    """The start of a task that is to run alone is reported with the next call, whenever that is."""
    first = Begun.first

    async def late(self: Begun, claim: Any) -> None:
        await anyio.sleep(0.5)
        await first(self, claim)

    return instead(Begun, "first", late)


@bug("claims-outlive-sessions", "crashes")
def _() -> Iterator[None]:
    """A lapsed session is removed, and its claims stay."""

    def beat(table: Table, command: Beat, now: int) -> Beaten:
        mine = table.session(command.session)
        if mine is not None:
            table.put_session(mine._replace(beaten=now))
        for session in table.sessions():
            if session.id != command.session and session.beaten + session.expiry < now:
                table.remove_session(session.id)
        return Beaten(mine is not None)

    return iter_dict(rules._RULES, Beat, beat)


@bug("key-not-fed", "calm")
def _() -> Iterator[None]:
    """The next task of a key does not become claimable when the first is gone."""
    return instead(rules, "_feed", lambda table, gone: None)


@bug("two-of-a-key", "calm")
def _() -> Iterator[None]:
    """Tasks of a key don't wait for each other."""
    last = rules._last_in_line

    def beside(table: Table, row: Row) -> Row:
        return last(table, row)._replace(waiting=False)

    return instead(rules, "_last_in_line", beside)


@bug("lost-answers-forgotten", "chunks-lossy")
def _() -> Iterator[None]:
    """Tasks claimed by a call whose answer was lost are never given back."""

    async def nothing(self: Batcher) -> None:
        self._doubt = False

    return instead(Batcher, "_recover", nothing)


@bug("late-claims-kept", "stalls", 26)
def _() -> Iterator[None]:
    """Tasks claimed by a call that was given up, and that reaches the store later, are never given back."""
    never = property(lambda self: False, lambda self, value: None)
    with mock.patch.object(Batcher, "lost_call", never, create=True):
        yield


@bug("settles-forgotten", "lossy", 1)
def _() -> Iterator[None]:
    """Settlements that could not be sent to the store are not sent again."""
    return instead(Batcher, "_back", lambda self, *_args: None)


@bug("lapse-unnoticed", "stalls")
def _() -> Iterator[None]:
    """A session that has lapsed continues with its claims, and claims no more."""
    return instead(WorkSession, "lapsed", lambda self: None)


@bug("end-keeps", "calm")
def _() -> Iterator[None]:
    """The background tasks of a session don't end with it."""

    async def runs_on(self: WorkSession) -> bool:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1e4)
        return True

    return instead(WorkSession, "_beat", runs_on)


@bug("dead-and-alive", "lossy")
def _() -> Iterator[None]:
    """A task that moves to another queue is copied."""
    change = rules._change

    def copied(table: Table, row: Row, part: Change, session: str, now: int) -> Row:
        after = change(table, row, part, session, now)
        if after.queue != row.queue:
            table.put([row._replace(id=f"{row.id}-2", key=None, session=None, dedupe=None, attempt=0)])
        return after

    return instead(rules, "_change", copied)


@bug("dedupe-ends-early", "lossy")
def _() -> Iterator[None]:
    """A dedupe key is free again as soon as its task is gone."""
    remove = rules._remove

    def forgetful(table: Table, row: Row, now: int, *, feed: bool = True) -> None:
        remove(table, row._replace(dedupe_for=0), now, feed=feed)

    return instead(rules, "_remove", forgetful)


@bug("left-with-it", "hands")
def _() -> Iterator[None]:
    """A task that arrives just as its caller leaves stays claimed."""
    leave = WaitingCalls.leave

    def leaves(self: WaitingCalls, request: Request) -> None:
        leave(self, request)
        if isinstance(sys.exc_info()[1], asyncio.CancelledError):
            request.claims = []

    return instead(WaitingCalls, "leave", leaves)


@bug("cancelled-yet-committed", "operators", 5)
def _() -> Iterator[None]:
    """A cancelled task has the version of its claim, so that it can still be acknowledged."""
    return instead(rules, "cancelled", lambda row, _now: row._replace(cancelled=True))


@bug("cancelled-comes-back", "operators-lossy")
def _() -> Iterator[None]:
    """A cancelled task whose session ends is free again."""

    def alive(table: Table, session: str, now: int) -> list[Row]:
        del now
        return [row._replace(cancelled=False) for row in table.of_session(session)]

    return instead(rules, "_left", alive)


@bug("cancelled-unnoticed", "operators")
def _() -> Iterator[None]:
    """Nobody ends the work on a cancelled task, or removes it."""
    return instead(CancelledClaims, "learn", lambda self, parts: None)


@bug("cancelled-frees-its-key", "operators")
def _() -> Iterator[None]:
    """A cancelled task is removed before its function has ended."""
    learn = CancelledClaims.learn

    def at_once(self: CancelledClaims, parts: Iterable[Delete]) -> None:
        new = [part for part in parts if part.id not in self.known]
        learn(self, new)
        for part in new:
            self._remove(part)

    return instead(CancelledClaims, "learn", at_once)


@bug("cancels-others", "operators")
def _() -> Iterator[None]:
    """When a task is cancelled, all functions that its session runs are cancelled."""
    learn = CancelledClaims.learn

    def beside(self: CancelledClaims, parts: Iterable[Delete]) -> None:
        is_new = any(part.id not in self.known for part in parts)
        learn(self, parts)
        held = self._batcher.claims.values() if is_new and isinstance(self._batcher, Batcher) else ()
        for claim in [*held]:
            if claim._on_lost is not None:
                claim._on_lost()

    return instead(CancelledClaims, "learn", beside)


@bug("chunk-cancelled-for-one", "chunks-cancelled")
def _() -> Iterator[None]:
    """When a task of a chunk is cancelled, the function is cancelled for all of them."""

    def one_lost(self: chunks.Chunk) -> None:
        self.lost += 1
        self.scope.cancel()

    return instead(chunks.Chunk, "one_lost", one_lost)


@bug("snooze-counts", "operators")
def _() -> Iterator[None]:
    """A snoozed task has had an attempt."""

    def counted(row: Row, delay: int) -> Change:
        return Change(row.id, row.version, delay=delay, attempt=row.attempt + 1 - row.begun)

    return instead(outcomes, "snoozed", counted)


@bug("chunk-acknowledged-in-part", "chunks")
def _() -> Iterator[None]:
    """Only the first task of a chunk is acknowledged together with the changes that its function returned."""

    async def first(session: WorkSession, claims: Any, changes: Any) -> None:
        await _commit.ack_with(session, claims[:1], changes)
        for claim in claims[1:]:
            session.settled(claim)

    return instead(chunks, "ack_with", first)


@bug("chunk-begins-unreported", "chunks")
def _() -> Iterator[None]:
    """The store isn't told that the tasks of a chunk have begun."""
    return instead(Begun, "chunk", lambda self, chunk, claims, at: None)


@bug("chunk-goes-on-without-claims", "chunks-lossy", 7)
def _() -> Iterator[None]:
    """A chunk whose claims were all lost isn't cancelled."""
    return instead(chunks.Chunk, "one_lost", lambda self: None)


@bug("chunk-failures-forgotten", "chunks")
def _() -> Iterator[None]:
    """If a function raises, its chunk is acknowledged."""
    failed = outcomes.Outcomes.failed

    def done(self: Any, claim: Any, error: BaseException) -> None:
        if isinstance(error, RuntimeError) and claim.queue == "c":
            self._batcher.done(claim)
        else:
            failed(self, claim, error)

    return instead(outcomes.Outcomes, "failed", done)


def iter_dict(owner: dict[Any, Any], key: object, value: object) -> Iterator[None]:
    with mock.patch.dict(owner, {key: value}):
        yield
