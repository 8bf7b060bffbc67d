"""The raw bytes that a store keeps, read from its server or file without intervalq's code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from servers import Server, redis_client


def of_file(url: str) -> bytes:
    """The state file and the files beside it: SQLite's log, the ledgers of the JSON file."""
    return _files(Path(unquote(urlsplit(url).path)).parent)


def of_redis(url: str) -> bytes:
    """All keys and their values."""
    with redis_client(url) as client:
        reads: dict[str, Callable[[str], Any]] = {
            "hash": client.hgetall,
            "zset": lambda key: client.zrange(key, 0, -1),
            "list": lambda key: client.lrange(key, 0, -1),
            "set": client.smembers,
            "string": client.get,
            "stream": client.xrange,
        }
        kinds = ((key, _text(client.type(key))) for key in client.scan_iter(count=1000))
        # A key that expires after the server has listed it has the type "none".
        found = [(key, reads[kind](key)) for key, kind in kinds if kind != "none"]
    return b"\n".join(_flat(found))


def of_postgres(url: str) -> bytes:
    """All rows of all tables of the database."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "select format('%I.%I', schemaname, tablename) from pg_tables"
            " where schemaname not in ('pg_catalog', 'information_schema')"
        ).fetchall()
        rows = [connection.execute(f"select t::text from {name} t".encode()).fetchall() for (name,) in tables]
    return "\n".join(text for table in rows for (text,) in table).encode()


def of_server(server: Server) -> bytes:
    """All files in the folder of a server; for NATS, which writes each message unchanged."""
    return _files(server.folder.path)


def _files(folder: Path) -> bytes:
    while True:
        try:
            return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
        except FileNotFoundError:  # SQLite has just moved its log into the database
            continue


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _flat(value: object) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    if isinstance(value, dict):
        return _flat([*value.items()])
    if isinstance(value, list | tuple | set):
        return [part for one in value for part in _flat(one)]
    return [str(value).encode()]
