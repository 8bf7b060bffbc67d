"""Bugs of warnings, and of how a process hears that a hold has ended."""

from __future__ import annotations

from collections.abc import Iterator

from intervalq._shard import listener, warnings
from intervalq._shard.store_time import StoreTime
from intervalq.rules import FOREVER, State
from planted.planting import bug, instead


@bug("warned-at-once", "drowsy", 0)
def _() -> Iterator[None]:
    """A process warns at the first late slot."""
    yield from instead(warnings, "_WASTEFUL", 2)


@bug("never-warned", "drowsy", 49)
def _() -> Iterator[None]:
    """A process never warns that its jobs are late."""
    yield from instead(warnings, "_WASTEFUL", FOREVER)


@bug("cause-not-looked-for", "drowsy", 5)
def _() -> Iterator[None]:
    """The machine is always named as the cause."""

    def cause(time: StoreTime, state: State) -> str:
        del time, state
        return "the machine is overloaded: use fewer processes"

    yield from instead(warnings, "_cause", cause)


@bug("cause-half-known", "blocked", 127)
def _() -> Iterator[None]:
    """A busy event loop is named as the cause only if its timers are later than those of any machine, too."""
    original = warnings._cause

    def cause(time: StoreTime, state: State) -> str:
        reaction = time.reaction
        if time.lateness.typical() <= warnings._BLOCKED:
            time.reaction = 0
        try:
            return original(time, state)
        finally:
            time.reaction = reaction

    yield from instead(warnings, "_cause", cause)


@bug("polls-too-seldom", "calm", 4)
def _() -> Iterator[None]:
    """Without wake-ups, a held process asks every five seconds."""
    yield from instead(listener, "_PATIENCE", {True: 5_000_000, False: 5_000_000})


@bug("pause-ends-unseen", "calm", 6)
def _() -> Iterator[None]:
    """A process asks now and then whether a pause has ended, and not at its end."""

    def next_look(self: listener.Listener, time: StoreTime, state: State | None) -> float:
        del time, state
        return self._clock.now() + listener._PATIENCE[self.hears]

    yield from instead(listener.Listener, "next_look", next_look)
