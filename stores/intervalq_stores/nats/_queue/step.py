"""The entries of a queue's log, and the numbers packed into the sum after each: see `_queue.log`."""

from __future__ import annotations

from typing import Final, NamedTuple

from intervalq.rules import Command, Drop, Slot, State

ONE: Final = 1 << 53
"""The increment of every entry: it counts one entry."""

GRANTING: Final = 1 << 96
"""The additional increment of a plain entry that may grant slots."""

_OTHERS: Final = 139
"""Where the fingerprint begins in a sum."""

_TICKETS: Final = ONE - 1
_ENTRIES: Final = (1 << (96 - 53)) - 1


class Plain(NamedTuple):
    """An entry of the plain kind: slots to use, and tickets behind all that were issued."""

    now: int | None
    """A time that the store's clock has certainly reached; None: the entry grants no slot."""
    take: int
    reach: int
    generation: str | None
    slots: tuple[Slot, ...]
    ahead: int | None = None
    """See `Advance.ahead`."""
    last: int | None = None
    """The last ticket that the sender knows of, if it takes some to use at once; None: it is irrelevant."""
    notice: int = 0
    """How far ahead slots are granted if there are later tickets by now."""

    @property
    def increment(self) -> int:
        """The increment of the counter."""
        return ONE + self.take if self.now is None else GRANTING + ONE + self.take


class Full(NamedTuple):
    """Any other entry: a command for the rules."""

    command: Command
    now: int | None
    """The store's clock; None: the instant at which the entry was stored."""
    reset: bool
    """Whether the previous record is lost."""

    @property
    def begins(self) -> bool:
        """Whether its result is independent of the entries before."""
        return self.reset or isinstance(self.command, Drop)


class Entry(NamedTuple):
    """One message of the log."""

    sequence: int
    at: int
    """When it was stored, in microseconds."""
    increment: int
    value: int
    """The sum after it."""
    step: Plain | Full


class Position(NamedTuple):
    """The record at one of the entries of a log."""

    state: State | None
    value: int = 0
    sequence: int = 0


BEGIN: Final = Position(None)


def tickets(value: int) -> int:
    """How many tickets plain entries took, in a sum."""
    return value & _TICKETS


def entries(value: int) -> int:
    """How many entries there are, in a sum."""
    return value >> 53 & _ENTRIES


def granting(value: int) -> int:
    """How many of the plain entries may have granted slots, in a sum."""
    return value >> 96 & _ENTRIES


def others(value: int) -> int:
    """The fingerprint, in a sum, of the entries that are not plain."""
    return value >> _OTHERS


def fingerprint(number: int) -> int:
    """The increment of an entry that is not plain."""
    return (number << _OTHERS) + ONE
