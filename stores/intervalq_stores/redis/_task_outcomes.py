"""Outcomes in Redis: how they are packed, and how they are found among the days on which they expire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from struct import Struct
from typing import Any, Final, TypeAlias

from intervalq.tasks.rules import CANCELLED, DONE, FAILED, Kept, OutcomeRow, Outcomes, sound
from intervalq_stores.redis._task_keys import day_keys
from intervalq_stores.redis._task_rows import MAX_SPAN, Unfit

Ask: TypeAlias = Callable[[str, list[str | bytes], tuple[int, ...]], Awaitable[list[Any]]]
"""Asks the server for something by name, with arguments and the days that it is about; returns its answer."""

_KEPT: Final = Struct(">qq")
_OUTCOME: Final = Struct(">BIqqqqqHHHIII")
_STATES: Final = (DONE, FAILED, CANCELLED)
_KEY: Final = 4
_NUMBERED: Final = 8
_NUMBER: Final = Struct(">q")


def kept_text(kept: Kept) -> bytes:
    """What an end says about an outcome: see `kept_of` in tasks_outcomes.lua.

    Raises:
        Unfit: a number can't be kept.
    """
    keep_for, result, took = kept
    if not (0 <= keep_for < MAX_SPAN and 0 <= took < MAX_SPAN):
        raise Unfit(f"keep_for={keep_for} or took={took} is not from 0 to below {MAX_SPAN}")
    return _KEPT.pack(keep_for, took) + result.encode()


async def find(ask: Ask, command: Outcomes) -> tuple[OutcomeRow, ...]:
    """The outcomes that a command asks for."""
    if command.ids:
        _, now, flat = await ask("outcomes", list(dict.fromkeys(command.ids)), ())
        found = list(_matching(command, now, flat))
        return tuple([one for _, one in sorted(found, key=_order)[: command.limit]])
    found = []
    _, _, days = await ask("days", [], ())
    for day in days:
        found += await _of_day(ask, command, day)
    found.sort(key=_order, reverse=True)
    return tuple([one for _, one in found[: command.limit]])


def _order(numbered: tuple[int, OutcomeRow]) -> tuple[int, int]:
    number, outcome = numbered
    return number, 0 if number else outcome.ended


async def _of_day(ask: Ask, command: Outcomes, day: int) -> list[tuple[int, OutcomeRow]]:
    """The last outcomes of one day, read page by page, so that no step of the server takes long."""
    queue = "" if command.queue is None else f"={command.queue}"
    state = "" if command.state is None else str(_STATES.index(command.state))
    flat: dict[bytes, bytes] = {}  # a page that comes later has nothing newer about an id
    now, position, left = 0, "", command.limit
    while position != "0" and left != 0:
        limit = "" if left is None else str(left)
        _, now, page, first, matching = await ask("page", [str(day), queue, state, position, limit], (day,))
        for id_, text in zip(page[::2], page[1::2], strict=True):
            if flat.setdefault(id_, text) is not text:
                matching -= 1
        position = str(first)
        left = None if left is None else max(0, left - matching)
    return list(_matching(command, now, [part for pair in flat.items() for part in pair]))


def _matching(command: Outcomes, now: int, flat: list[bytes]) -> Iterator[tuple[int, OutcomeRow]]:
    for id_, text in zip(flat[::2], flat[1::2], strict=True):
        for number, one in _unpacked(id_.decode(), text):
            if one.until > now and command.queue in (None, one.queue) and command.state in (None, one.state):
                yield number, one


def _unpacked(id_: str, packed: bytes) -> Iterator[tuple[int, OutcomeRow]]:
    """The outcomes of a task with their numbers, the first one first; 0: it has none."""
    at = 0
    while at < len(packed):
        flags, attempts, created, started, ended, until, pid, *sizes = _OUTCOME.unpack_from(packed, at)
        at += _OUTCOME.size
        number = 0
        if flags & _NUMBERED:
            (number,) = _NUMBER.unpack_from(packed, at)
            at += _NUMBER.size
        texts: list[str] = []
        for size in sizes:
            texts.append(packed[at : at + size].decode())
            at += size
        if at > len(packed):
            raise ValueError("an outcome is too short")
        queue, key, host, result, errors, json = texts
        row = OutcomeRow(
            id_, queue, key if flags & _KEY else None, _STATES[flags % _KEY], json, result, attempts,
            errors, created, started, ended, host, pid, until,
        )  # fmt: skip
        yield number, sound(row)


def keys_of_days(days: tuple[int, ...]) -> Iterator[str]:
    """The keys of these days."""
    for day in days:
        yield from day_keys(day)
