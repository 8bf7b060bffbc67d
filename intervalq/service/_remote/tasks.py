"""Commands on tasks for a client: allowed in each of their queues, by sessions of the caller's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from intervalq.errors import InvalidTask
from intervalq.rules import FOREVER
from intervalq.service._access import Anybody, Caller, Wanted, need
from intervalq.service._large import LARGE, Answers, away
from intervalq.service._refusal import Code, Refusal
from intervalq.service._remote import rights
from intervalq.service._tasks_access import check_modify, of_parts, queues_of
from intervalq.tasks._claim.values import queue_name, refuse_deep, refuse_doc, text
from intervalq.tasks._spec.commands import waiters_of
from intervalq.tasks.rules import (
    Acquire,
    Beat,
    Beaten,
    Begin,
    Cancel,
    Command,
    Count,
    End,
    Modified,
    Modify,
    OutcomeRow,
    Outcomes,
    QueueStats,
    Release,
    Row,
    Select,
    Session,
    Sessions,
    Work,
    Worked,
)
from intervalq.tasks.store import MAX_ROWS, TaskStore

_LOCKS: Final = waiters_of("")
MAX_SHOWN: Final = 10_000
"""The maximum number of tasks or outcomes in an answer, because it is one message."""


class RemoteTasks:
    """A store of tasks for one caller."""

    def __init__(self, store: TaskStore, caller: Caller) -> None:
        self._store, self._caller = store, caller
        self._own = caller.claimant("x").removesuffix("x")
        """The prefix of the caller's sessions in the store, so that nobody else can use them."""

    async def apply(self, command: Command[Any], now: int | None) -> Any:  # noqa: ANN401 - that of the command
        """Do a command, within the caller's rights.

        Raises:
            Refusal: it may not do a part of it; nothing was done.
            InvalidName, InvalidTask: a name or a value can't be used.
            DependencyError, InboxFull, StoreError: as for the store.
        """
        check(command)
        values = _values(command)
        await away(sum(map(len, values)) > LARGE, _refuse_deep, values)
        limit = command.limit if isinstance(command, Count) else None
        if not isinstance(self._caller, Anybody):
            command = await self._allowed(self._with_own(command))
        shown = await self._shown(await self._store.apply(command, now))
        return shown if limit is None else shown[:limit]

    async def listed(
        self, command: Select | Outcomes, now: int | None, answers: Answers
    ) -> tuple[Row | OutcomeRow, ...]:
        """Tasks or outcomes, those that the caller may read.

        Raises:
            Refusal: it may not look there, or the answer would be too large; and as for `apply`.
        """
        check(command)
        most = MAX_SHOWN + 1 if command.limit is None else min(command.limit, MAX_SHOWN + 1)
        asked: Select | Outcomes = command if command.ids else replace(command, limit=most)
        if not isinstance(self._caller, Anybody):
            asked = cast("Select | Outcomes", await self._allowed(self._with_own(asked)))
        found: Sequence[Row | OutcomeRow]
        if isinstance(asked, Select):
            found = await answers.list_of(self._store, asked, now)
        else:
            found = await answers.outcomes_of(self._store, asked, now)
        if len(found) > MAX_SHOWN and not command.ids:
            raise Refusal(
                Code.RESOURCE_EXHAUSTED, f"an answer has at most {MAX_SHOWN:,} tasks: give a lower limit"
            )
        return cast("tuple[Row | OutcomeRow, ...]", await self._shown(tuple(found)))

    async def listener(self, name: str) -> str:
        """The name of a listener for wake-ups in the store: a session, or the waiters for a lock.

        Raises:
            Refusal: the caller may not.
        """
        if name.startswith(_LOCKS):
            await need(self._caller, [("claim", rights.lock(name.removeprefix(_LOCKS)))])
            return name
        session = self._caller.claimant(name)
        await need(self._caller, [("claim", rights.session(session))], name)
        return session

    # --- what is asked -------------------------------------------------------------------------------

    def _with_own(self, command: Command[Any]) -> Command[Any]:
        """The command with the ids that the caller's sessions have in the store."""
        if isinstance(command, Begin):
            return Begin(command.session._replace(id=self._caller.claimant(command.session.id)))
        if isinstance(command, Modify | Work | Beat | End):
            return replace(command, session=self._caller.claimant(command.session))
        if isinstance(command, Select) and command.session is not None:
            return replace(command, session=self._caller.claimant(command.session))
        return command

    async def _allowed(self, command: Command[Any]) -> Command[Any]:
        """The command, if the caller may do all of it.

        Raises:
            Refusal: it may not.
        """
        caller, claimant = self._caller, ""
        wanted: set[Wanted] = set()
        if isinstance(command, Modify):
            claimant = command.session.removeprefix(self._own)
            if command.session:
                wanted.add(("claim", rights.session(command.session)))
            await check_modify(self._store, command, caller, claimant)
        elif command == Beat(""):  # it only ends the sessions whose time is over, as any other step does
            pass
        elif isinstance(command, Work | Begin | Beat | End):
            session = command.session.id if isinstance(command, Begin) else command.session
            claimant = session.removeprefix(self._own)
            wanted.add(("claim", rights.session(session)))
            if isinstance(command, Work):
                wanted |= await self._of_work(command)
        elif isinstance(command, Acquire | Release):
            wanted.add(("claim", rights.lock(command.name)))
        elif isinstance(command, Sessions):
            wanted.add(rights.SESSIONS)
        elif isinstance(command, Cancel):
            queues = await queues_of(self._store, command.ids)
            seen = await rights.readable(caller, queues.values())
            command = Cancel(tuple(id_ for id_ in command.ids if queues.get(id_) in seen))
            wanted = {("delete", queues[id_]) for id_ in command.ids}
        elif isinstance(command, Select | Outcomes) and command.queue is not None:
            wanted.add(("read", command.queue))
        elif isinstance(command, Count):
            return replace(command, limit=None)  # those that the caller may not read don't count
        await need(caller, wanted, claimant)
        return command

    async def _of_work(self, command: Work) -> set[Wanted]:
        wanted: set[Wanted] = {("claim", queue) for queue in command.queues}
        queues = await queues_of(self._store, [part.id for part in command.settled])
        wanted = wanted.union(*of_parts(command.settled, queues).values())
        for finished in command.finished:
            wanted.add(("delete", finished.range.queue))
            wanted |= {("insert", failed.insert.queue) for failed in finished.failed}
        return wanted

    # --- what is answered ----------------------------------------------------------------------------

    async def _shown(self, answer: Any) -> Any:  # noqa: ANN401 - that of the command
        """The answer, with what the caller may read, and with its own ids of sessions."""
        if isinstance(self._caller, Anybody):
            return answer
        if isinstance(answer, Worked):
            return self.worked(answer)
        if isinstance(answer, Modified):
            return replace(answer, inserted=self._rows(answer.inserted), changed=self._rows(answer.changed))
        if isinstance(answer, Beaten):
            return replace(answer, lapsed=tuple(map(self._its, answer.lapsed)))
        if not isinstance(answer, tuple) or any(isinstance(one, Session) for one in answer):
            return answer  # of sessions, the ids as the store has them: the caller is an administrator
        names = [one.name if isinstance(one, QueueStats) else one.queue for one in answer]
        seen = await rights.readable(self._caller, names)
        kept = tuple(one for one, name in zip(answer, names, strict=True) if name in seen)
        return self._rows(kept) if kept and isinstance(kept[0], Row) else kept

    def worked(self, answer: Worked) -> Worked:
        """What was claimed, with the caller's own ids of sessions."""
        return replace(answer, claimed=self._rows(answer.claimed))

    def _rows(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        own = self._own
        return tuple(
            row._replace(session=row.session.removeprefix(own)) if own and row.session else row
            for row in rows
        )

    def _its(self, session: str) -> str:
        return session.removeprefix(self._own)


def check(command: Command[Any]) -> None:
    """Refuse names that no task can have, and limits that no handle sends.

    Raises:
        InvalidName, InvalidTask: the command has one.
    """
    limit = command.limit if isinstance(command, Work | Select | Outcomes | Count) else None
    if limit is not None and not 0 <= limit <= (MAX_ROWS if isinstance(command, Work) else FOREVER):
        raise InvalidTask(f"limit={limit} can't be used: a step claims at most {MAX_ROWS:,} tasks")
    queues: list[str | None] = []
    ids: list[str] = []
    if isinstance(command, Modify):
        inserts = command.inserts
        ids = [one.id for one in inserts]
        ids += [one.id for one in command.changes]
        ids += [one.id for one in command.deletes]
        ids += [one.id for one in command.depends]
        if len({*ids}) < len(ids):
            raise InvalidTask("a change names one task twice: name each task once")
        queues = [*(one.queue for one in inserts), *(one.queue for one in command.changes)]
        for insert in inserts:
            text("id", insert.id)
            for what, value in (("key", insert.key), ("dedupe_key", insert.dedupe)):
                if value is not None:
                    text(what, value)
    elif isinstance(command, Work):
        changed = [getattr(part, "queue", None) for part in command.settled]
        failed = [one.insert for finished in command.finished for one in finished.failed]
        queues = [*command.queues, *changed, *(one.queue for one in failed)]
        ids = [one.id for one in failed]
    elif isinstance(command, Cancel):
        ids = [*command.ids]
    elif isinstance(command, Begin):
        text("session", command.session.id)
    for queue in {*queues} - {None}:
        queue_name(queue)
    for id_ in ids:  # nor do handles of tasks pass over the claims of docs
        refuse_doc(id_)


def _values(command: Command[Any]) -> list[str]:
    """The values that a command writes."""
    parts: list[Any] = []
    if isinstance(command, Modify):
        parts = [*command.inserts, *command.changes]
    elif isinstance(command, Work):
        parts = [*command.settled, *(one.insert for done in command.finished for one in done.failed)]
    return [value for part in parts if (value := getattr(part, "json", None)) is not None]


def _refuse_deep(values: list[str]) -> None:
    for value in values:
        refuse_deep(value)
