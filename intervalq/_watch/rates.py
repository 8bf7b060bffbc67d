"""The rates at which queues start jobs, from one look to the next. The viewer keeps them, not the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from intervalq import QueueState
from intervalq._watch.log import Note
from intervalq._watch.words import possible

_LOOKS: Final = 120
"""How many looks are kept."""

_SPAN: Final = 10.0
"""The present rate is taken over at least this many seconds, and at least this many intervals."""


class Point(NamedTuple):
    """What happened between two looks."""

    at: float
    """The time of the second look, in seconds since 1970 on the store's clock."""
    reached: float
    """Starts a second."""
    possible: float | None
    """What the pace and the limits of starts allow; 0 while the queue is held, None: any number."""
    refused: float | None = None
    """Jobs a second that the called server refused; None: no log says so."""


class Rates:
    """The rates of queues over their last looks."""

    def __init__(self) -> None:
        self._looks: dict[str, deque[QueueState]] = {}

    def take(self, states: Iterable[QueueState]) -> None:
        """Add a look at all queues, and forget the queues that are gone."""
        known = {}
        for state in states:
            looks = self._looks.get(state.name) or deque(maxlen=_LOOKS)
            if looks and (looks[-1].generation != state.generation or looks[-1].current > state.current):
                looks.clear()  # the record was created again, or an earlier one was restored
            if not looks or looks[-1].now < state.now:
                looks.append(state)
            known[state.name] = looks
        self._looks = known

    def points(self, name: str, notes: Sequence[Note] | None = None) -> list[Point]:
        """The rates of a queue, oldest first. `notes`: what its log says of refusals; None: it has none."""
        found = []
        for before, after in pairwise(self._looks.get(name, ())):
            span, refused = after.now - before.now, None
            if notes is not None:
                refused = sum(note.refused for note in notes if before.now < note.at <= after.now) / span
            found.append(Point(after.now, (after.current - before.current) / span, possible(after), refused))
        return found

    def now(self, name: str) -> float | None:
        """Starts a second in the last seconds; None: there was only one look."""
        looks = self._looks.get(name)
        if looks is None or len(looks) < 2:
            return None
        last = looks[-1]
        span = max(_SPAN, _SPAN * last.interval if last.has_pace else 0)
        first = next(look for look in looks if look.now >= last.now - span)
        if first is last:
            first = looks[-2]
        return (last.current - first.current) / (last.now - first.now)
