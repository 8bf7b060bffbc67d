"""Reads very many tasks page by page: statements for PostgreSQL, and cursors."""

from __future__ import annotations

from typing import Final

from intervalq.tasks.rules import Row, sound
from intervalq_stores.postgres._pool import Lines
from intervalq_stores.postgres._task.statements import Asked

_PLAIN_ONES: Final = "plain"
_FIRST_UUID: Final = "00000000-0000-0000-0000-000000000000"
_PAGE: Final = (
    b"select t.id, coalesce(t.own, t.id::text), t.version, t.queue, t.at, t.json, t.key, t.place, t.waiting,"
    b" s.id, t.until, t.claims, t.attempt, t.error, t.created, t.modified, t.dedupe, t.dedupe_for,"
    b" t.begun, t.alone, t.cancelled, t.progress, t.priority, t.keep_for, t.errors,"
    b" coalesce(t.per_key, 1), coalesce(t.follow_up, ''), coalesce(t.awaits, 0)"
    b" from intervalq.tasks t left join intervalq.sessions s on s.number = t.session"
    b" where (%s::uuid is null or t.id > %s) and (%s::text is null or t.queue = %s)"
    b" order by t.id limit %s"
)
_PAGE_PLAIN: Final = (
    b"select p.queue, p.part, p.number, t.* from (select x.*, x.xmin as inserted from intervalq.plain x"
    b" where (x.queue, x.part, x.number) > (%s, %s, %s) and (%s::text is null or x.queue = %s)"
    b" order by x.queue, x.part, x.number limit %s) as p, lateral intervalq._line('t', intervalq._plain_task("
    b"row(p.queue, p.part, p.number, p.json)::intervalq.plain, p.inserted)) as t"
)


def page(queue: str | None, cursor: str, limit: int) -> Asked:
    """The statement for the next tasks of a queue (None: of all queues) and the cursor after them.

    Plain tasks come first, by queue, part and number, with which their cursors begin; then the others, by
    UUID.
    """
    if cursor and not cursor.startswith(_PLAIN_ONES):
        values: tuple[object, ...] = (cursor, cursor, queue, queue, limit)
        return Asked(_PAGE, values, lambda lines: _paged(lines, 1, limit, ""))
    name, part, number = (
        cursor.removeprefix(f"{_PLAIN_ONES} ").rsplit(" ", 2) if cursor else (queue or "", -1, -1)
    )
    values = (name, int(part), int(number), queue, queue, limit)
    return Asked(_PAGE_PLAIN, values, lambda lines: _paged(lines, 3, limit, _FIRST_UUID))


def _paged(lines: Lines, places: int, limit: int, otherwise: str) -> tuple[list[Row], str]:
    # After the columns of its place, a plain task's line has its kind.
    rows = [sound(Row(*line[places + (places > 1) :])) for line in lines]
    if len(lines) < limit:
        return rows, otherwise
    return rows, " ".join(map(str, ([_PLAIN_ONES] if places > 1 else []) + [*lines[-1][:places]]))
