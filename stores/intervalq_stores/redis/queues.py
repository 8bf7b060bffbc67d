"""`redis://`, `rediss://`, `unix://`, `redis+cluster://`, `rediss+cluster://`: records in a Redis or Valkey.

The server itself does every step, in one script (queues_*.lua, queues.lua): see `queues_record.lua`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from intervalq.errors import CorruptState, StoreError, Unauthorized
from intervalq.keyed import Common, KeyedAnswer, Place, has_own_pace, shown
from intervalq.rules import LAYOUT, Answer, BadRecord, Command, Inspect, NewerRecord, Slot, State
from intervalq.store import StoredSchedules, Swapped
from intervalq_stores.redis._client import Client
from intervalq_stores.redis._scripts import script

if TYPE_CHECKING:
    from intervalq_stores.redis._ports import Address

_RECORD: Final = re.compile(
    rb"intervalq:\{([A-Za-z0-9][A-Za-z0-9._:-]*)\}(?::\{([A-Za-z0-9-][A-Za-z0-9._-]*)\})?"
)
_OLDEST: Final = (6, 2)
_SCRIPT: Final = (
    "queues_record.lua",
    "queues_auto.lua",
    "queues_limits.lua",
    "queues.lua",
    "queues_step.lua",
)
"""The parts that all scripts have; one that calls them follows."""

_SCHEDULES: Final = "intervalq:schedules"


class RedisStore:
    """Records in the hashes of a server. One connection, open while it is in use; wake-ups have their own."""

    def __init__(self, url: str) -> None:
        self._server = Client(url, "a store in Redis or Valkey")
        self.url = self._server.url
        self._is_cluster = url.partition("://")[0].lower().endswith("+cluster")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        is_key = self._is_cluster and ":" in queue
        beside = _beside(*queue.split(":", 1)) if is_key else ""  # its record, if it is under one rate
        if is_key and command.attach and command.settings is not None:
            found = await self._apply(beside, queue, Inspect(), now)
            if found.state is not None and has_own_pace(found.state) is not None:
                return await self._apply(beside, queue, command, now)
        answer = await self._apply(_key(queue), queue, command, now)
        if is_key and answer.state is None and command.settings is None:  # it created nothing
            answer = await self._apply(beside, queue, command, now)
        return answer

    async def _apply(self, record: str, queue: str, command: Command, now: int | None) -> Answer:
        """Apply a command to the record of this key."""
        text = json.dumps(command.to_dict(), separators=(",", ":"))
        clock = "" if now is None else str(now)
        reply, trip = await self._server.run(
            record, script(*_SCRIPT, "queues_main.lua"), "1", record, text, clock
        )
        try:
            return replace(_answer(reply), trip=trip)
        except (BadRecord, NewerRecord) as error:
            raise CorruptState(
                self.url,
                f"the record of queue {queue!r} was not written by intervalq, and is left as it is: {error}",
            ) from error

    async def apply_keyed(
        self, queue: str, command: Command, known: Common, now: int | None = None
    ) -> KeyedAnswer:
        """See `Pairing.apply_keyed`."""
        record, common = _key(queue), _key(known.record)
        if self._is_cluster:
            record = _beside(known.record, queue.removeprefix(f"{known.record}:"))
        texts = [json.dumps(each.to_dict(), separators=(",", ":")) for each in (command, known)]
        clock = "" if now is None else str(now)
        reply, trip = await self._server.run(
            record, script(*_SCRIPT, "queues_keyed.lua"), "2", record, common, texts[0], clock, texts[1]
        )
        try:
            own, state, places = reply
            answer = replace(_answer(own), trip=trip)
            after = State.from_dict(_record(state)) if state else None
            return KeyedAnswer(shown(answer, after), after, tuple([_place(each) for each in places]))
        except (BadRecord, NewerRecord, TypeError, ValueError) as error:
            raise CorruptState(
                self.url,
                f"the record of queue {queue!r} or {known.record!r} was not written by intervalq; both are "
                f"left as they are: {error}",
            ) from error

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        reply = await self._schedules("read", now, "" if names is None else json.dumps([*names]))
        with self._server.expected("a script"):
            at, found = reply
            texts = [part.decode() for part in found]
            return StoredSchedules(int(at), dict(zip(texts[::2], texts[1::2], strict=True)))

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        reply = await self._schedules("swap", now, name, known or "", text or "", str(earliest))
        with self._server.expected("a script"):
            at, done, stored = reply
            return Swapped(bool(done), int(at), stored.decode() or None)

    async def _schedules(self, op: str, now: int | None, *arguments: str) -> Any:  # noqa: ANN401 - not read yet
        clock = "" if now is None else str(now)
        asked = ("1", _SCHEDULES, op, clock, *arguments)
        reply, _ = await self._server.run(_SCHEDULES, script("schedules.lua"), *asked)
        return reply

    async def names(self) -> list[str]:
        """See `Store.names`."""
        matches = [_RECORD.fullmatch(key) async for key in self._server.keys(_key("*"))]
        return sorted(
            {":".join(part.decode() for part in match.groups() if part) for match in matches if match}
        )

    def wakeups(self, queue: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`."""
        return self._server.subscribed(f"{_key(queue)}:wake")

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await self._server.close()

    async def advice(self) -> list[tuple[str, str]]:
        """The report for `doctor`: pairs of `ok`, `warning` or `error`, and a sentence."""
        found = await self._server.safety()
        for node in await self._server.nodes():
            name = "the server" if node is None else f"{node[0]}:{node[1]}"
            try:
                text = await self._server.info(node=node)
            except Unauthorized:
                found.append(
                    ("warning", f"nothing is known about {name}: this user may not use INFO; allow it")
                )
                continue
            info = dict(re.findall(r"^(\w+):(.*?)\r?$", text, re.MULTILINE))
            found += [_version(name, info), _role(name, info), _eviction(name, info)]
            if info.get("aof_enabled") == "1":
                found.append(_log(name, await self._setting("appendfsync", node)))
            else:
                found.append(_snapshots(name, await self._setting("save", node)))
        return found

    async def _setting(self, name: str, node: Address) -> bytes | None:
        """A setting of a server; None: unknown."""
        try:
            _, value = await self._server.call("CONFIG", "GET", name, node=node)
        except (StoreError, ValueError):  # CONFIG is forbidden or renamed, as in hosted services
            return None
        return bytes(value)


def _key(queue: str) -> str:
    return f"intervalq:{{{queue}}}"  # the text in braces determines the cluster's slot


def _beside(common: str, key: str) -> str:
    """The record of a key under one rate in a cluster, which is in the slot of the common one."""
    return f"{_key(common)}:{{{key}}}"


def _place(numbers: list[int]) -> Place:
    of_key, ticket, due, cost = numbers
    return Place(of_key, Slot(ticket, due, cost))


_FLAGS: Final = frozenset({"refused", "healed", "woken", "at_once"})
_FIELDS: Final = (
    *("now", "refused", "healed", "woken", "granted", "missed", "at_once", "first", "due", "count", "costs"),
    *("begun", "state"),
)
_WITH_LIMITS: Final = (*_FIELDS, "dues", "units")
_STORED: Final = (
    *("generation", "held_since", "running", "interval", "burst", "max_running", "tolerance", "ephemeral"),
    *("ticket", "due", "current", "current_due", "revoked_through", "held_total", "held_until", "last_now"),
    *("late_total", "error", "error_until"),
)
_LIMITED: Final = ("stepped", "limits")
_LIMIT: Final = ("most", "window", "unit", "jitter", "used", "ahead")
"""The meanings of the script's integers and texts, which the script documents."""


def _answer(reply: list[Any]) -> Answer:
    """The answer that the script gave.

    Raises:
        BadRecord, NewerRecord: as `Answer.from_dict` says.
    """
    try:
        fields = dict(zip(_FIELDS if len(reply) == len(_FIELDS) else _WITH_LIMITS, reply, strict=True))
        fields |= {name: _flag(fields[name]) for name in _FLAGS}
        first, due, costs = fields["first"], fields.pop("due"), fields["costs"]
        fields["first"] = [first, due, *costs[:1]] if first else None
        fields["state"] = _record(fields["state"]) if fields["state"] else None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadRecord("it has another form, or its 'generation' isn't text") from error
    return Answer.from_dict(fields)


def _flag(number: object) -> object:
    return bool(number) if number in (0, 1) else number


def _record(fields: list[Any]) -> dict[str, Any]:
    more = len(fields) - len(_STORED)
    weighted = more > 0 and not isinstance(fields[-1], list)
    limited, auto = more - weighted > 1, (more - weighted) % 2 == 1
    names = (*_STORED, *(_LIMITED if limited else ()), *(("auto",) if auto else ()))
    names += ("weight",) if weighted else ()
    record = dict(zip(names, fields, strict=True))
    leases = record["running"]
    if limited:
        record["limits"] = [_limit(each) for each in record["limits"]]
    return record | {
        "version": LAYOUT,
        "generation": record["generation"].decode(),
        "held_since": None if record["held_since"] == b"" else record["held_since"],
        "ephemeral": _flag(record["ephemeral"]),
        "running": dict(zip(map(str, leases[::2]), leases[1::2], strict=True)),
    }


def _limit(fields: list[Any]) -> dict[str, Any]:
    limit = dict(zip(_LIMIT if len(fields) == len(_LIMIT) else (*_LIMIT, "edge"), fields, strict=True))
    return limit | {"unit": limit["unit"].decode()}


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
        return "error", f"{name} is a replica and accepts no writes: use the URL of the primary"
    return "ok", f"{name} accepts writes"


def _eviction(name: str, info: dict[str, str]) -> tuple[str, str]:
    policy = info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return "ok", f"{name} never removes records to make room"
    return "warning", (
        f"{name} has maxmemory-policy {policy} and may remove a queue's record to make room, after which the "
        "queue starts over with one quiet interval: set maxmemory-policy noeviction"
    )


def _log(name: str, sync: bytes | None) -> tuple[str, str]:
    log = f"{name} keeps an append-only file"
    if sync == b"always":
        return "ok", f"{log}, and syncs it before it answers: a power cut loses nothing"
    if sync == b"no":
        return "warning", (
            f"{log} that the system writes to the disk at any time: a power cut loses half a minute of "
            "writes or more; set appendfsync everysec, or always"
        )
    usual = (
        "" if sync == b"everysec" else " unless appendfsync is no, which is unknown as CONFIG is forbidden"
    )
    return "ok", f"{log}: at most about a second of writes is lost in a power cut{usual}"


def _snapshots(name: str, snapshots: bytes | None) -> tuple[str, str]:
    remedy = "for queues that must outlive it, set appendonly yes"
    if snapshots is None:
        return "warning", (
            f"{name} keeps no append-only file, and whether it takes snapshots is unknown because CONFIG is "
            f"forbidden: a crash loses the writes since the last snapshot, if any; {remedy}"
        )
    if not snapshots:
        return "warning", (
            f"{name} keeps nothing on disk: after its restart every queue starts over, not paused, and with "
            f"the settings of the first process that comes; {remedy}"
        )
    return "warning", (
        f"{name} keeps only snapshots: a crash loses the writes since the last one, and queues go on from "
        f"the highest ticket that a live shard knows; {remedy}"
    )
