"""What a `Modify` must meet before it changes anything: versions, claims, free ids, room in inboxes."""

from __future__ import annotations

from typing import cast

from intervalq.errors import DependencyError, InboxFull
from intervalq.tasks._spec.commands import Change, Delete, Depend, Insert, Modify
from intervalq.tasks._spec.row import Row
from intervalq.tasks._spec.table import Table


def new_inserts(
    table: Table, command: Modify, known: dict[str, Row], now: int
) -> tuple[list[Insert], list[tuple[str, str]]]:
    """The inserts to make; and, for those that are left out, the existing tasks."""
    inserts: list[Insert] = []
    existing: list[tuple[str, str]] = []
    taken: dict[tuple[str, str], str] = {}
    for insert in command.inserts:
        if insert.skip and insert.id in known:
            existing.append((insert.id, insert.id))
            continue
        if insert.dedupe is not None:
            name = (insert.queue, insert.dedupe)
            mark = table.mark(*name)
            first = taken.get(name)
            if first is None and mark is not None and (mark.until is None or mark.until > now):
                first = mark.id
            if first is not None:
                existing.append((insert.id, first))
                continue
            taken[name] = insert.id
        inserts.append(insert)
    return inserts, existing


def named(command: Modify) -> list[Change | Delete | Depend]:
    return [*command.changes, *command.deletes, *command.depends]


def check(command: Modify, known: dict[str, Row], collisions: list[str], now: int) -> None:
    """Check that all tasks exist at their versions and are not claimed by others."""
    missing: dict[type, list[str]] = {Change: [], Delete: [], Depend: []}
    claims: list[str] = []
    for part in named(command):
        row = known.get(part.id)
        if row is None or (row.version != part.version and not command.force):
            missing[type(part)].append(part.id)
        elif isinstance(part, Depend) or command.force:
            continue
        elif (row.is_held(now) and row.session != command.session) or (
            isinstance(part, Change)
            and part.keep
            and not (row.is_held(now) and row.session == command.session)
        ):
            claims.append(part.id)
    if collisions or claims or any(missing.values()):
        raise DependencyError(
            inserts=tuple(collisions),
            changes=tuple(missing[Change]),
            deletes=tuple(missing[Delete]),
            depends=tuple(missing[Depend]),
            claims=tuple(claims),
        )


def check_inboxes(
    table: Table, command: Modify, inserts: list[Insert], known: dict[str, Row], now: int
) -> None:
    """Check that no inbox exceeds its limit; tasks that this command removes make room."""
    sizes = _sizes(table, command, inserts)
    if not sizes:
        return
    gone = {delete.id for delete in command.deletes}

    def moved(queue: str, row: Row, by: int) -> None:
        if row.key is not None and (queue, row.key) in sizes:
            sizes[queue, row.key] += by

    for delete in command.deletes:
        moved(known[delete.id].queue, known[delete.id], -1)
    for change in command.changes:
        row = known[change.id]
        if change.queue is not None and change.queue != row.queue:
            moved(row.queue, row, -1)
            moved(change.queue, row, 1)
            gone.add(change.id)
    for insert in inserts:
        line = insert.queue, cast("str", insert.key)
        if line not in sizes:
            continue
        if insert.replace:
            # Only the first tasks of a key can be claimed, and all others are replaced.
            ends = table.ends_of_key(*line)
            first = [] if ends is None else [ends[0]] if ends[1].per_key == 1 else table.of_key(*line)
            sizes[line] = sum(row.is_held(now) and row.id not in gone for row in first)
        # Those that may be claimed don't count as waiting.
        elif insert.inbox is not None and sizes[line] - insert.per_key >= insert.inbox:
            raise InboxFull(insert.queue, line[1], insert.inbox)
        sizes[line] += 1


def _sizes(table: Table, command: Modify, inserts: list[Insert]) -> dict[tuple[str, str], int]:
    """The number of tasks of each key whose inbox has a limit."""
    limits: dict[tuple[str, str], list[int]] = {}
    for insert in inserts:
        if insert.key is not None and insert.inbox is not None:
            limits.setdefault((insert.queue, insert.key), []).append(insert.inbox + insert.per_key - 1)
    parts = len(inserts) + len(command.changes) + len(command.deletes)
    return {
        line: _size(table, *line, min(inboxes) - parts, max(inboxes) + parts + 1)
        for line, inboxes in limits.items()
    }


def _size(table: Table, queue: str, key: str, few: int, most: int) -> int:
    """The number of tasks of a key. If it is at most `few`, gaps may count, because they can't matter."""
    ends = table.ends_of_key(queue, key)
    span = ends[1].place - ends[0].place + 1 if ends is not None else 0
    return span if span <= few else table.count_of_key(queue, key, most)
