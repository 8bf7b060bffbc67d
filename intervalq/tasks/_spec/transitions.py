"""Transitions of a single task: claimed, freed, given back, cancelled, changed."""

from __future__ import annotations

import hashlib

from intervalq.tasks._spec.commands import Change, Work
from intervalq.tasks._spec.outcome import errors_of, with_error
from intervalq.tasks._spec.row import SECOND, Row, Session


def claimed(row: Row, work: Work, now: int) -> Row:
    """A task after a claim: one more claim, and one more attempt if it begins at once."""
    begun = work.begins > row.alone
    return row._replace(
        version=row.version + 1,
        session=work.session,
        until=None if work.lease is None else now + work.lease,
        claims=row.claims + 1,
        attempt=row.attempt + begun,
        modified=now,
        begun=begun,
    )


def begun(row: Row) -> Row:
    """A claimed task after its session began with it: one more attempt, and the same version."""
    return row._replace(attempt=row.attempt + 1, begun=True)


def freed(row: Row, now: int, session: Session | None) -> Row:
    """A task whose session has expired. If it had begun, the attempt failed; else no attempt is counted.

    The task may have killed its session, even if its start was no longer reported to the store. So it runs
    alone from now on, and only one task is charged with the death of the next session.

    It rests for a time that depends on its id and grows each time. So a task that kills its worker is not the
    next worker's first, and the tasks that were lost together with it come back at other times.
    """
    who = f"{session.host}:{session.pid}" if session is not None else "a worker"
    error = f"{who} was lost"
    return row._replace(
        version=row.version + 1,
        session=None,
        until=None,
        at=now + rest(row),
        error=error if row.begun else row.error,
        modified=now,
        begun=False,
        alone=True,
        errors=(
            with_error(row.errors, error, row.attempt, now) if row.begun and row.keep_for else row.errors
        ),
    )


def rest(row: Row) -> int:
    """How long a lost task rests, in microseconds: up to 0.1 s, then up to 1, 3, 7 ... 60 s."""
    most = SECOND // 10 if row.attempt <= 1 else min(2 ** min(row.attempt - 1, 6) - 1, 60) * SECOND
    return most * int(hashlib.md5(row.id.encode(), usedforsecurity=False).hexdigest()[:4], 16) >> 16


def given_back(row: Row, now: int) -> Row:
    """A task whose session ended cleanly: as before the claim, except for the count of claims."""
    return row._replace(
        version=row.version + 1,
        session=None,
        until=None,
        attempt=max(0, row.attempt - row.begun),
        modified=now,
        begun=False,
    )


def cancelled(row: Row, now: int) -> Row:
    """A claimed task after it was cancelled: another version, so that nothing settles it as done any more."""
    return row._replace(version=row.version + 1, modified=now, cancelled=True)


def changed(row: Row, change: Change, now: int) -> Row:
    """A task with new values. A task that moves to another queue is not claimed there.

    An attempt that gets here has not killed its worker, so the next one needn't run alone.
    """
    at = row.at if change.at is None else change.at
    queue = row.queue if change.queue is None else change.queue
    keep = change.keep and queue == row.queue
    attempt = row.attempt if change.attempt is None else change.attempt
    keep_for, errors = row.keep_for, row.errors
    if change.kept is not None and not keep_for:
        keep_for, errors = change.kept.keep_for, errors_of(row)
    # Of attempts that killed their workers, the errors are there already.
    if keep_for and change.error and attempt > row.attempt - row.begun and row.session and not keep:
        errors = with_error(errors, change.error, attempt, now)
    return row._replace(
        version=row.version + 1,
        queue=queue,
        json=row.json if change.json is None else change.json,
        at=at if change.delay is None else now + change.delay,
        attempt=attempt,
        error=row.error if change.error is None else change.error,
        session=row.session if keep else None,
        until=now + change.lease if keep and change.lease is not None else None,
        modified=now,
        begun=row.begun and keep,
        alone=row.alone and (keep or not row.begun),
        cancelled=row.cancelled and keep,
        progress=row.progress if change.progress is None else change.progress,
        priority=row.priority if change.priority is None else change.priority,
        keep_for=keep_for,
        errors=errors,
    )
