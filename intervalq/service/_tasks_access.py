"""What a change of tasks needs: by the queues that the store has them in, whatever the client says."""

from __future__ import annotations

from collections.abc import Sequence

from intervalq.errors import DependencyError
from intervalq.service._access import Anybody, Caller, Wanted, need
from intervalq.tasks.rules import Change, Delete, Modify, Select
from intervalq.tasks.store import TaskStore


async def check_modify(store: TaskStore, command: Modify, caller: Caller, claimant: str) -> None:
    """Check what a change does in which queue.

    A task that moves meanwhile has another version, so that the change is refused then. A task in a queue
    where the caller may do nothing is missing, for all that it can tell.

    Raises:
        Refusal: the caller may not do a part of it.
        DependencyError: a task is missing.
    """
    wanted = {("insert", insert.queue) for insert in command.inserts}
    if isinstance(caller, Anybody):
        return
    ids = [one.id for one in command.changes]
    ids += [one.id for one in command.deletes]
    ids += [one.id for one in command.depends]
    queues = await queues_of(store, ids)
    reads = {("read", queue) for queue in queues.values()}
    hidden = {queue for _, queue in await caller.denied(reads, claimant)}
    parts = of_parts((*command.changes, *command.deletes), queues)
    for depend in command.depends:
        parts[depend.id] = {("read", queues[depend.id])} if depend.id in queues else set()
    if command.force:
        for id_ in parts.keys() & queues.keys():
            parts[id_].add(("administer", queues[id_]))
    denied = await caller.denied(wanted.union(*parts.values()), claimant)
    unseen = {
        id_ for id_, needs in parts.items() if id_ not in queues or (queues[id_] in hidden and needs & denied)
    }
    await need(caller, wanted.union(*(needs for id_, needs in parts.items() if id_ not in unseen)), claimant)
    if unseen:
        raise DependencyError(
            changes=tuple(one.id for one in command.changes if one.id in unseen),
            deletes=tuple(one.id for one in command.deletes if one.id in unseen),
            depends=tuple(one.id for one in command.depends if one.id in unseen),
        )


async def queues_of(store: TaskStore, ids: Sequence[str]) -> dict[str, str]:
    """The queues of those of these tasks that exist."""
    if not ids:
        return {}
    return {row.id: row.queue for row in await store.apply(Select(ids=tuple(ids), values=False))}


def of_parts(parts: Sequence[Delete | Change], queues: dict[str, str]) -> dict[str, set[Wanted]]:
    """What deletes and changes of tasks in these queues need; nothing for tasks that don't exist."""
    found: dict[str, set[Wanted]] = {}
    for part in parts:
        if part.id not in queues:
            found[part.id] = set()
        elif isinstance(part, Delete):
            found[part.id] = {("delete", queues[part.id])}
        else:
            found[part.id] = _of_change(part, queues[part.id])
    return found


def _of_change(change: Change, queue: str) -> set[Wanted]:
    if change.queue in (None, queue):
        return {("change", queue)}
    return {("delete", queue), ("insert", change.queue or "")}
