"""What the keys of a handle know of their common queue: what one learns from an answer, all know."""

from __future__ import annotations

from intervalq.rules import HighWaterMark, State


class CommonView:
    """The common record, as the answers to all keys of one handle in one event loop showed it.

    Late grants to some keys move the places of all others. A key that hears of this only from the answers to
    its own requests would ask for its grant too early, and a key that is late could no longer be granted its
    place.
    """

    def __init__(self) -> None:
        self.state: State | None = None
        """The record; None: there is none, or it is not known yet."""
        self.generation: str | None = None
        """Its generation, or that of the last record if there is none now; None: there was none yet."""
        self.high_water_mark: HighWaterMark | None = None
        """Its highest known ticket and `late_total`."""

    def learn(self, state: State | None) -> None:
        """Take in the record that an answer shows; answers may overtake each other."""
        before, known = self.state, self.high_water_mark
        if state is None:
            self.state = self.high_water_mark = None
            return
        self.generation = state.generation
        mark = HighWaterMark(state.ticket, state.due, state.late_total)
        if known is None or before is None or before.generation != state.generation:
            self.state, self.high_water_mark = state, mark
            return
        if state.ticket >= known.ticket and state.late_total >= known.late_total:
            self.state = state
        self.high_water_mark = HighWaterMark(
            *map(max, known, mark)
        )  # if the store lost writes, the next step repairs that
