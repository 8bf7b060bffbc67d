"""Updates a shard's slots from the store's answers."""

from __future__ import annotations

from collections.abc import Sequence

from intervalq._keys.limits import Counting
from intervalq._keys.shards import keyed_on
from intervalq._shard.dispatcher import Dispatcher
from intervalq._shard.grants import GrantRange, Grants
from intervalq._shard.leases import Leases
from intervalq._shard.settlements import Issued, Settlements
from intervalq._shard.store_time import StoreTime
from intervalq._spec.configure import ordered
from intervalq._spec.standing import placed
from intervalq.rules import STARTS, Advance, Answer, Slot, State
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
        self._issued = Issued()

    def take_in(self, question: Advance, answer: Answer, speculative: int, at: int) -> None:
        """Process the answer to a request; `at` is a reading of the process's own clock."""
        state = answer.state
        assert state is not None
        furthest = at + self._time.together(state) + question.notice
        granted = {
            slot: place
            for slot in question.slots
            # An unseen hold may have moved the slot far ahead: then ask about it again. Not if the queue has
            # a limit: the lease of this grant could not be distinguished from that of the second one. Nor if
            # the slot came sooner: it is where the step put it, and could not be granted again.
            if slot.ticket in answer.granted
            and (
                (place := placed(state, slot)) != slot
                or state.settings.max_running > 0
                or self._time.comes(place, state) <= furthest
            )
        }
        here = self._grants.answered(
            {*question.slots}, {*granted}, {*answer.missed}, state.revoked_through, state.running
        )
        for slot, place in granted.items():
            if slot in here:
                at_once = answer.at_once and slot.ticket == answer.granted[0]
                if at_once and place == slot:
                    self._grants.covered = 0  # the slots behind it were set back with it
                self._grants.grant(self._range(place, state, at_once=at_once))
        kept = {*here, *self._grants.tickets}
        for slot in question.slots:
            if slot not in kept and slot.ticket in state.running:
                self._leases.ended(slot.ticket)  # its lease is no longer needed
        last = state.ticket - answer.count
        for slot in reversed(question.slots):
            if slot.ticket not in answer.missed:
                continue
            self._dispatcher.missed(slot, state)
            if slot.ticket == last:  # the step may have taken it back
                last -= 1
            elif slot not in self._grants.doubtful:
                self._grants.empty.append(slot)
        came_sooner = any(place != slot for slot, place in granted.items())
        self._dispatcher.late += bool(answer.at_once and answer.granted and not came_sooner)
        self._take_in_new(answer, state, speculative)
        if state.settings.limits:
            self._note_issued(answer, state)

    def _note_issued(self, answer: Answer, state: State) -> None:
        new = [slot.ticket for slot in answer.taken]
        alive = [*self._grants.coming(), *self._grants.unused, *self._grants.empty]
        first = min([slot.ticket for slot in alive], default=state.ticket + 1)
        if self._key is None:
            self._issued.took(new, [*answer.granted, *new[: answer.begun]], first, state)
        else:
            self._key.keep_from(first)

    def refund(self, settlements: Settlements, state: State, counted: Sequence[str]) -> bool:
        """Refund what slots took that nobody will use. Returns whether there is anything to settle."""
        limits = state.settings.limits
        for slot in self._grants.empty if limits else ():
            if self._key is not None:
                units = ordered(slot.cost, slot.units, tuple(counted), limits)
                self._key.unused(slot._replace(units=units), state.settings.own)
            elif (settled := self._issued.refundable(slot, state)) is not None:
                units = slot.units or tuple([slot.cost if unit == STARTS else 0 for unit in counted])
                taken = {unit: some for unit, some in zip(counted, units, strict=False) if some}
                settlements.refund(settled, taken, limits)
        self._grants.empty.clear()
        return bool(settlements)

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
