"""`redis://`, `rediss://`, `unix://`, `redis+cluster://`, `rediss+cluster://`: records in a Redis or Valkey.

The server takes every step by itself, in one script: see `redis.lua`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.resources import files
from typing import Any, Final

from intervalq.errors import CorruptState, StoreError, Unauthorized
from intervalq.rules import Answer, Command, Settings, Slot, State
from intervalq_stores._redis_client import Client, Script

_RECORD: Final = re.compile(rb"intervalq:\{([A-Za-z0-9][A-Za-z0-9._:-]*)\}")
_OLDEST: Final = (6, 2)


class RedisStore:
    """Records in the hashes of a server. One connection, open while it is in use; wake-ups have their own."""

    def __init__(self, url: str) -> None:
        self._wire = Client(url, "a store in Redis or Valkey")
        self.url = self._wire.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        record = _key(queue)
        text = json.dumps(command.to_dict(), separators=(",", ":"))
        clock = "" if now is None else str(now)
        reply, trip = await self._wire.run(record, _script(), "1", record, text, clock)
        try:
            return _answer(reply, trip)
        except UnicodeDecodeError:
            raise CorruptState(
                self.url, "the record isn't one of intervalq: its 'generation' isn't text"
            ) from None

    async def names(self) -> list[str]:
        """See `Store.names`."""
        found: set[str] = set()
        for node in await self._wire.nodes():
            cursor = "0"
            while True:
                command = ("SCAN", cursor, "MATCH", _key("*"), "COUNT", "1000")
                at, keys = await self._wire.call(*command, node=node)
                found.update(match[1].decode() for match in map(_RECORD.fullmatch, keys) if match)
                cursor = at.decode()
                if cursor == "0":
                    break
        return sorted(found)

    def wakeups(self, queue: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`."""
        return self._wire.subscribed(f"{_key(queue)}:wake")

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._wire.close()

    async def advice(self) -> list[tuple[str, str]]:
        """What an operator should know of the servers: `ok`, `warning` or `error`, and a sentence, each."""
        found: list[tuple[str, str]] = []
        for node in await self._wire.nodes():
            name = "the server" if node is None else f"{node[0]}:{node[1]}"
            try:
                text = (await self._wire.call("INFO", node=node)).decode(errors="replace")
            except Unauthorized:
                found.append(
                    ("warning", f"nothing is known of {name}: this user may not use INFO; allow it to")
                )
                continue
            info = dict(re.findall(r"^(\w+):(.*?)\r?$", text, re.MULTILINE))
            try:
                _, snapshots = await self._wire.call("CONFIG", "GET", "save", node=node)
            except (StoreError, ValueError):  # forbidden or renamed, as services do
                snapshots = None
            found += [_version(name, info), _role(name, info), _eviction(name, info)]
            found.append(_persistence(name, info, snapshots))
        return found


def _key(queue: str) -> str:
    return f"intervalq:{{{queue}}}"  # what is in braces decides about the cluster's slot


@cache
def _script() -> Script:
    return Script(files("intervalq_stores").joinpath("redis.lua").read_text(encoding="utf-8"))


def _answer(reply: list[Any], trip: tuple[int, int] | None = None) -> Answer:
    """The answer that the script's integers and texts stand for; it says what they are."""
    now, refused, healed, woken, granted, missed, at_once, first, due, count, costs, begun, record = reply
    return Answer(
        state=_state(record) if record else None,
        now=now,
        refused=bool(refused),
        healed=bool(healed),
        granted=tuple(granted),
        missed=tuple(missed),
        at_once=bool(at_once),
        first=Slot(first, due, costs[0] if costs else 1) if first else None,
        count=count,
        costs=tuple(costs),
        begun=begun,
        woken=bool(woken),
        trip=trip,
    )


def _state(record: list[Any]) -> State:
    generation, held_since, running, *numbers = record
    interval, burst, max_running, tolerance, ephemeral, *numbers = numbers
    ticket, due, current, at, void, held, held_until, seen, late, error, error_until = numbers
    return State(
        generation=generation.decode(),
        settings=Settings(interval, burst, max_running, tolerance, bool(ephemeral)),
        ticket=ticket,
        due=due,
        current=current,
        current_due=at,
        revoked_through=void,
        held_total=held,
        late_total=late,
        held_since=None if held_since == b"" else held_since,
        held_until=held_until,
        last_now=seen,
        error=error,
        error_until=error_until,
        running=dict(zip(running[::2], running[1::2], strict=True)),
    )


def _version(name: str, info: dict[str, str]) -> tuple[str, str]:
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    what = f"{name} is {product} {version}"
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < _OLDEST:
        return "error", f"{what}: intervalq needs Redis 6.2 or newer, or any Valkey"
    return "ok", what


def _role(name: str, info: dict[str, str]) -> tuple[str, str]:
    if info.get("role") == "slave":
        return "error", f"{name} is a replica and takes no writes: use the URL of the primary"
    return "ok", f"{name} takes writes"


def _eviction(name: str, info: dict[str, str]) -> tuple[str, str]:
    policy = info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return "ok", f"{name} never removes records to make room"
    return "warning", (
        f"{name} has maxmemory-policy {policy} and may remove a queue's record to make room, after which the "
        "queue begins anew with one quiet interval: set maxmemory-policy noeviction"
    )


def _persistence(name: str, info: dict[str, str], snapshots: bytes | None) -> tuple[str, str]:
    remedy = "for queues that must outlive it, set appendonly yes"
    if info.get("aof_enabled") == "1":
        return "ok", f"{name} keeps an append-only file: at most about a second of writes is lost in a crash"
    if snapshots is None:
        return "warning", (
            f"{name} keeps no append-only file, and whether it takes snapshots isn't known because CONFIG is "
            f"forbidden: a crash loses the writes since the last snapshot, if any; {remedy}"
        )
    if not snapshots:
        return "warning", (
            f"{name} keeps nothing on disk: after its restart every queue begins anew, not paused, and with "
            f"the settings of the first shard; {remedy}"
        )
    return "warning", (
        f"{name} keeps snapshots only: a crash loses the writes since the last one, and queues go on from "
        f"the highest ticket that a live shard knows; {remedy}"
    )
