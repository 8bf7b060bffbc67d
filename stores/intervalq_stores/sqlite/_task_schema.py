"""The tables of tasks in SQLite: their present layout, and the steps from older ones."""

from __future__ import annotations

from typing import Final

LAYOUT: Final = 7
"""The version of these tables. Any released change to them increments it and adds a step to `STEPS`."""

OLD_NUMBERS: Final = 1 << 32
"""Outcomes with numbers up to this one are of older layouts, whose numbers don't rise from day to day."""

_FOR_LOOKS: Final = (
    # Tasks that wait behind others, by time, and tasks that were claimed before. Few tasks are in these
    # indexes.
    "CREATE INDEX intervalq_tasks_waiting ON intervalq_tasks (queue, at, waiting) WHERE waiting",
    """CREATE INDEX intervalq_tasks_again ON intervalq_tasks (queue, claims)
    WHERE claims > 0 AND session IS NULL""",
)

_CLOCK: Final = (
    # About the latest reading of the clock.
    "CREATE TABLE intervalq_clock (last_now INTEGER NOT NULL)",
    "INSERT INTO intervalq_clock VALUES (0)",
)

_READY: Final = (
    "CREATE INDEX intervalq_tasks_ready ON intervalq_tasks (queue, priority, ready) WHERE ready IS NOT NULL"
)

_LOCKS: Final = (
    """CREATE TABLE intervalq_locks (
    name TEXT PRIMARY KEY NOT NULL, owner TEXT NOT NULL, fence INTEGER NOT NULL, until INTEGER NOT NULL,
    expiry INTEGER NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX intervalq_locks_until ON intervalq_locks (until)",
)

_OUTCOMES: Final = (
    # The days for which there is a table of outcomes. See `_task_outcomes`.
    "CREATE TABLE intervalq_outcome_days (day INTEGER PRIMARY KEY)",
)

_NUMBERED: Final = (
    # The number of the last outcome, of all days. Older layouts numbered those of each day from 1.
    "CREATE TABLE intervalq_outcome_number (last INTEGER NOT NULL)",
    f"INSERT INTO intervalq_outcome_number VALUES ({OLD_NUMBERS})",  # noqa: S608 - a constant
    # In which blocks of numbers a day has outcomes of a queue: an index of single outcomes would cost more.
    """CREATE TABLE intervalq_outcome_queues (
    day INTEGER, queue TEXT, block INTEGER, PRIMARY KEY (day, queue, block)) WITHOUT ROWID""",
)

SCHEMA: Final = (
    """CREATE TABLE intervalq_tasks (
    id TEXT PRIMARY KEY NOT NULL, version INTEGER NOT NULL, queue TEXT NOT NULL, at INTEGER NOT NULL,
    json TEXT NOT NULL, key TEXT, place INTEGER NOT NULL, waiting INTEGER NOT NULL, session TEXT,
    until INTEGER, claims INTEGER NOT NULL, attempt INTEGER NOT NULL, error TEXT NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, dedupe TEXT, dedupe_for INTEGER NOT NULL,
    ready INTEGER, begun INTEGER NOT NULL DEFAULT 0, alone INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0, progress TEXT NOT NULL DEFAULT '',
    priority INTEGER NOT NULL DEFAULT 0, keep_for INTEGER NOT NULL DEFAULT 0,
    errors TEXT NOT NULL DEFAULT '', per_key INTEGER NOT NULL DEFAULT 1,
    follow_up TEXT NOT NULL DEFAULT '', awaits INTEGER NOT NULL DEFAULT 0)""",
    # Each index costs throughput. A task is in one or two of them: it is ready, or claimed; and has a key.
    _READY,
    "CREATE INDEX intervalq_tasks_session ON intervalq_tasks (session) WHERE session IS NOT NULL",
    "CREATE INDEX intervalq_tasks_key ON intervalq_tasks (queue, key, place) WHERE key IS NOT NULL",
    *_FOR_LOOKS,
    """CREATE TABLE intervalq_sessions (
    id TEXT PRIMARY KEY NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, consumer TEXT NOT NULL,
    expiry INTEGER NOT NULL, started INTEGER NOT NULL, beaten INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE intervalq_marks (
    queue TEXT NOT NULL, key TEXT NOT NULL, id TEXT NOT NULL, until INTEGER, PRIMARY KEY (queue, key))""",
    "CREATE INDEX intervalq_marks_until ON intervalq_marks (until) WHERE until IS NOT NULL",
    *_CLOCK,
    *_LOCKS,
    *_OUTCOMES,
    *_NUMBERED,
    "CREATE TABLE intervalq_tasks_version (layout INTEGER NOT NULL)",
    f"INSERT INTO intervalq_tasks_version VALUES ({LAYOUT})",  # noqa: S608 - all of it is ours
)

SET_BACK: Final = (
    # Future times move with the clock, so they stay as far away as before.
    """UPDATE intervalq_tasks SET at = at - iif(at > :now, :by, 0), until = until - iif(until > :now, :by, 0),
    ready = ready - iif(ready > :now, :by, 0) WHERE at > :now OR until > :now""",
    "UPDATE intervalq_marks SET until = until - :by WHERE until > :now",
    "UPDATE intervalq_sessions SET beaten = min(beaten, :now)",
)

STEPS: Final[dict[int, tuple[str, ...]]] = {
    1: (
        "ALTER TABLE intervalq_tasks ADD COLUMN begun INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE intervalq_tasks ADD COLUMN alone INTEGER NOT NULL DEFAULT 0",
        "UPDATE intervalq_tasks SET begun = 1 WHERE session IS NOT NULL",  # a claim was an attempt
        *_FOR_LOOKS,
        "CREATE TABLE intervalq_clock (seen INTEGER NOT NULL)",
        "INSERT INTO intervalq_clock VALUES (0)",
    ),
    2: (
        "ALTER TABLE intervalq_tasks ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE intervalq_tasks ADD COLUMN progress TEXT NOT NULL DEFAULT ''",
        *_LOCKS,
    ),
    3: (
        "ALTER TABLE intervalq_tasks ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
        "DROP INDEX intervalq_tasks_ready",
        _READY,
    ),
    4: (
        "ALTER TABLE intervalq_tasks ADD COLUMN keep_for INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE intervalq_tasks ADD COLUMN errors TEXT NOT NULL DEFAULT ''",
        *_OUTCOMES,
    ),
    5: (
        "ALTER TABLE intervalq_tasks ADD COLUMN per_key INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE intervalq_tasks ADD COLUMN follow_up TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE intervalq_tasks ADD COLUMN awaits INTEGER NOT NULL DEFAULT 0",
    ),
    6: ("ALTER TABLE intervalq_clock RENAME COLUMN seen TO last_now", *_NUMBERED),
}
"""The statements that upgrade tables of each older layout to the next one."""
