"""What a shard knows of the store's clock in terms of its own: when a slot has come, and when it is over.

Pure: readings go in, bounds come out. A job begins only when its slot has surely come and is surely not past
its tolerance, as TrueTime does it (Corbett et al., Spanner, 2012). Where the store is so far away that this
can't be told within the tolerance, it begins at the middle of the bounds, and the shard reports to the record
by how much it may be wrong.
"""

from __future__ import annotations

from typing import Final

from intervalq._shard.grants import GrantRange
from intervalq._timing.estimates import Recent, StoreClock
from intervalq.rules import ERROR_KEPT, FOREVER, Slot, State

REACTION: Final = 200
"""How long a job takes to begin after the answer with its grant has come, where nothing else goes on."""

_MAX_REACTION: Final = 1_000_000
"""`reaction` doubles each time a slot is over when its answer comes, up to this."""

_LATENESS: Final = 2_000
"""How late an event loop may wake, as long as that was not measured."""

_MAX_LATE: Final = 100_000
"""A question is sent earlier for late timers by this at most. What is later still is granted late, at the
cost of its own length; slots granted long before they come would outlast a pause, and hold a queue with a
limit."""

_TOGETHER: Final = 50_000
"""Slots that come so soon after one that is asked about are granted with it."""

_FIRST_LEAD: Final = 50_000
"""How long before a slot to ask for its grant while no round trip is known."""

_SHARPEN: Final = 5
"""How many questions in a row are spent on knowing the store's clock better."""

_FAR: Final = 2_000
"""Between bounds that are closer than this, a job waits until its slot has surely come, however small the
tolerance: the middle of the bounds gave more short gaps there."""


class StoreTime:
    """The store's clock, the way to it, and how soon this process reacts. All in microseconds.

    Args:
        strict: wait until a slot has surely come however far the store is.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.clock = StoreClock()
        self.trips = Recent()
        self.lateness = Recent()
        """How late the process woke up at the end of its recent sleeps."""
        self.reaction = REACTION
        """How long jobs take to begin after the answer with their grant, by those that came too late."""
        self._strict = strict
        self._checks = 0
        self.repeated = 0
        """How many answers in a row came too late for their slot."""

    # --- what goes in -------------------------------------------------------------------------------

    def answer_came_late(self, waited: int) -> None:
        """A slot that might be used at once was over before its job could begin.

        Args:
            waited: how long the answer had been here by then. Was it long, this process is slow, and will be
                for a while. Else the answer was: the next one may be faster, so only repetitions wait longer.
        """
        if waited > self.reaction:
            self.reaction = min(_MAX_REACTION, 2 * self.reaction)
        else:
            self.repeated += 1

    def job_began(self) -> None:
        """A job began in its slot."""
        self.repeated = 0
        if self.reaction > REACTION:
            self.reaction -= self.reaction // 8

    def check_again(self) -> None:
        """A slot was given up: if the clock isn't known well by now, it can't be."""
        self._checks += 1

    def wants_check(self, state: State, enough: int, at: int) -> bool:
        """Whether it is worth a question or two to know the store's clock better; counts them.

        Args:
            state: the record.
            enough: an error that is good enough, if the tolerance can be held with it.
            at: the process's own clock.
        """
        error = self.clock.error(at)
        if error * 3 <= state.tolerance * 2 and error <= enough:
            self._checks = 0
            return False
        if self._checks >= _SHARPEN:
            return False
        self._checks += 1
        return True

    # --- what comes out -----------------------------------------------------------------------------

    def is_uncertain(self, state: State, at: int) -> bool:
        """Whether the store's clock is known too badly to hold the tolerance."""
        return self.clock.error(at) * 3 > state.tolerance * 2 and self._checks >= _SHARPEN

    def error(self, state: State, at: int) -> int:
        """By how much a start may be too early or too late beyond the tolerance; 0: by nothing."""
        if not self.is_uncertain(state, at):
            return 0
        error = self.clock.error(at)
        return (
            (error + 1) // 2
            if self._takes_middle(error)
            else max(0, (error * 3 // 2 - state.tolerance + 1) // 2)
        )

    def error_to_report(self, state: State, at: int) -> int:
        """`error`, if the record doesn't know of one that large for a while to come; else 0."""
        error = self.error(state, at)
        known = state.error >= error and state.error_until - self.clock.latest(at) > ERROR_KEPT // 2
        return 0 if known else error

    def tolerance(self, state: State, at: int) -> int:
        """How late a job may begin: as agreed, or what knowing the store's clock that badly allows.

        Others have to know of that: it is no more than what the record was told.
        """
        error = self.clock.error(at)
        if not self.is_uncertain(state, at) or self._takes_middle(error):
            return state.tolerance
        return min(error * 3 // 2, state.tolerance + 2 * state.error)

    def _takes_middle(self, error: int) -> bool:
        return error >= _FAR and not self._strict

    def bounded(self, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        """The range, with bounds as the last reading of the store's clock gives them.

        They are, on one's own clock, when a slot has surely come, and until when it is surely not past its
        tolerance. None of its slots may be used any more if the store's clock was stepped.
        """
        clock = self.clock
        if granted.readings == clock.answers or state is None:
            return granted
        granted.readings = clock.answers
        last = granted.last  # what drift makes uncertain until then is more than it makes for the others
        late = self.tolerance(state, at) + min(granted.latest - state.tolerance, state.credit)
        opens, closes = clock.surely(last), clock.perhaps(last + late) - 1
        if self.is_uncertain(state, at) and self._takes_middle(clock.error(at)):
            # No further from what is certain than the record was told; the next question tells it more.
            opens = max((clock.perhaps(last) + opens) // 2, opens - state.error)
            closes = min(opens + late, closes + state.error)
        granted.after = opens - last
        granted.before = closes - last if granted.steps == clock.steps else -FOREVER
        granted.moves = not state.credit  # with credit, slots may be used late anyway
        granted.all_from, granted.all_until = (
            (FOREVER, -FOREVER) if granted.moves else (opens, granted.instant + granted.before)
        )
        return granted

    def comes(self, slot: Slot, state: State | None) -> float:
        """When, on one's own clock, a slot may come at the earliest; infinity: the queue is held."""
        if state is None or state.held_since is not None:
            return float("inf")
        return self.clock.perhaps(slot.due + state.held_total)

    def now(self, at: int) -> float:
        """What the store's clock reads, in seconds since 1970, as well as it is known."""
        return (self.clock.earliest(at) + self.clock.latest(at)) / 2e6

    def lead(self) -> int:
        """How long before a slot to ask for its grant.

        Room for a question under way, the question itself, a late timer, and for what an event loop that is
        busy with other things makes of it.
        """
        slow, late = self.trips.slow(), self.lateness.slow()
        busy = self.reaction - REACTION
        if slow is None:
            return _FIRST_LEAD + min(_MAX_LATE, busy)
        return 2 * slow + min(_MAX_LATE, (_LATENESS if late is None else late) + busy)

    def together(self, state: State | None) -> int:
        """How long before they come slots are granted; with a limit, their jobs count as running by then."""
        limited = state is not None and state.settings.max_running > 0
        return self.lead() if limited else max(self.lead(), _TOGETHER)

    def lead_behind(self, state: State | None) -> int:
        """How long before a slot to ask for its grant, if somebody else has the slot before it.

        Its owner may be late, and is granted it late only as long as nobody has a later one. So not before
        that slot is over, unless answers would then come too late for this one.
        """
        lead, slow = self.lead(), self.trips.slow()
        if state is None or slow is None:
            return lead
        over = state.settings.interval - state.tolerance - REACTION - self.lateness.typical()
        return min(lead, max(over, 2 * slow))

    def soon(self) -> int:
        """What is to be asked within this is asked with a question that is sent now."""
        return 2 * self.trips.typical() + self.lateness.typical()

    def notice(self, at: int) -> int:
        """How long an answer needs to come back, and its job to begin.

        It is time that nobody uses, and where an answer was slow, its slot is soon asked for once more. So
        this suits the quicker ones, and doubles with each repetition.
        """
        trip = self.trips.typical() if self.repeated else self.trips.quick()
        needed = trip + self.reaction + min(trip, self.clock.error(at))
        return max(needed, min(_MAX_REACTION, needed << min(self.repeated, 20)))
