"""A database with a million tasks, and a connection that reports the plans of its statements."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from intervalq_stores.postgres._schema import statements

WAITING: Final = 1_000_000
DEAD: Final = 100_000
FILL: Final = """
    insert into intervalq.tasks (id, ready, at, created, modified, queue, json)
    select gen_random_uuid(), {at}, {at}, 0, 0, '{queue}', 'null' from generate_series(1, {number}) as n
"""
LINES: Final = 100_000
CLAIMED: Final = 200_000
LINE: Final = """
    insert into intervalq.tasks
        (id, ready, at, created, modified, queue, json, own, key, place, waiting, lane)
    select intervalq._id('k' || n), case n when 1 then 0 end, 0, 0, 0, 'line', 'null', 'k' || n, 'k', n,
        n > 1, case n when 1 then 0 end
    from generate_series(1, {number}) as n
"""
WORK: Final = """
    select kind, id, version, at from intervalq.work(
        's', %(ids)s::uuid[], %(versions)s::integer[], null, null, null, null, null, array[%(queue)s],
        %(limit)s, %(lease)s, null, false, array[%(since)s]::bigint[], array[%(since_id)s]::uuid[], 0, '{}',
        1000000000
    )
"""


@pytest.fixture(scope="module")
def server(postgres_url: str) -> Iterator[str]:
    name = f"intervalq_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        with psycopg.connect(url, autocommit=True) as inside:
            inside.execute(statements("tasks").encode())
            # Nothing cleans up during this test; one index is filled faster than it is built.
            inside.execute(b"alter table intervalq.tasks set (autovacuum_enabled = off)")
            inside.execute(b"set synchronous_commit = off")
            inside.execute(b"select intervalq.begin_session('s', '', 0, '', 1, 0)")
            inside.execute(FILL.format(at="n", queue="deep", number=WAITING // 2).encode())
            inside.execute(FILL.format(at="2000000000 + n", queue="deep", number=WAITING // 2).encode())
            inside.execute(FILL.format(at="n", queue="bloated", number=DEAD).encode())
            inside.execute(LINE.format(number=LINES).encode())
        yield url
        connection.execute(f"drop database {name} with (force)".encode())


class Watched:
    """A connection that reports the plans of the statements within functions."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.plans: list[dict[str, Any]] = []
        self.connection.add_notice_handler(self._hear)
        for setting in (
            *(
                "load 'auto_explain'",
                "set auto_explain.log_min_duration = 0",
                "set auto_explain.log_analyze = on",
            ),
            *("set auto_explain.log_buffers = on", "set auto_explain.log_nested_statements = on"),
            *("set auto_explain.log_format = json", "set client_min_messages = log"),
        ):
            self.connection.execute(setting.encode())

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        reported = notice.message_primary or ""
        if "plan:" in reported:
            self.plans.append(json.loads(reported.partition("plan:")[2]))

    def work(self, queue: str, limit: int = 0, **more: Any) -> list[tuple[Any, ...]]:
        """The claimed tasks, and the plans of this call only."""
        asked = {"ids": None, "versions": None, "since": None, "since_id": None, "lease": None, **more}
        self.plans.clear()
        rows = self.connection.execute(WORK.encode(), {**asked, "queue": queue, "limit": limit}).fetchall()
        return [row for row in rows if row[0] == "t"]

    def insert(self, key: str, inbox: int) -> list[tuple[Any, ...]]:
        """The answer of `modify` to an insert with a key, and the plans of this call only."""
        self.plans.clear()
        task = [str(uuid.uuid4()), None, "line", "1", key, None, 0, 0, "", False, None, 0, inbox, False, 0, 0]
        task += [None, None, None]
        empty: dict[str, list[object]] = {"changes": [], "deletes": [], "depends": []}
        command = json.dumps({"force": False, "inserts": [task], **empty})
        ask = b"select kind, place from intervalq.modify('', 0, %s)"
        return self.connection.execute(ask, [command]).fetchall()

    def buffers(self) -> int:
        """How many pages the last call has read."""
        return sum(
            node["Shared Hit Blocks"] + node["Shared Read Blocks"]
            for node in (plan["Plan"] for plan in self.plans)
            if node["Node Type"] != "Function Scan"  # the call itself, which counts its statements again
        )

    def rows(self) -> float:
        """How many rows the plans of the last call processed or discarded."""

        def of(node: dict[str, Any]) -> float:
            removed = sum(number for name, number in node.items() if name.startswith("Rows Removed"))
            own: float = (node["Actual Rows"] + removed) * node["Actual Loops"]
            return own + sum(map(of, node.get("Plans", [])))

        return sum(of(plan["Plan"]) for plan in self.plans)

    def scans(self) -> set[tuple[str, str]]:
        """How the tables were scanned."""
        found: set[tuple[str, str]] = set()

        def walk(node: dict[str, Any]) -> None:
            if node["Node Type"] in {
                "Seq Scan",
                "Tid Range Scan",
                "Index Scan",
                "Index Only Scan",
                "Tid Scan",
                "Bitmap Heap Scan",
            }:
                found.add((node.get("Relation Name", ""), node["Node Type"]))
            for inner in node.get("Plans", []):
                walk(inner)

        for plan in self.plans:
            walk(plan["Plan"])
        return found


@pytest.fixture
def watched(server: str) -> Iterator[Watched]:
    watched = Watched(server)
    yield watched
    watched.connection.close()
