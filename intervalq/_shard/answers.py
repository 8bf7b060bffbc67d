"""Updates a shard's slots from the store's answers."""

from __future__ import annotations

from intervalq._keys.limits import Counting
from intervalq._keys.store import keyed_on
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import GrantRange, Grants
from intervalq._shard.leases import Leases
from intervalq._shard.store_time import StoreTime
from intervalq.rules import Advance, Answer, Slot, State
from intervalq.store import Store


class Answers:
    """Updates a shard with what the store granted, missed and issued.

    Args:
        grants: the shard's slots, which are updated.
        time: the store's clock.
        leases: notes slots that won't be used.
        dispatcher: counts missed slots.
        store: the store, which knows by which clock limits count.
    """

    def __init__(
        self, grants: Grants, time: StoreTime, leases: Leases, dispatcher: Dispatcher, store: Store
    ) -> None:
        self._key = keyed_on(store)
        self._grants = grants
        self._time = time
        self._leases = leases
        self._dispatcher = dispatcher

    def take_in(self, question: Advance, answer: Answer, speculative: int, at: int) -> None:
        """Process the answer to a request; `at` is a reading of the process's own clock."""
        state = answer.state
        assert state is not None
        furthest = at + self._time.together(state) + question.notice
        granted = [
            slot
            for slot in question.slots
            # An unseen hold may have moved the slot far ahead: then ask about it again. Not if the queue has
            # a limit: the lease of this grant could not be distinguished from that of the second one.
            if slot.ticket in answer.granted
            and (state.settings.max_running > 0 or self._time.comes(slot, state) <= furthest)
        ]
        here = self._grants.answered(
            {*question.slots}, {*granted}, {*answer.missed}, state.revoked_through, state.running
        )
        for slot in granted:
            if slot in here:
                at_once = answer.at_once and slot.ticket == answer.granted[0]
                if at_once:
                    self._grants.covered = 0  # the slots behind it were set back with it
                self._grants.grant(self._range(slot, state, at_once=at_once))
        kept = {*here, *self._grants.tickets}
        for slot in question.slots:
            if slot not in kept and slot.ticket in state.running:
                self._leases.ended(slot.ticket)  # its lease is no longer needed
        for slot in question.slots:
            if slot.ticket in answer.missed:
                self._dispatcher.missed(slot, state)
        self._dispatcher.late += bool(answer.at_once and answer.granted)
        self._take_in_new(answer, state, speculative)

    async def pass_void(self, state: State | None) -> None:
        """Drop tickets whose leases filled the queue, and that became void when it had room again.

        They still count as running jobs, so their leases are ended before new tickets are taken. Otherwise a
        shard whose slots are over by the time it hears of them would fill the queue with each new ticket,
        which then becomes void when the lease of the previous one ends.
        """
        if state is None or not state.settings.max_running or state.held_since is not None:
            return
        tickets, any_void = self._grants.tickets, False
        while tickets and tickets[0].ticket <= state.revoked_through:
            self._leases.ended(tickets[0].ticket)
            self._dispatcher.missed(tickets.popleft(), state)
            any_void = True
        if any_void:
            await self._leases.settle()

    def _take_in_new(self, answer: Answer, state: State, speculative: int) -> None:
        new, begun = answer.taken, answer.begun
        in_row = not (answer.costs or answer.dues)
        if begun:
            at_once = answer.at_once and not answer.granted
            for number, slot in enumerate(new[:1] if in_row else new[:begun]):
                self._grants.grant(
                    self._range(
                        slot, state, count=begun if in_row else 1, at_once=at_once and not number,
                        speculative=speculative > 0 and in_row,
                    )
                )  # fmt: skip
        self._grants.tickets.extend(new[begun:])

    def _range(
        self, first: Slot, state: State, *, count: int = 1, at_once: bool = False, speculative: bool = False
    ) -> GrantRange:
        """Granted slots, as fixed instants on the store's clock."""
        key = self._key
        counts = Counting(state.held_total, state.lag) if key is None else key.counts_by(state)
        return GrantRange(
            first, held_total=state.held_total, counts=counts, steps=self._time.clock.steps,
            count=count, granted_at=state.last_now, latest=state.tolerance + state.credit,
            step=state.settings.interval, at_once=at_once, speculative=speculative,
        )  # fmt: skip
