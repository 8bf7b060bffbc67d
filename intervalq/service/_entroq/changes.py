"""A change of tasks and docs that a client asks for, as one command of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Final

from intervalq.errors import DependencyError
from intervalq.service._entroq import docs
from intervalq.service._entroq import entroq_pb2 as pb
from intervalq.service._entroq.claimants import LONGEST, session_of
from intervalq.service._entroq.claims import shown
from intervalq.service._entroq.model import at_of, detail, span_of
from intervalq.service._entroq.namespaces import Namespaces
from intervalq.service._entroq.values import Budget, Values, fitting
from intervalq.service._refusal import Code, Refusal
from intervalq.tasks._claim.values import error_text, insert, queue_name, task_id
from intervalq.tasks.rules import Change, Delete, Depend, Insert, Modified, Modify, Row, Select
from intervalq.tasks.store import MAX_ROWS, TaskStore

_MAX_ATTEMPT: Final = 1_000_000_000
_TOLD: Final = 300
"""The maximum number of characters in the text of an error, whose details name the tasks."""


class Changes:
    """Changes in a store."""

    def __init__(self, store: TaskStore, namespaces: Namespaces, clock: Callable[[], int]) -> None:
        self._store, self._namespaces, self._clock = store, namespaces, clock

    def command(self, request: pb.ModifyRequest, claimant: str) -> Modify:
        """What a request asks of the store.

        Raises:
            Refusal, InvalidName, InvalidTask: it can't be asked.
        """
        given: tuple[Sized, ...] = (
            *(request.inserts, request.changes, request.deletes, request.depends),
            *(request.doc_inserts, request.doc_changes, request.doc_deletes, request.doc_depends),
        )
        if (count := sum(len(part) for part in given)) > MAX_ROWS:
            raise Refusal(Code.INVALID_ARGUMENT, f"a change has at most {MAX_ROWS} parts, not {count}")
        values = Values()
        inserts = [_insert(one, values) for one in request.inserts]
        inserts += [docs.insert_of(one, values) for one in request.doc_inserts]
        changes = [self._change(one, values) for one in request.changes]
        changes += [
            docs.change_of(one, self._ahead(one.new_data), claimant, values) for one in request.doc_changes
        ]
        deletes = [Delete(task_id(one.id), one.version) for one in request.deletes]
        deletes += map(docs.delete_of, request.doc_deletes)
        depends = [Depend(task_id(one.id), one.version) for one in request.depends]
        depends += map(docs.depend_of, request.doc_depends)
        named: Sequence[Sequence[Insert | Change | Delete | Depend]] = (inserts, changes, deletes, depends)
        if count > 1 and len({one.id for part in named for one in part}) < count:
            raise Refusal(Code.INVALID_ARGUMENT, "a change names one task or doc twice: name each once")
        return Modify(
            session=session_of(claimant),
            inserts=tuple(inserts),
            changes=tuple(changes),
            deletes=tuple(deletes),
            depends=tuple(depends),
        )

    async def apply(self, command: Modify, claimant: str) -> Modified:
        """Do a change. Renewals of tasks that the caller hasn't claimed only set the time, as in EntroQ."""
        try:
            return await self._namespaces.modify(command, claimant)
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
            return await self._namespaces.modify(replace(command, changes=changes), claimant)

    def _change(self, change: pb.TaskChange, values: Values) -> Change:
        """A change of all fields, as EntroQ has it. Until a time ahead the caller keeps its claim."""
        old, new = change.old_id, change.new_data
        ahead = self._ahead(new)
        if change.mode == pb.CHANGE_LEASE:
            timed = Change(task_id(old.id), old.version)
        else:
            timed = Change(
                task_id(old.id),
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

    def _ahead(self, data: pb.TaskData | pb.DocData) -> int | None:
        """How far ahead a time lies, in microseconds; None: it is now, or past."""
        ahead = span_of(data.by_ms) if data.by_ms else (at_of(data.at_ms) or 0) - self._clock()
        return ahead if ahead > 0 else None


def _insert(data: pb.TaskData, values: Values) -> Insert:
    return insert(data.queue, None, id=data.id or None)._replace(
        json=values.json_of(data.value),
        at=None if data.by_ms else at_of(data.at_ms),
        delay=max(0, span_of(data.by_ms)),
        attempt=_attempt(data.attempt),
        error=error_text(data.err),
    )


def _attempt(value: int) -> int:
    if not 0 <= value <= _MAX_ATTEMPT:
        raise Refusal(Code.INVALID_ARGUMENT, f"attempt={value} is out of range: give 0 to {_MAX_ATTEMPT:,}")
    return value


# --- what is answered --------------------------------------------------------------------------------


def done(modified: Modified, claimant: str) -> pb.ModifyResponse:
    """The answer to a change. Tasks and docs have no values there once these are too many together."""
    inserted, inserted_docs = _parted(modified.inserted)
    changed, changed_docs = _parted(modified.changed)
    budget = Budget()
    return pb.ModifyResponse(
        inserted=[fitting(partial(shown, row, budget, inserter=claimant)) for row in inserted],
        changed=[fitting(partial(shown, row, budget)) for row in changed],
        inserted_docs=[fitting(partial(docs.doc_of, row, budget)) for row in inserted_docs],
        changed_docs=[fitting(partial(docs.doc_of, row, budget)) for row in changed_docs],
    )


def dependency(error: DependencyError, request: pb.ModifyRequest | None = None) -> Refusal:
    """What can't be done of a request, with a detail for each task or doc."""
    request = pb.ModifyRequest() if request is None else request
    asked = {one.id: one for one in (*request.deletes, *request.depends)}
    asked |= {change.old_id.id: change.old_id for change in request.changes}
    new = {one.id: pb.TaskID(id=one.id, queue=one.queue) for one in request.inserts}
    old_docs = [*request.doc_deletes, *request.doc_depends, *(one.old_id for one in request.doc_changes)]
    versions = {docs.row_id(one.namespace, one.id): one.version for one in old_docs}
    details = [pb.ModifyDep(type=pb.DETAIL, msg=f"{error}"[:_TOLD])]
    for kind, ids in (
        (pb.INSERT, error.inserts),
        (pb.CHANGE, error.changes),
        (pb.DELETE, error.deletes),
        (pb.DEPEND, error.depends),
        (pb.CLAIM, error.claims),
    ):
        details += detail(
            kind, [one for one in ids if not docs.is_doc(one)], new if kind == pb.INSERT else asked
        )
        details += docs.details_of(kind, filter(docs.is_doc, ids), versions)
    return Refusal(Code.NOT_FOUND, str(error), details)


def _parted(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Tasks, and docs."""
    known = [*rows]
    return [row for row in known if not docs.is_doc(row.queue)], [
        row for row in known if docs.is_doc(row.queue)
    ]
