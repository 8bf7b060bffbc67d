"""What one entry of a queue's log says, and what the sum after it packs: see `_queue.log`."""

from __future__ import annotations

from typing import Final, NamedTuple

from intervalq.rules import Command, Drop, Slot, State

ONE: Final = 1 << 53
"""What every entry adds: one entry."""

TOLD: Final = 1 << 96
"""What a plain entry adds besides that may tell slots to go."""

_OTHERS: Final = 139
"""Where the fingerprint begins in a sum."""

_TICKETS: Final = ONE - 1
_ENTRIES: Final = (1 << (96 - 53)) - 1


class Plain(NamedTuple):
    """An entry of the plain kind: slots to use, and tickets behind all that were issued."""

    now: int | None
    """What the sender knows that the store's clock has reached; None: it tells no slot to go."""
    take: int
    reach: int
    generation: str | None
    slots: tuple[Slot, ...]
    ahead: int | None = None
    """See `Advance.ahead`."""
    last: int | None = None
    """The last ticket that the sender knows of, if it takes some to use at once; None: it doesn't matter."""
    notice: int = 0
    """How far ahead slots are granted if there are others by now."""

    @property
    def increment(self) -> int:
        """What it adds."""
        return ONE + self.take if self.now is None else TOLD + ONE + self.take


class Full(NamedTuple):
    """Any other entry: a command for the rules."""

    command: Command
    now: int | None
    """The store's clock; None: the instant at which the entry was stored."""
    reset: bool
    """The record before is lost."""

    @property
    def begins(self) -> bool:
        """Whether it comes to the same whatever was before."""
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
    """What a log comes to at one of its entries."""

    state: State | None
    value: int = 0
    sequence: int = 0


BEGIN: Final = Position(None)


def tickets(value: int) -> int:
    """How many tickets plain entries took, in a sum."""
    return value & _TICKETS


def entries(value: int) -> int:
    """How many entries a sum is of."""
    return value >> 53 & _ENTRIES


def told(value: int) -> int:
    """How many of the plain ones may have told slots to go."""
    return value >> 96 & _ENTRIES


def others(value: int) -> int:
    """The fingerprint, in a sum, of the entries that are not plain."""
    return value >> _OTHERS


def fingerprint(number: int) -> int:
    """What an entry that is not plain adds."""
    return (number << _OTHERS) + ONE
