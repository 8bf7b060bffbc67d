"""What jobs took of the limits, known after they began, on its way to the store.

It rides along with the shard's next question. If there is none for a while, it gets one of its own: after the
cell of a window, at most a second. Windows are exact to a cell, so that a question for each job would hardly
make them more so.

What wasn't needed is sent once: if there is no answer, the store may have it, and twice would be too much.
What was needed beyond the estimate is sent until there is an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from intervalq._timing.clock import Clock
from intervalq.errors import StoreUnavailable
from intervalq.rules import FOREVER, MAX_TICKETS, Limit, Settled

MAX_WAIT: Final = 1_000_000
"""How long settled costs may wait for a request that they can go with, in microseconds."""


class _Known(NamedTuple):
    """By how much more, or less, of each unit the job of a slot took than its ticket."""

    due: int
    lag: int
    more: Mapping[str, int]


class Settlements:
    """Those of one shard that no answer of the store has shown yet."""

    def __init__(self, clock: Clock) -> None:
        self.at = FOREVER
        """When they get a question of their own, on the process's own clock."""
        self.are_usual = False
        """Whether any job here took less than its ticket."""
        self._clock = clock
        self._waiting: list[_Known] = []
        self._sent: list[_Known] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sent)

    def add(self, due: int, lag: int, more: Mapping[str, int], limits: Sequence[Limit]) -> None:
        """Note what the job of a slot took more than its ticket."""
        self._waiting.append(_Known(due, lag, more))
        self.are_usual = self.are_usual or min(more.values()) < 0
        self.at = min(self.at, self._clock.now() + patience([each for each in limits if each.unit in more]))

    def take(self, counted: Sequence[str]) -> tuple[Settled, ...]:
        """Those to send with a question, each in the order of these units."""
        self._sent, self._waiting = self._waiting[:MAX_TICKETS], self._waiting[MAX_TICKETS:]
        self.at = self._clock.now() if self._waiting else FOREVER
        return tuple(
            [
                Settled(due, lag, tuple([more.get(unit, 0) for unit in counted]))
                for due, lag, more in self._sent
            ]
        )

    def answered(self) -> None:
        """Note that the question was answered."""
        self._sent = []

    def failed(self) -> None:
        """Note that no answer came: the store may have them or not."""
        again = [
            _Known(due, lag, beyond)
            for due, lag, more in self._sent
            if (beyond := {unit: some for unit, some in more.items() if some > 0})
        ]
        self._waiting, self._sent = [*again, *self._waiting], []
        if again:
            self.at = self._clock.now()

    def hurry(self) -> bool:
        """Let them have a question of their own now; returns whether there are any."""
        self.at = self._clock.now() if self else FOREVER
        return bool(self)

    def troubled(self, trouble: Exception) -> None:
        """After an error that others than the store's absence explain, forget them: they may be its cause.

        Else they wait for another question.
        """
        if not isinstance(trouble, StoreUnavailable):
            self.forget()
        self.at = FOREVER

    def forget(self) -> None:
        """Forget them, because their record is gone."""
        self._waiting, self._sent, self.at = [], [], FOREVER


def patience(limits: Sequence[Limit]) -> int:
    """How long a difference of these limits may wait: as long as the shortest of their cells."""
    return min([MAX_WAIT, *(limit.cell for limit in limits)])
