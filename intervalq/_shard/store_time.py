"""The store's clock in terms of the shard's own: when a slot has come, and when it is over.

Pure: readings go in, bounds come out. A job begins only when its slot has surely come and is surely not past
its tolerance, as with TrueTime (Corbett et al., Spanner, 2012). If the store is too far away to know that
within the tolerance, the job begins in the middle of the bounds, and the shard reports its possible error to
the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from intervalq._shard.grants import GrantRange
from intervalq._timing.estimates import Recent, StoreClock
from intervalq.rules import ERROR_KEPT, FOREVER, Slot, State

if TYPE_CHECKING:  # few queues have hours
    from intervalq._hours.window import Hours

REACTION: Final = 200
"""How long a job takes to begin after the answer with its grant has arrived, on an idle event loop."""

_MAX_REACTION: Final = 1_000_000
"""The maximum of `reaction`, which doubles each time that a slot is already over when its answer comes."""

_LATENESS: Final = 2_000
"""How late an event loop is assumed to wake until that has been measured."""

_MAX_LATE: Final = 100_000
"""The most by which a request is sent earlier because timers are late. With later timers, slots are granted
late, which costs only their lateness; slots granted long before they come would still start during a pause,
and would block a queue with a limit."""

_TOGETHER: Final = 50_000
"""Slots that come within this time of a requested one are granted with it."""

_FIRST_LEAD: Final = 50_000
"""How long before a slot to request its grant while no round trip has been measured."""

_UNTIL: Final = 100_000
"""How long a request may take, in addition to two slow round trips, for its slots to be granted late."""

_SHARPEN: Final = 5
"""The most consecutive requests that are spent on a better estimate of the store's clock."""

_BLUR: Final = 100_000
"""By how much the time at which the hours of a queue begin may be unknown."""

_FAR: Final = 2_000
"""If the bounds are closer than this, a job waits until its slot has surely come, however small the tolerance
is: starting in the middle of the bounds gave more short gaps there."""


class StoreTime:
    """The store's clock, the round trips to it, and the reaction time of this process, all in microseconds.

    Args:
        strict: wait until a slot has surely come, however far away the store is.
        moves: whether granted slots that directly follow each other may move if a job begins late.
        beside: the `StoreTime` of another shard in this event loop with the same store. They learn from each
            other, so that the shard of a key with a single job need not ask for the store's clock itself.
        hours: when jobs may begin; None: all day.
    """

    def __init__(
        self,
        *,
        strict: bool = False,
        moves: bool = True,
        beside: StoreTime | None = None,
        hours: Hours | None = None,
    ) -> None:
        self.clock = StoreClock()
        self.trips: Recent = Recent() if beside is None else beside.trips
        """From calls of the store to their answers."""
        self.ways: Recent = Recent() if beside is None else beside.ways
        """The same, without the time that this process itself took, as far as the driver reports it."""
        self.lateness: Recent = Recent() if beside is None else beside.lateness
        """How late the process woke from its recent sleeps."""
        self._shared = self if beside is None else beside
        self.reaction = REACTION
        """How long jobs take to begin after the answer with their grant, learned from late ones."""
        self.hours = hours
        self._strict = strict
        self._moves = moves
        self.checks = 0
        """How many requests in a row were spent on a better estimate, by all that learn from each other."""
        self.repeated = 0
        """How many answers in a row came too late for their slot."""

    # --- observations -------------------------------------------------------------------------------

    def took(self, trip: int, way: int) -> None:
        """Note how long a call of the store took, and how much of that was the way there and back."""
        self.trips.add(trip)
        self.ways.add(way)

    def reading(self, sent: int, received: int, now: int) -> None:
        """Note that the store's clock read `now` between two readings of the local one.

        A reading that shows a step replaces the estimate, and may have been under way for seconds. If so,
        better readings are requested before its error is reported, because all shards and windows allow for
        that error as long as the record keeps it. If not, no others are requested: a clock that is stepped
        again and again would keep the jobs of this shard from beginning.
        """
        steps, error = self.clock.steps, self.clock.error(received)
        self.clock.learn(sent, received, now)
        if self._shared is not self:
            self._shared.clock.learn(sent, received, now)
        if self.clock.steps != steps and self.clock.error(received) > 2 * error:
            self._shared.checks = 0

    def answer_came_late(self, waited: int) -> None:
        """Note that a slot for immediate use was over before its job could begin.

        Args:
            waited: the time since the answer arrived. If it is long, this process is slow, and will be for a
                while. Otherwise the answer was slow: the next may be faster, so only repetitions allow more
                time.
        """
        if waited > self.reaction:
            self.reaction = min(_MAX_REACTION, 2 * self.reaction)
        else:
            self.repeated += 1

    def job_began(self) -> None:
        """Note that a job began in its slot."""
        self.repeated = 0
        self.reaction = max(REACTION, self.reaction - self.reaction // 8)

    def check_again(self) -> None:
        """Note that a slot was given up, which counts as one attempt to know the clock better."""
        self._shared.checks += 1

    def wants_check(self, state: State, enough: int, at: int) -> bool:
        """Whether to spend another request on a better estimate of the store's clock; counts these requests.

        Args:
            state: the record.
            enough: an error that is small enough, if it also allows the tolerance to be kept.
            at: the process's own clock.
        """
        if self._shared is not self:
            self.clock.narrow(self._shared.clock, at)
        error = self.clock.error(at)
        if error * 3 <= state.tolerance * 2 and error <= enough:
            self._shared.checks = 0
            return False
        if self._shared.checks >= _SHARPEN:
            return False
        self._shared.checks += 1
        return True

    # --- conclusions --------------------------------------------------------------------------------

    def is_uncertain(self, state: State, at: int) -> bool:
        """Whether the estimate of the store's clock is too inexact to keep the tolerance."""
        return self.clock.error(at) * 3 > state.tolerance * 2 and self._shared.checks >= _SHARPEN

    def error(self, state: State, at: int) -> int:
        """By how much a start may be too early, or too late beyond the tolerance; 0: not at all."""
        if not self.is_uncertain(state, at):
            return 0
        error = self.clock.error(at)
        return (
            (error + 1) // 2
            if self._takes_middle(error)
            else max(0, (error * 3 // 2 - state.tolerance + 1) // 2)
        )

    def error_to_report(self, state: State, at: int) -> int:
        """`error`, unless the record already has one as large for some time to come; then 0."""
        error = self.error(state, at)
        known = state.error >= error and state.error_until - self.clock.latest(at) > ERROR_KEPT // 2
        return 0 if known else error

    def tolerance(self, state: State, at: int) -> int:
        """How late a job may begin: the agreed tolerance, or more if the store's clock is uncertain.

        The excess is never more than the record says, because others rely on that.
        """
        error = self.clock.error(at)
        if not self.is_uncertain(state, at) or self._takes_middle(error):
            return state.tolerance
        return min(error * 3 // 2, state.tolerance + 2 * state.error)

    def _takes_middle(self, error: int) -> bool:
        return error >= _FAR and not self._strict

    def bounded(self, granted: GrantRange, state: State | None, at: int) -> GrantRange:
        """The range, with its bounds updated to the last reading of the store's clock.

        The bounds say, on the process's own clock, when a slot has surely come, and until when it is surely
        not past its tolerance. If the store's clock was stepped, none of the slots may be used any more.
        """
        clock = self.clock
        if granted.readings == clock.answers or state is None:
            return granted
        granted.readings = clock.answers
        last = granted.last  # the uncertainty from drift is largest for the last slot
        late = self.tolerance(state, at) + min(granted.latest - state.tolerance, state.credit)
        opens, closes = clock.surely(last), clock.perhaps(last + late) - 1
        if self.is_uncertain(state, at) and self._takes_middle(clock.error(at)):
            # No further from the certain time than the record says: it is told a larger error next.
            if any(limit.edge is not None for limit in state.settings.limits):  # none begins before an edge
                closes = min(opens + late, closes + 2 * state.error)
            else:
                opens = max((clock.perhaps(last) + opens) // 2, opens - state.error)
                closes = min(opens + late, closes + state.error)
        granted.after = opens - last
        granted.before = closes - last if granted.steps == clock.steps else -FOREVER
        # With credit, slots may be used late anyway; with limits, each counts where it is.
        granted.moves = self._moves and not (state.credit or state.settings.limits)
        granted.all_from, granted.all_until = (
            (FOREVER, -FOREVER) if granted.moves else (opens, granted.instant + granted.before)
        )
        return granted

    def comes(self, slot: Slot, state: State | None) -> float:
        """The earliest time, on the process's own clock, for a slot to come; infinity: the queue is held."""
        if state is None or state.held_since is not None:
            return float("inf")
        return self.clock.perhaps(slot.due + state.held_total)

    def opens(self, at: float, ahead: int = 0) -> float:
        """From when on jobs may begin, on the process's own clock: not before `at`.

        `ahead`: for how long after `at` the hours must still be open.
        """
        if self.hours is None or at == float("inf"):
            return at
        earliest = self.clock.earliest(round(at))
        opening = self.hours.opening(earliest, self.clock.latest(round(at)) + ahead)
        return at if opening == earliest else self.clock.surely(opening)

    def shut_until(self, state: State | None, at: int) -> float | None:
        """Until when to ask for no slots, outside of the hours; None: they may be asked for.

        Slots are granted a little before they come, so it is shut by so much before the hours end. If that is
        not later than `at`, the store's clock has to be read anew: in a long wait, its estimate blurs.
        """
        if self.hours is None:
            return None
        if not self.clock.known:
            return at
        opens = self.opens(at, self.together(state))
        if opens <= at:
            return None
        blur = self.clock.error(round(opens))
        return opens - blur if blur > _BLUR else opens

    def now(self, at: int) -> float:
        """The estimated reading of the store's clock, in seconds since 1970."""
        return (self.clock.earliest(at) + self.clock.latest(at)) / 2e6

    def lead(self) -> int:
        """How long before a slot to request its grant.

        This leaves time for a request in flight, the request itself, a late timer, and the delays of a busy
        event loop.
        """
        slow, way, late = self.trips.slow(), self.ways.slow(), self.lateness.slow()
        if slow is None or way is None:
            return _FIRST_LEAD
        # Answers that were processed late are no reason to ask long before a slot, either.
        busy = self.reaction - REACTION + 2 * (slow - way)
        return 2 * way + min(_MAX_LATE, (_LATENESS if late is None else late) + busy)

    def together(self, state: State | None) -> int:
        """How long before they come slots may be granted; under a limit, their jobs count as running then."""
        limited = state is not None and state.settings.max_running > 0
        return self.lead() if limited else max(self.lead(), _TOGETHER)

    def lead_behind(self, state: State | None, interval: int | None = None) -> int:
        """How long before a slot to request its grant if the previous slot belongs to another shard.

        That shard may be late, and can be granted its slot late only while nobody has a later one. So the
        request waits until that slot is over, unless its answer would then come too late for this one.

        Args:
            state: the record.
            interval: how much earlier the previous slot comes; None: by the queue's interval.
        """
        lead, slow = self.lead(), self.trips.slow()
        if state is None or slow is None:
            return lead
        apart = state.settings.interval if interval is None else interval
        over = apart - state.tolerance - REACTION - self.lateness.typical()
        return min(lead, max(over, 2 * slow))

    def soon(self) -> int:
        """Requests that will be due within this time are combined with one that is sent now."""
        return 2 * self.trips.typical() + self.lateness.typical()

    def latest_arrival(self, at: int) -> int:
        """Until when, on the store's clock, a request sent now is to arrive for late grants."""
        return self.clock.latest(at) + _UNTIL + 2 * (self.trips.slow() or 0)

    def notice(self, at: int) -> int:
        """How long an answer needs to arrive, and its job to begin.

        This time goes unused, and a slot whose answer was slow is soon requested again. So this allows for
        the faster answers, and doubles with each repetition.
        """
        trip = self.trips.typical() if self.repeated else self.trips.quick()
        needed = trip + self.reaction + min(trip, self.clock.error(at))
        return max(needed, min(_MAX_REACTION, needed << min(self.repeated, 20)))
