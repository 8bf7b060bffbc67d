"""Lists that the server gives page by page."""

from __future__ import annotations

from typing import Any, Final

from intervalq.errors import CorruptState
from intervalq_stores.nats._server import Server

MAX_LISTED: Final = 10_000_000
"""The maximum length of a list: a longer one is not true, and would fill the memory."""


async def subjects(server: Server, stream: str, pattern: str) -> dict[str, int]:
    """The number of messages of each subject of a stream that matches.

    Raises:
        CorruptState: the list has no end.
        Refused, StoreError: as for `Server.ask`.
    """
    found: dict[str, int] = {}
    while True:
        asked = {"subjects_filter": pattern, "offset": len(found)}
        page = await server.ask(f"STREAM.INFO.{stream}", asked)
        before = len(found)
        found |= page["state"].get("subjects") or {}
        if len(found) == before or len(found) >= page.get("total", 0):
            return found
        _bound(server, len(found))


async def consumers(server: Server, stream: str) -> list[Any]:
    """The server's info about all consumers of a stream.

    Raises:
        CorruptState: the list has no end.
        Refused, StoreError: as for `Server.ask`.
    """
    found: list[Any] = []
    while True:
        page = await server.ask(f"CONSUMER.LIST.{stream}", {"offset": len(found)})
        found += page.get("consumers") or []
        if len(found) >= page["total"] or not page.get("consumers"):
            return found
        _bound(server, len(found))


def _bound(server: Server, found: int) -> None:
    if found > MAX_LISTED:
        raise CorruptState(server.url, f"a list of the server has more than {MAX_LISTED:,} names, and no end")
