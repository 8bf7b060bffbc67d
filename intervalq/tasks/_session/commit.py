"""Settles claims together with other changes: in one change of tasks, or in a user's transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from intervalq._timing.outage import LoopOutage
from intervalq.errors import (
    DependencyError,
    InvalidOption,
    StoreUnavailable,
    TransactionConflict,
    UnsupportedOperation,
    plain,
)
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._session.ports import OwnSession
from intervalq.tasks._spec.outcome import is_dead
from intervalq.tasks.rules import Beat, Change, Delete, Depend, Insert, Modify, Row, Select, Work
from intervalq.tasks.store import (
    MAX_ROWS,
    Isolation,
    Pulling,
    TaskStore,
    Transaction,
    Transactional,
    refuse_inserts,
)


async def ack_with(
    session: OwnSession, claims: Sequence[Claim], changes: Sequence[Insert | Change | Delete | Depend]
) -> None:
    """See `Claim.ack`; several claims are acknowledged together, all or none."""
    for claim in claims:
        refuse_plain(claim, "changes in the step of its acknowledgement")
        await session.renewed(claim)
    command = _settlement(claims, changes)
    refuse_inserts(session.store, command.inserts)
    for claim in claims:
        claim.open = False  # nobody else may settle it in the meantime
    try:
        await _until_known(session, claims, command)
    except BaseException:
        for claim in claims:
            claim.open = session.holds(claim)
        raise
    for claim in claims:
        session.batcher.forget(claim)
    if command.inserts or command.changes:
        session.batcher.ask_now()  # follow-up tasks may be for a worker of this process


def _settlement(claims: Sequence[Claim], changes: Sequence[Insert | Change | Delete | Depend]) -> Modify:
    """The changes, among them those of the claimed tasks; a task that isn't changed is deleted."""
    parts: list[Insert | Change | Delete | Depend] = [*changes]
    places = {part.id: place for place, part in enumerate(parts) if isinstance(part, Change | Delete)}
    for claim in claims:
        _check_open(claim)
        place = places.get(claim.id)
        if place is None:
            parts.append(claim._done())
        else:
            part = parts[place]
            assert isinstance(part, Change | Delete)
            parts[place] = _settling(part, claim)
    return modification(parts, _session_of(claims[0]))


def _checkpoint(part: Change, claim: Claim) -> Change:
    """The change of a claimed task that keeps the claim.

    Raises:
        InvalidOption: it is a plain task, or the change has `at` or `delay`.
    """
    refuse_plain(claim, "changes while it is worked on")
    if part.at is not None or part.delay is not None:
        raise InvalidOption(
            f"task {plain(claim.id)} is claimed by this handle, and at= or delay= would change when it may "
            "be claimed: give it back with claim.nak(delay), or return the change from the worker's function"
        )
    attempt = claim.attempt if part.attempt is None else part.attempt  # the store may not know it yet
    return replace(part, attempt=attempt, keep=True, lease=claim._lease)


async def checkpoints(
    parts: Sequence[Insert | Change | Delete | Depend], claims: Sequence[Claim], connection: object
) -> tuple[Insert | Change | Delete | Depend, ...]:
    """The parts, where changes of claims that stay in their queues keep these claims.

    Raises:
        InvalidOption: one can't keep it, or is to be made in a transaction of the user.
    """
    known = {claim.id: claim for claim in claims}
    changed = list(parts)
    for number, part in enumerate(parts):
        claim = known.get(part.id)
        if claim is None or not isinstance(part, Change) or part.queue not in {None, claim.queue}:
            continue
        if connection is not None:
            raise InvalidOption(
                f"task {plain(claim.id)} is claimed by this handle, and its change would depend on the end "
                "of the transaction: change it without connection=, or end it with claim.commit()"
            )
        version = claim.version
        await claim._session.renewed(claim)  # a renewal in flight makes another version
        kept = _checkpoint(part, claim)
        changed[number] = replace(kept, version=claim.version) if part.version == version else kept
    return tuple(changed)


def settled(
    parts: Sequence[Insert | Change | Delete | Depend], claims: Sequence[Claim], changed: Sequence[Row]
) -> None:
    """Update claims after these parts were done: some ended, and others have new rows."""
    kept = {part.id for part in parts if isinstance(part, Change) and part.keep}
    rows = {row.id: row for row in changed if row.id in kept}
    for claim in claims:
        if claim.id in rows:
            claim._session.changed(claim, rows[claim.id])
        else:
            claim._session.settled(claim)


def _settling(part: Change | Delete, claim: Claim) -> Change | Delete:
    """The user's change or deletion of a claimed task, at the version after its renewals."""
    if isinstance(part, Delete):
        return claim._done()
    moves = part.queue is not None and part.queue != claim.queue and not is_dead(part.queue)
    attempt = part.attempt
    if attempt is None:
        attempt = 0 if moves else claim.attempt  # the store may not know it yet
    return replace(
        part,
        version=claim.version,
        attempt=attempt,
        error="" if moves and part.error is None else part.error,
        progress="" if moves else part.progress,
        kept=claim._kept(),
    )


async def _until_known(session: OwnSession, claims: Sequence[Claim], command: Modify) -> None:
    """Send the command until there is an answer, for at most a minute."""
    outage = LoopOutage()
    was_sent = False
    while True:
        try:
            await session.store.apply(command)
        except DependencyError as error:
            named = {*error.changes, *error.deletes, *error.claims}
            lost = [claim for claim in claims if claim.id in named]
            if not lost:
                raise
            if was_sent and await _is_done(session, claims, command):
                return
            for claim in lost:
                session.gone(claim)
            raise lost[0]._lost() from error
        except (StoreUnavailable, TransactionConflict) as error:
            was_sent = was_sent or isinstance(error, StoreUnavailable)
            if outage.failed():
                raise
            for claim in claims:
                if not session.holds(claim):
                    raise claim._lost() from error
            await outage.pause()
        else:
            return


async def _is_done(session: OwnSession, claims: Sequence[Claim], command: Modify) -> bool:
    """Whether it was the call with the lost answer that settled the tasks, and nobody else.

    Then each task is gone; or, if it was to be changed, it is as changed, unless others changed it since.
    """
    if not all(claim._row.until is None and session.holds(claim) for claim in claims):
        return False
    rows = {row.id: row for row in await session.store.apply(Select(ids=tuple(c.id for c in claims)))}
    asked = {part.id: part for part in command.changes}
    if not all(_is_as_asked(claim, rows.get(claim.id), asked.get(claim.id)) for claim in claims):
        return False
    return (await session.store.apply(Beat(_session_of(claims[0])))).alive


def _is_as_asked(claim: Claim, row: Row | None, part: Change | None) -> bool:
    if row is None or part is None:
        return row is None
    changed = row.version == claim.version + 1
    return not changed or (part.queue in {None, row.queue} and part.json in {None, row.json})


def _session_of(claim: Claim) -> str:
    """The id of the session that made a claim; it may have expired."""
    return claim._row.session or ""


@asynccontextmanager
async def commit(session: OwnSession, claims: Sequence[Claim], isolation: Isolation) -> AsyncIterator[Any]:
    """See `Claim.commit`; several claims end together, all or none."""
    store = session.store
    if not isinstance(store, Transactional):
        raise UnsupportedOperation(
            store.url,
            "this store has no transactions for users: make writing the results idempotent, and then call "
            "claim.ack()",
        )
    for claim in claims:
        refuse_plain(claim, "a transaction of its own")
        await session.renewed(claim)
        _check_open(claim)
    is_settling = False
    try:
        async with store.transaction(isolation) as transaction:
            yield transaction.connection
            for claim in claims:
                _check_open(claim)
            is_settling = True
            for claim in claims:
                claim.open = False  # a heartbeat must not take it for lost during the commit
            await _remove(session, transaction, claims)
    except BaseException:
        if is_settling:
            for claim in claims:
                claim.open = session.holds(claim)
        raise
    for claim in claims:
        session.batcher.forget(claim)


def _check_open(claim: Claim) -> None:
    if not claim.open:
        raise claim._lost()


async def _remove(session: OwnSession, transaction: Transaction, claims: Sequence[Claim]) -> None:
    """Delete the tasks of claims in a transaction, which is rolled back if one of them is lost."""
    while claims:
        versions = [claim.version for claim in claims]
        ends = tuple(claim._done() for claim in claims)
        lost = {*(await transaction.apply(Work(_session_of(claims[0]), ends))).lost}
        tried, claims = zip(claims, versions, strict=True), [claim for claim in claims if claim.id in lost]
        for claim in claims:
            await session.renewed(claim)  # a renewal in flight may have been faster
        gone = [claim for claim, version in tried if claim.id in lost and claim.version == version]
        for claim in gone:
            session.gone(claim)
        if gone:
            raise gone[0]._lost()


def refuse_plain(claim: Claim, what: str) -> None:
    """Refuse what a plain task in a range can't have."""
    if claim._row.is_plain:
        raise InvalidOption(
            f"a plain task of queue {claim.queue!r} can't have {what}: insert such tasks with insert(), "
            "not put()"
        )


def refuse_report(claim: Claim, store: TaskStore) -> None:
    """Refuse a report on the work on a task where none can be kept."""
    refuse_plain(claim, "a report on the work on it")
    if isinstance(store, Pulling):
        raise UnsupportedOperation(
            store.url,
            "this store can't keep a report, because a task that keeps its claim can't be changed: omit "
            "progress=, note= and checkpoint=",
        )


def modification(parts: Sequence[Insert | Change | Delete | Depend], session: str) -> Modify:
    """Parts as one command.

    Raises:
        InvalidOption: the same task appears twice, or there are too many parts.
    """
    if len(parts) > MAX_ROWS:
        raise InvalidOption(f"{len(parts)} parts are too many for one change: {MAX_ROWS} are allowed")
    ids = [part.id for part in parts]
    inserts = tuple([part for part in parts if isinstance(part, Insert)])
    if len(set(ids)) < len(ids):
        twice = next(id_ for id_ in ids if ids.count(id_) > 1)
        raise InvalidOption(f"task {plain(twice)} is named twice in one change: combine both into one part")
    if len(inserts) == len(parts):
        return Modify(session, inserts)
    return Modify(
        session,
        inserts,
        tuple(part for part in parts if isinstance(part, Change)),
        tuple(part for part in parts if isinstance(part, Delete)),
        tuple(part for part in parts if isinstance(part, Depend)),
    )
