"""Bugs in what a handle says of itself, and in what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from intervalq._shard.connection import Connection
from intervalq._shard.conversation import Conversation
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import Grant, Grants
from intervalq._shard.wait_queue import Waiter
from intervalq._timing.wakeable_sleep import WakeableSleep
from intervalq.rules import Advance, Answer, Slot
from planted.planting import bug, instead

_AGREE: Final = Connection._agree
_GENERATION: Final = Connection._generation
_GIVE_UP: Final = Dispatcher.give_up
_SOMEONE: Final = Conversation.someone_waits
_WAITER: Final = Waiter.__init__


@bug("passed-unsaid", "stalls", 25)
def _() -> Iterator[None]:
    """A slot that the process gives up is not counted."""

    def give_up(self: Dispatcher, grant: Grant, cause: str) -> None:
        _GIVE_UP(self, grant, cause)
        self.skipped[cause] = 0

    yield from instead(Dispatcher, "give_up", give_up)


@bug("given-up-twice", "handed", 69)
def _() -> Iterator[None]:
    """Slots that are to be granted again come before tickets that were to be granted again earlier."""

    def ask_again(self: Grants) -> None:
        again = [slot for each in self.granted for slot in each]
        first = self.granted[0] if self.granted else None
        self._shift, self._shift_end = (first.shift, first.end) if first is not None else (0, 0)
        self.granted.clear()
        self.tickets.extendleft(reversed(again))

    yield from instead(Grants, "ask_again", ask_again)


@bug("given-back-to-nobody", "loops", 27)
def _() -> Iterator[None]:
    """The last slots of a key are given back without the name of their record."""

    def generation(self: Connection, *, has_slots: bool = False) -> str | None:
        return _GENERATION(self)

    yield from instead(Connection, "_generation", generation)


@bug("nothing-given-back", "calm", 11)
def _() -> Iterator[None]:
    """Slots that are left when nobody waits any more are only forgotten."""

    def give_all_back(self: Grants, last: int) -> tuple[Slot, ...]:
        self.forget()
        return ()

    yield from instead(Grants, "give_all_back", give_all_back)


@bug("closed-too-soon", "windows", 2)
def _() -> Iterator[None]:
    """A handle is closed before it has given its slots back."""

    async def ended(self: Conversation) -> None:
        self.nobody_waits()

    yield from instead(Conversation, "ended", ended)


@bug("ends-by-an-error", "calm", 0)
def _() -> Iterator[None]:
    """The task that talks to the store fails when nobody waits, so that no caller hears of it."""

    def farewell(self: Conversation) -> Advance | None:
        raise KeyError(self._queue)

    yield from instead(Conversation, "_farewell", farewell)


@bug("timer-left-open", "exact", 0)
def _() -> Iterator[None]:
    """The descriptor of the timers is not closed when nobody waits."""
    yield from instead(WakeableSleep, "end", lambda self: None)


@bug("handed-on-time", "threads", 29)
def _() -> Iterator[None]:
    """A thread is handed its slot when that comes, and then has to start."""

    def init(self: Waiter, priority: int = 0, cost: int = 1, early: int = 0, **more: Any) -> None:
        _WAITER(self, priority, cost, **more)

    yield from instead(Waiter, "__init__", init)


@bug("adopts-unasked", "joins", 1)
def _() -> Iterator[None]:
    """A handle takes the settings of the record, whatever its `on_mismatch` is."""

    async def agree(self: Connection, refusal: Answer) -> None:
        self._on_mismatch = "adopt"
        await _AGREE(self, refusal)

    yield from instead(Connection, "_agree", agree)


@bug("starts-at-once", "joins", 0)
def _() -> Iterator[None]:
    """A handle with `start=False` starts its jobs."""

    def someone_waits(self: Conversation) -> None:
        self.is_kept = False
        _SOMEONE(self)

    yield from instead(Conversation, "someone_waits", someone_waits)
