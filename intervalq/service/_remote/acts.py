"""Which commands of clients change something for everybody, beside the work itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from intervalq._watch.task import many
from intervalq._wire.verbs import SwapSchedule
from intervalq.ledger import rules as ledgers
from intervalq.schedules.rules import BadRecord, NewerRecord, Record
from intervalq.service._actions import Act
from intervalq.service._remote import rights
from intervalq.service._remote.tasks import check
from intervalq.service._tasks_access import queues_of
from intervalq.tasks._schedule.record import QUEUE, row_id
from intervalq.tasks._spec.outcome import is_dead, living_queue
from intervalq.tasks.rules import Cancel, Cancelled, Change, Command, Delete, Depend, Modify
from intervalq.tasks.store import TaskStore

# --- tasks -------------------------------------------------------------------------------------------


async def queues_before(store: TaskStore, command: Command[Any]) -> dict[str, str]:
    """The queues of the tasks that a command changes without a claim.

    Raises:
        InvalidName, InvalidTask: a name or an id can't be used.
    """
    ids: tuple[str, ...] = ()
    if isinstance(command, Cancel):
        ids = command.ids
    elif isinstance(command, Modify) and (command.force or not command.session):
        ids = tuple(part.id for part in _changed(command))
    if ids:
        check(command)
    return await queues_of(store, ids)


def of_tasks(command: Command[Any], answer: object, queues: Mapping[str, str]) -> Iterator[Act]:
    """What a command on tasks did. `queues`: see `queues_before`."""
    counts = Counter[tuple[str, str, str]]()
    if isinstance(command, Cancel) and isinstance(answer, Cancelled):
        for id_ in {*answer.removed, *answer.stopping} & queues.keys():
            counts["cancel", queues[id_], ""] += 1
    elif isinstance(command, Modify):
        for part in _changed(command):
            queue = queues.get(part.id)
            if queue == QUEUE:
                name = part.id.removeprefix(row_id(""))
                yield Act(_of_schedule_row(part), "schedule", name, rights.schedule(name))
            elif queue is not None and isinstance(part, Change | Delete):
                counts[_of_part(part, queue)] += 1
    for (action, queue, to), count in counts.items():
        yield Act(action, "tasks of", f"{queue}{to}", queue, many(count))


def _changed(command: Modify) -> tuple[Change | Delete | Depend, ...]:
    """The parts that change tasks, and those that insert one by a schedule that is as it was read."""
    return *command.changes, *command.deletes, *(command.depends if command.inserts else ())


def _of_part(part: Change | Delete, queue: str) -> tuple[str, str, str]:
    """The action, the queue before, and where the task goes."""
    if isinstance(part, Delete):
        return "delete", queue, ""
    if part.queue in {None, queue}:
        return "change", queue, ""
    if is_dead(queue) and part.queue == living_queue(queue):
        return "retry", queue, ""
    return "move", queue, f" to {part.queue}"


def _of_schedule_row(part: Change | Delete | Depend) -> str:
    return "drop" if isinstance(part, Delete) else "change" if isinstance(part, Change) else "fire"


# --- ledgers and schedules ---------------------------------------------------------------------------


def of_ledger(name: str, command: ledgers.Command) -> Iterator[Act]:
    """What a command on a ledger does."""
    if isinstance(command, ledgers.Cancel):
        action = "cancel" if command.on else "uncancel"
    else:
        kinds = {ledgers.Expire: "expire", ledgers.Forget: "forget", ledgers.Drop: "drop"}
        action = kinds.get(type(command), "")
    if action:
        yield Act(action, "ledger", name, rights.ledger(name))


def of_swap(command: SwapSchedule) -> Iterator[Act]:
    """What the replacement of a schedule's record does, apart from its runs."""
    try:
        action = _of_records(command.known, command.text)
    except (BadRecord, NewerRecord):  # of a newer client, perhaps
        action = "change"
    if action:
        yield Act(action, "schedule", command.name, rights.schedule(command.name))


def _of_records(known: str | None, text: str | None) -> str:
    """What has changed between two texts of a record; empty: nothing but its runs."""
    if known is None or known == text:
        return ""
    if text is None:
        return "drop"
    before, after = Record.from_text(known), Record.from_text(text)
    if before.paused is not after.paused:
        return "pause" if after.paused else "resume"
    if after.is_asked and after.asked != before.asked:
        return "fire"
    return "change" if after.plan != before.plan else ""
