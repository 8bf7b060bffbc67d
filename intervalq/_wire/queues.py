"""Commands on queues and their answers as JSON: what a record holds is checked as stores check it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final, cast

from intervalq._spec.record import MAX_WEIGHT
from intervalq._wire.values import MalformedValue, coder, loads
from intervalq._wire.verbs import QUEUES, Names
from intervalq.keyed import Common, KeyedAnswer, Place
from intervalq.rules import (
    Advance,
    Answer,
    BadRecord,
    Command,
    Configure,
    Finish,
    Hold,
    Settings,
    Slot,
    State,
)

_NUMBERS: Final = (
    *("now", "refused", "healed", "granted", "missed", "at_once", "count", "costs", "dues", "units"),
    *("begun", "woken", "blur"),
)
_PLACE: Final = coder(tuple[int, int, int, int])


def read_command(data: bytes) -> Command | Names:
    """A command on a queue, whose numbers are in the ranges that the rules need.

    Raises:
        MalformedValue: it isn't one.
    """
    command = cast("Command | Names", loads(QUEUES, data))
    if isinstance(command, Names):
        return command
    if command.settings is not None:
        _check(command.settings)
    if isinstance(command, Configure):
        _check(
            Settings(
                1 if command.interval is None else command.interval,
                1 if command.burst is None else command.burst,
                command.max_running or 0,
                limits=command.limits or (),
                auto=command.auto,
            )
        )
        if not 0 <= (command.weight or 0) <= MAX_WEIGHT:
            raise MalformedValue(f"a weight is from 0 to {MAX_WEIGHT}")
    slots = (*command.slots, *command.release) if isinstance(command, Advance) else ()
    lengths = [slot.cost for slot in slots]
    if isinstance(command, Advance):
        lengths += [*command.costs, 1 + min(command.take, command.notice, command.lease, command.error)]
    elif isinstance(command, Hold):
        lengths += [1 + command.length]
    elif isinstance(command, Finish):
        lengths += [1 + command.lease]
    if min(lengths, default=1) < 1:
        raise MalformedValue("a cost, a number of tickets or a time is too small")
    return command


def read_common(data: bytes) -> Common:
    """What the sender knows of a common queue.

    Raises:
        MalformedValue: it is something else.
    """
    known = loads(Common, data)
    if known.settings is not None:
        _check(known.settings)
    if not 1 <= known.weight <= MAX_WEIGHT:
        raise MalformedValue(f"a weight is from 1 to {MAX_WEIGHT}")
    return known


def _check(settings: Settings) -> None:
    """Check settings as those of a record are checked, which a store would keep for ever.

    Raises:
        MalformedValue: a number is out of range.
    """
    auto = settings.auto
    limits = [{**limit._asdict(), "used": [], "ahead": []} for limit in settings.limits]
    bare = replace(settings, limits=(), auto=None)
    record = State(generation="g", settings=bare, due=0, current_due=0, last_now=0).to_dict()
    if limits:
        record |= {"limits": limits, "stepped": 0}
    if auto is not None:
        record["auto"] = [*auto, 0, auto.slowest, 0, 0]
    try:
        State.from_dict(record)
    except BadRecord as error:
        raise MalformedValue(f"settings: {error}") from None


def _written(answer: Answer) -> dict[str, Any]:
    """An answer in the form of `Answer.from_dict`, with its blur."""
    written = {name: getattr(answer, name) for name in _NUMBERS}
    written["first"] = None if answer.first is None else answer.first[:3]
    written["state"] = None if answer.state is None else answer.state.to_dict()
    return written


def write_answer(answer: Answer) -> bytes:
    """The answer of a queue."""
    return json.dumps(_written(answer), separators=(",", ":")).encode()


def write_keyed_answer(answer: KeyedAnswer) -> bytes:
    """The answer of a key's queue: [answer, common record, places]."""
    common = None if answer.common is None else answer.common.to_dict()
    places = [[place.ticket, *place.slot[:3]] for place in answer.places]
    return json.dumps([_written(answer.answer), common, places], separators=(",", ":")).encode()


def read_answer(data: bytes, trip: tuple[int, int]) -> Answer:
    """The answer of a queue, whose command travelled at these times.

    Raises:
        MalformedValue: it is something else.
    """
    try:
        return _read(json.loads(data), trip)
    except (ValueError, RecursionError) as error:  # of the record, too
        raise MalformedValue(f"an answer is malformed: {error}") from None


def read_keyed_answer(data: bytes, trip: tuple[int, int]) -> KeyedAnswer:
    """The answer of a key's queue.

    Raises:
        MalformedValue: it is something else.
    """
    try:
        own, common, rows = json.loads(data)
        places = [cast("tuple[int, int, int, int]", _PLACE.read(row)) for row in rows]
        state = None if common is None else State.from_dict(common)
        answer = _read(own, trip)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedValue(f"an answer is malformed: {error}") from None
    return KeyedAnswer(answer, state, tuple([Place(each[0], Slot(*each[1:])) for each in places]))


def _read(data: object, trip: tuple[int, int]) -> Answer:
    answer = Answer.from_dict(data)
    blur = cast("dict[str, Any]", data).get("blur")
    return replace(answer, trip=trip, blur=blur if type(blur) is int else 0)
