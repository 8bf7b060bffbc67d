"""What `intervalq doctor` asks a PostgreSQL, and what the answers mean for queues or for tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from intervalq_stores.postgres._tls import rights

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection, Server

OLD: Final = 600.0
"""Seconds; a transaction that is open for longer is worth a warning."""

_LOOK: Final = b"""
    select pg_backend_pid(), current_setting('server_version'),
        current_setting('server_version_num')::integer, pg_is_in_recovery(), current_setting('fsync'),
        current_setting('synchronous_commit'), coalesce((
            select extract(epoch from clock_timestamp() - min(since))::float8 from (
                select xact_start from pg_stat_activity
                where pid <> pg_backend_pid() and (backend_xmin is not null or backend_xid is not null)
                union all select prepared from pg_prepared_xacts
            ) as open (since)
        ), 0), current_setting('default_transaction_isolation'), current_user::text,
        (select rolsuper from pg_roles where rolname = current_user)
"""
"""The settings that matter, the seconds for which the oldest transaction has been open, and the role."""


class Consequences(NamedTuple):
    """Parts of sentences: what the state of the server means for a store."""

    too_old: tuple[str, str]
    """The level, and the end of the sentence."""
    refused: str
    """What a replica doesn't accept."""
    destroyed: str
    """What a crash may destroy without fsync."""
    lost: str
    """What a crash loses without synchronous_commit."""
    slower: str
    """What gets slower while a transaction is open for long."""
    created: str
    """What is created at first use."""
    pooled: str
    """What a connection pooler in between means."""


QUEUES: Final = Consequences(
    ("warning", "but this store is for 14 and newer"),
    "steps",
    "records",
    "a crash of the server loses the last steps, and jobs may then begin too early",
    "steps",
    "schema intervalq is",
    "so wake-ups don't arrive, and shards see the end of a pause only when they poll",
)
TASKS: Final = Consequences(
    ("error", "but tasks need 14 or newer"),
    "tasks",
    "tasks",
    "after a crash of the server, recently inserted tasks may be missing, and finished ones may run again",
    "claims",
    "tables of tasks are",
    "so idle workers poll twice a second instead of being woken, and dead ones are noticed only by missing "
    "heartbeats",
)


async def advice(connection: Connection, server: Server, means: Consequences) -> list[tuple[str, str]]:
    """Pairs of a level ("ok", "warning" or "error") and a sentence."""
    found = await server.version(connection)
    row = await (await connection.execute(_LOOK)).fetchone()
    if row is None:
        return []
    pid, release, number, replica, fsync, commit, oldest, isolation, role, superuser = row
    lines = [rights(role, superuser=superuser)] if means is QUEUES else []

    def check(fine: object, good: str, level: str, bad: str) -> None:
        lines.append(("ok", good) if fine else (level, bad))

    good = f"the server is PostgreSQL {release}"
    level, bad = means.too_old
    check(number >= 140_000, good, level, f"{good}, {bad}: upgrade it")
    bad = f"the server is a replica, which accepts no {means.refused}: give the URL of the primary"
    check(not replica, "the server is a primary", "error", bad)
    bad = f"fsync is off: a crash of the server may destroy the {means.destroyed}: set fsync = on"
    check(fsync != "off", "fsync is on", "warning", bad)
    bad = f"synchronous_commit is off: {means.lost}: alter role ... set synchronous_commit = on"
    check(commit != "off", f"synchronous_commit is {commit}", "warning", bad)
    if means is QUEUES:
        good = f"transactions are {isolation}"
        bad = (
            f"{good}: steps at the same moment fail and are repeated: alter role ... set "
            "default_transaction_isolation = 'read committed'"
        )
        check(isolation == "read committed", good, "warning", bad)
    bad = (
        f"a transaction has been open for {oldest:.0f} s: vacuum can't clean up behind it, and "
        f"{means.slower} get slower: end it (pg_stat_activity and pg_prepared_xacts show it)"
    )
    check(oldest <= OLD, "no transaction is open for long, as far as this role may see", "warning", bad)
    good = f"{server.schema.what} version {found}" if found else f"{means.created} created at first use"
    check(found in {None, server.schema.number}, good, "error", server.schema.other(found))
    # A pooler invents the process numbers that its clients get.
    bad = f"a connection pooler is in between, {means.pooled}: give the URL of the server itself"
    check(pid == connection.info.backend_pid, "wake-ups arrive", "warning", bad)
    return lines
