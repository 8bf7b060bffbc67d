"""Conversion of commands to headers of the log's messages, and of messages to entries."""

from __future__ import annotations

import base64
import json
import re
import zlib
from calendar import timegm
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from intervalq.rules import (
    Advance,
    Auto,
    Command,
    Configure,
    Drop,
    Finish,
    HighWaterMark,
    Hold,
    Inspect,
    Limit,
    Reclaim,
    Refusal,
    Resume,
    Settings,
    Settled,
    Slot,
)
from intervalq_stores.nats._queue.step import Entry, Full, Plain, fingerprint, others

if TYPE_CHECKING:
    from nats.aio.msg import Msg

STEP: Final = "Iq-Step"
"""The header that has the command: a list is a plain entry, an object is any other."""

_LAYOUT: Final = 5
"""Layout 2 added late grants, costs and errors. In layout 1 the mark is a pair, and has another name.

Layout 3 added limits, layout 4 the edges of limits, layout 5 automatic intervals. An entry has the oldest
layout that it needs."""

_PLAIN: Final = 2
"""The layout of an entry without any of these."""

_BEFORE: Final = 6
"""The number of parts of a plain entry of layout 1."""

_LONG: Final = 8_192
_MAX_LENGTH: Final = 4_000_000
"""The maximum length of a packed text: a server accepts 64 KiB of headers."""

_KINDS: Final[dict[str, type[Command]]] = {
    kind.__name__.lower(): kind for kind in (Advance, Hold, Resume, Configure, Reclaim, Finish, Inspect, Drop)
}
_WAKING: Final = frozenset({"resume", "configure", "finish", "drop"})


_HEADERS: Final = re.compile(
    rb"\r\nNats-Incr: ([+0-9]+)\r\n(?:[^\r]+\r\n)?Iq-Step: ([ -~]+)\r\nNats-Stream: [^\r]+\r\n"
    rb"Nats-Subject: [^\r]+\r\nNats-Sequence: ([0-9]+)\r\nNats-Time-Stamp: ([0-9T:.Z-]+)\r\n"
)
"""Our headers and those that the server adds, as they are written: faster than parsing each separately."""


class Broken(ValueError):
    """A message isn't an entry written by this library."""


class Newer(ValueError):
    """An entry was written by a newer version."""


def written(step: Plain | Full) -> str:
    """The value of the header."""
    if isinstance(step, Plain):
        generation = "null" if step.generation is None else json.dumps(step.generation)
        pairs = [slot[: 2 if slot.cost == 1 else 3] for slot in step.slots]
        slots = json.dumps(pairs, separators=(",", ":")) if pairs else "[]"
        now = "null" if step.now is None else step.now
        ahead = "null" if step.ahead is None else step.ahead
        behind = "" if step.last is None else f",{step.last},{step.notice}"
        return f"[{_PLAIN},{now},{step.take},{step.reach},{generation},{slots},{ahead}{behind}]"
    command = step.command
    fields: dict[str, Any] = {"v": _layout_of(command), **command.to_dict()}
    if step.now is not None:
        fields["now"] = step.now
    if step.reset:
        fields["reset"] = True
    text = json.dumps(fields, separators=(",", ":"))
    return f"z{base64.b64encode(zlib.compress(text.encode())).decode()}" if len(text) > _LONG else text


def _layout_of(command: Command) -> int:
    settings = command.settings
    limits, auto = (None, None) if settings is None else (settings.limits or None, settings.auto)
    if isinstance(command, Configure):
        limits, auto = limits if command.limits is None else command.limits, auto or command.auto
    if auto is not None or (isinstance(command, Hold) and command.refusal):
        return _LAYOUT
    if limits is None:
        return _PLAIN
    return 4 if any(limit.edge is not None for limit in limits) else 3


def entry(message: Msg) -> Entry:
    """The entry in a message of the log, as the server gave it directly.

    Raises:
        Broken: it wasn't written by this library.
        Newer: it was written by a newer version.
    """
    from intervalq_stores.nats._client import QuickMsg  # noqa: PLC0415 - imports the driver

    if isinstance(message, QuickMsg) and (found := _HEADERS.search(message.raw)) is not None:
        increment, text, sequence, stamp = found.groups()
        return read(int(sequence), micros(stamp.decode()), increment.decode(), message.data, text.decode())
    headers = message.headers or {}
    try:
        return read(
            int(headers["Nats-Sequence"]),
            micros(headers["Nats-Time-Stamp"]),
            headers["Nats-Incr"],
            message.data,
            headers[STEP],
        )
    except KeyError as missing:
        raise Broken(f"it has no {missing.args[0]}") from None


def read(sequence: int, at: int, increment: str, data: bytes, text: str) -> Entry:
    """See `entry`."""
    try:
        fields = json.loads(_unpacked(text) if text[:1] == "z" else text)
        step = _plain(fields) if isinstance(fields, list) else _full(fields)
        found = Entry(sequence, at, int(increment), _value(data), step)
    except (Newer, Broken):
        raise
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, zlib.error) as wrong:
        raise Broken(f"{type(wrong).__name__} in {text[:60]!r}") from None
    wanted = step.increment if isinstance(step, Plain) else fingerprint(others(found.increment))
    if found.increment != wanted:
        raise Broken("its increment doesn't fit its command")
    return found


def _value(data: bytes) -> int:
    if data[:8] == b'{"val":"' and data[-2:] == b'"}':  # in the server's own form; a general parser is slower
        return int(data[8:-2])
    return int(json.loads(data)["val"])


def ends_hold(text: str) -> bool:
    """Whether the entry with this header may have ended a hold, so that waiting shards must be woken."""
    try:
        if text[:1] == "z":  # a message about many jobs
            text = _unpacked(text)
        if not text.startswith("{"):
            return False
        fields = json.loads(text)
    except (ValueError, RecursionError, zlib.error):
        return False
    return fields.get("op") in _WAKING or bool(fields.get("reset"))


def is_ephemeral(step: Plain | Full) -> bool:
    """Whether the entry may belong to a queue that is forgotten after being idle."""
    return isinstance(step, Full) and step.command.settings is not None and step.command.settings.ephemeral


def micros(stamp: str) -> int:
    """A time as the server writes it, in microseconds since 1970: 2026-11-22T01:50:59.957937789Z."""
    if stamp[-1:] != "Z":
        raise Broken(f"{stamp[:40]!r} is not a time")
    return _seconds(stamp[:19]) * 1_000_000 + int(stamp[20:-1].ljust(6, "0")[:6] or 0)


@lru_cache(maxsize=16)
def _seconds(stamp: str) -> int:
    numbers = (stamp[:4], stamp[5:7], stamp[8:10], stamp[11:13], stamp[14:16], stamp[17:19])
    return timegm(tuple([int(number) for number in numbers]))


def _unpacked(text: str) -> str:
    unpacking = zlib.decompressobj()
    whole = unpacking.decompress(base64.b64decode(text[1:], validate=True), _MAX_LENGTH)
    if not unpacking.eof:
        raise Broken("a packed command has no end")
    return whole.decode()


def _plain(fields: list[Any]) -> Plain:
    if _whole(fields[0]) > _LAYOUT:
        raise Newer(f"an entry has layout {fields[0]}, this version of intervalq knows up to {_LAYOUT}")
    if len(fields) == _BEFORE:
        fields = [*fields, None]
    _, now, take, reach, generation, slots, ahead, *behind = fields
    last, notice = behind or (None, 0)
    if generation is not None and type(generation) is not str:
        raise Broken("its generation isn't text")
    return Plain(
        None if now is None else _whole(now),
        _whole(take),
        _whole(reach),
        generation,
        _slots(slots) if slots else (),
        None if ahead is None else _whole(ahead),
        None if last is None else _whole(last),
        _whole(notice),
    )


def _full(fields: object) -> Full:
    if not isinstance(fields, dict):
        raise Broken("it is not a command")
    layout = _whole(fields.pop("v"))
    if layout > _LAYOUT:
        raise Newer(f"an entry has layout {layout}, this version of intervalq knows up to {_LAYOUT}")
    if layout == 1 and "mark" in fields:
        fields["high_water_mark"] = fields.pop("mark")
    if (bounds := fields.pop("settings_auto", None)) is not None:
        fields["settings"] = [*fields["settings"], Auto(*_numbers(bounds))]
    now, reset, kind = fields.pop("now", None), fields.pop("reset", False), _KINDS[fields.pop("op")]
    return Full(
        kind(**{name: _field(name, value) for name, value in fields.items()}),
        None if now is None else _whole(now),
        reset is True,
    )


def _field(name: str, value: Any) -> Any:  # noqa: ANN401 - of any field
    understand = _FIELDS.get(name)
    if understand is None:
        raise Broken(f"its {name[:40]!r} isn't known")
    return understand(value)


def _text(value: object) -> str:
    if type(value) is not str:
        raise Broken("one of its texts isn't text")
    return value


def _settings(value: list[Any]) -> Settings:
    interval, burst, max_running, tolerance, ephemeral = [_whole(number) for number in value[:5]]
    auto = value.pop() if isinstance(value[-1], Auto) else None
    limits = tuple([limit for several in value[5:] for limit in _limits(several)])
    return Settings(interval, burst, max_running, tolerance, bool(ephemeral), limits, auto)


def _limits(several: list[list[Any]]) -> tuple[Limit, ...]:
    return tuple(
        [
            Limit(_whole(most), _whole(window), _text(unit), _whole(jitter), *_numbers(edge))
            for most, window, unit, jitter, *edge in several
        ]
    )


def _slots(pairs: list[list[int]]) -> tuple[Slot, ...]:
    return tuple([_slot(*pair) for pair in map(_numbers, pairs)])


def _slot(ticket: int, due: int, cost: int = 1, *units: int) -> Slot:
    return Slot(ticket, due, cost, units)


def _settled(due: int, lag: int, *more: int) -> Settled:
    return Settled(due, lag, more)


def _numbers(several: list[int]) -> tuple[int, ...]:
    return tuple([_whole(number) for number in several])


def _whole(number: object) -> int:
    if type(number) is not int:
        raise Broken("one of its numbers isn't a whole number")
    return number


_FIELDS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        (
            *("take", "notice", "reach", "lease", "until", "ahead", "error"),
            *("length", "interval", "burst", "max_running"),
        ),
        _whole,
    ),
    **dict.fromkeys(("release", "slots"), _slots),
    **dict.fromkeys(("costs", "ended", "running"), _numbers),
    "settled": lambda lists: tuple([_settled(*_numbers(several)) for several in lists]),
    "units": lambda lists: tuple([_numbers(several) for several in lists]),
    **dict.fromkeys(("generation", "nonce"), _text),
    "high_water_mark": lambda numbers: HighWaterMark(*_numbers(numbers)),
    "settings": _settings,
    "limits": _limits,
    "auto": lambda numbers: Auto(*_numbers(numbers)),
    "refusal": lambda numbers: Refusal(*_numbers(numbers)),
    "attach": lambda value: value is True,
}
