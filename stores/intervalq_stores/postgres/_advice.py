"""What `intervalq doctor` asks a PostgreSQL, and its part about tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from intervalq_stores.postgres._connection import Connection, Server

OLD: Final = 600.0
"""Seconds; a transaction that is open for longer is worth a warning."""

LOOK: Final = b"""
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


async def advice(connection: Connection, server: Server) -> list[tuple[str, str]]:
    """Pairs of a level ("ok", "warning" or "error") and a sentence."""
    found = await server.version(connection)
    row = await (await connection.execute(LOOK)).fetchone()
    if row is None:
        return []
    pid, release, number, replica, fsync, commit, oldest, *_ = row
    lines: list[tuple[str, str]] = []

    def check(fine: object, good: str, level: str, bad: str) -> None:
        lines.append(("ok", good) if fine else (level, bad))

    good = f"the server is PostgreSQL {release}"
    check(number >= 140_000, good, "error", f"{good}, but tasks need 14 or newer: upgrade it")
    bad = "the server is a replica, which accepts no tasks: give the URL of the primary"
    check(not replica, "the server is a primary", "error", bad)
    bad = "fsync is off: a crash of the server may destroy the tasks: set fsync = on"
    check(fsync != "off", "fsync is on", "warning", bad)
    bad = (
        "synchronous_commit is off: after a crash of the server, recently inserted tasks may be missing, and "
        "finished ones may run again: alter role ... set synchronous_commit = on"
    )
    check(commit != "off", f"synchronous_commit is {commit}", "warning", bad)
    bad = (
        f"a transaction has been open for {oldest:.0f} s: vacuum can't clean up behind it, and claims get "
        "slower: end it (pg_stat_activity and pg_prepared_xacts show it)"
    )
    check(oldest <= OLD, "no transaction is open for long, as far as this role may see", "warning", bad)
    good = f"{server.schema.what} version {found}" if found else "tables of tasks are created at first use"
    check(found in {None, server.schema.number}, good, "error", server.schema.other(found))
    bad = (
        "a connection pooler is in between: idle workers poll twice a second instead of being woken, and "
        "dead ones are noticed only by missing heartbeats: give the URL of the server itself"
    )
    check(pid == connection.info.backend_pid, "wake-ups arrive", "warning", bad)
    return lines
