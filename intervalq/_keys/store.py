"""The store as the shard of a key uses it if all keys are under one rate: each step is on two records."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import anyio

from intervalq._keys.each import other_each
from intervalq._keys.limits import (
    Counting,
    common_units,
    in_order,
    of_common,
    of_key,
    of_shard,
)
from intervalq._keys.places import Places
from intervalq._keys.view import CommonView
from intervalq._spec.mismatch import OnMismatch, command_for, differences
from intervalq.errors import ConfigMismatch, InvalidOption, UnsupportedOperation
from intervalq.keyed import Common, KeyedAnswer, Place, has_own_pace, is_plain, shares
from intervalq.rules import Advance, Answer, Command, Configure, Drop, Inspect, Settings, Slot, State
from intervalq.store import Store, Waking, pairing

_NOT_SHARED: Final = (
    "queue {!r} now has {} or max_running, which keys under one rate (each=) can't have: "
    "remove them with configure(), or use keys without each="
)


class KeyStore:
    """A store for one key, which takes slots of the common queue in the same steps.

    Args:
        store: the store of both records.
        record: the name of the common one.
        settings: the settings of the common queue; None: those that it has.
        own_pace: whether the key has an interval of its own.
        weight: how many slots the key takes in a turn, unless its record says so.
        view: what all keys of the handle know of the common queue.
        on_mismatch: what to do if the common queue has other settings: see `IntervalQueue`.
    """

    def __init__(
        self,
        store: Store,
        record: str,
        settings: Settings | None,
        *,
        own_pace: bool,
        weight: int,
        view: CommonView,
        on_mismatch: OnMismatch,
    ) -> None:
        self.url = store.url
        self.behind = store
        """The store of both records."""
        self.weight = self._own_weight = weight
        self.own_pace = own_pace
        self._record = record
        self._settings = settings
        self._on_mismatch: OnMismatch = on_mismatch
        self._view = view
        self._agrees = False  # whether handle and common record have the same settings, given or adopted
        self._places = Places()
        self._generation: str | None = None  # the generation of the common record that has these slots
        self._own: str | None = None  # that of the key's record, whose tickets have them
        self._heard: State | None = None  # the common record of the last answer
        self._placed: tuple[str, int, int] | None = None  # changes when the key is set back or uses a place
        self._late_total = 0  # `late_total` of the common record at that moment
        self._is_held = False  # whether the key itself is held

    is_of_key: Final = True
    """See `keyed_on`."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        store = pairing(self.behind)
        while True:
            asked = self._with_refunds(in_order(command, self._common_settings()))
            known = self._known(asked)
            try:
                made = await store.apply_keyed(queue, of_key(asked), known, now)
            except BaseException:
                self._places.doubt()
                raise
            self._learn(made.common, compared=not isinstance(command, Inspect | Drop))
            self._keep(asked, known, made)
            self._follow(made)
            if not made.answer.refused or made.answer.state is not None or made.common is None:
                break
            if command.attach:  # otherwise only the limits were changed: the next attempt knows them
                await self._agree(made.common)
        common, state = made.common, made.answer.state
        paced = None if state is None else has_own_pace(state)
        if state is not None and paced not in {None, self.own_pace} and isinstance(command, Advance):
            raise other_each(queue, state, of_key(command).settings)
        if common is not None and not shares(common.settings):
            raise InvalidOption(_NOT_SHARED.format(self._record, "a burst"))
        if state is not None and not is_plain(state.settings):
            raise InvalidOption(_NOT_SHARED.format(queue, "a burst, fixed windows"))
        return of_shard(made.answer, common)

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return await self.behind.names()

    async def aclose(self) -> None:
        """See `Store.aclose`: the store of all keys stays open."""

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`: at the end of a hold of the key, or of the common queue."""
        store = self.behind
        if not isinstance(store, Waking):
            raise UnsupportedOperation(self.url, "it can't wake shards at the end of a hold")
        async with store.wakeups(queue) as own, store.wakeups(self._record) as common:

            async def woken() -> None:
                async with anyio.create_task_group() as group:

                    async def wait(each: Callable[[], Awaitable[None]]) -> None:
                        await each()
                        group.cancel_scope.cancel()

                    group.start_soon(wait, own)
                    group.start_soon(wait, common)

            yield woken

    @property
    def common(self) -> State | None:
        """The common record, as far as the handle knows it."""
        return self._view.state

    def counts_by(self, state: State) -> Counting:
        """The clocks by which limits counted at the last answer, which shows this record of the key."""
        record = self._heard or state
        own = (state.held_total, state.lag) if state.settings.own else None
        return Counting(record.held_total, record.lag, own)

    def unused(self, slot: Slot, own: int) -> None:
        """Note that a ticket won't be used: what it took of common limits is refunded with a later request.

        The units of the slot are in the order of the limits of the key's shard; `own` of these are the key's.
        """
        self._places.unused(slot, own)

    def keep_from(self, ticket: int) -> None:
        """Note that tickets before this one have been used."""
        self._places.keep_from(ticket)

    def turn(self, ticket: int) -> int:
        """How many slots to request from this ticket on: a whole turn, or one if the ticket has its place."""
        return 1 if self.has_place(ticket) else self.weight

    def has_place(self, ticket: int) -> bool:
        """Whether a common slot is known for a ticket."""
        return ticket in self._places.known

    def behind_other(self, ticket: int) -> int | None:
        """How long before a ticket's slot that of another key comes; None: the one before is this key's."""
        common, before, place = (
            self.common,
            self._places.known.get(ticket - 1),
            self._places.known.get(ticket),
        )
        if common is None or before is None:
            return None if common is None else common.settings.interval
        after = common.ticket if place is None else place.ticket - 1
        return None if after == before.ticket else common.settings.interval

    def moved(self, slot: Slot, state: State) -> int:
        """How much later a slot comes than the key's record says: late grants to others moved its place.

        The places of other processes' slots aren't known here, but all places have moved since the key was
        set back to one of them, or used one. If a slot were requested before those in front of it, it would
        get a place behind theirs, and they would have to wait for that one.

        This leaves out half of the tolerance: a request that is a little early is granted all the same, but
        one that is late costs all keys the time by which it is.
        """
        common, place = self.common, self._places.known.get(slot.ticket)
        if common is None or common.generation != self._generation:
            return 0
        if place is None:
            length = common.late_total - self._late_total
        else:
            length = place.due + common.held_total - slot.due - state.held_total
        return max(0, length - common.tolerance // 2)

    def free(self, state: State, until: int) -> int:
        """The first common slot that nobody has, on the key's clock; it may be in the past.

        Args:
            state: the record of the key.
            until: when the holds of both records end, on the store's clock.
        """
        common = self.common
        if common is None:
            return state.due
        slot = common.due + common.settings.interval
        return slot + _held_until(common, until) - _held_until(state, until)

    def for_forecasts(self, state: State, until: int) -> State:
        """The record of the key, from which to compute when its next jobs can begin.

        Its clock is as it will be at the end of a hold, `until`: meanwhile, that of a key may go on. If only
        the common record is held, the key's is shown as held, too. The common limits count units for longer
        by the error that the common record has, which may be that of another key's process.
        """
        if (common := self.common) is not None and not state.settings.own:
            state = replace(state, error=common.error, error_until=common.error_until)
        if state.held_since is None or self._is_held:
            return state
        return replace(state, held_total=state.held_total - max(0, until - state.held_since))

    def _common_settings(self) -> Settings | None:
        common = self.common
        return common.settings if common is not None and self._agrees else self._settings

    def _with_refunds(self, command: Command) -> Command:
        """The command, which also reports what nobody will use of the slots of tickets."""
        if not isinstance(command, Advance) or command.settings is None or self.common is None:
            return command
        if self._view.generation != self._generation:
            self._places.forget()
        return replace(command, settled=(*command.settled, *self._places.refunds(self.common)))

    def _known(self, command: Command) -> Common:
        if self._view.generation != self._generation:
            self._places.forget()
        known = self._places.known
        places = tuple([Place(*each) for each in known.items()])
        release: tuple[Slot, ...] = ()
        advance = command if isinstance(command, Advance) else Advance()
        if advance.release and not (advance.slots or advance.take):
            # Nobody waits any more: slots at the end become free again.
            held = [(known[slot.ticket], slot) for slot in advance.release if slot.ticket in known]
            units = [common_units(slot.units, advance.settings) for _, slot in held]
            taken = zip(held, units, strict=True)
            release, places = tuple([place._replace(units=some) for (place, _), some in taken]), ()
        elif advance.settings is not None:
            for slot in advance.release:
                self._places.unused(slot, advance.settings.own)
        return Common(
            record=self._record,
            settings=self._common_settings(),
            own_pace=self.own_pace,
            weight=self._own_weight,
            generation=self._view.generation,
            nonce=os.urandom(8).hex(),
            high_water_mark=self._view.high_water_mark,
            places=places,
            release=release,
            settled=of_common(advance),
        )

    def _keep(self, command: Command, known: Common, made: KeyedAnswer) -> None:
        """Remember the places of slots that may be asked for again."""
        if known.release:
            self._places.known.clear()
        is_anew = self._is_anew(made.answer)
        if not isinstance(command, Advance):
            return
        generation = None if made.common is None else made.common.generation
        places = dict(made.places)
        if known.generation != generation or is_anew:  # the listed slots belong to a record that is gone
            places = dict([place for place in made.places if place not in known.places])
        elif command.settings is not None:
            self._places.replaced(command.slots, places, command.settings.own)
        if known.generation != generation:
            self._places.forget()
        # A slot that is granted late is requested again together with the granted ones behind it.
        first = 0
        if command.slots:
            first = command.slots[0].ticket
        elif made.answer.begun:
            first = made.places[0].ticket
        if made.common is not None:
            own = () if command.settings is None else command.settings.limits[: command.settings.own]
            self._places.learn(places, first, made.common, own)
            if (state := made.answer.state) is not None and own:
                new = made.answer.taken[: made.answer.begun]
                self._places.granted((*made.answer.granted, *(slot.ticket for slot in new)), state.lag)
        self._generation = generation

    def _is_anew(self, answer: Answer) -> bool:
        """Whether the key's record isn't the last one any more, whose tickets are forgotten then."""
        own = None if answer.state is None else answer.state.generation
        if own == self._own or (answer.refused and own is None):
            return False
        self._own = own
        self._places.forget_tickets()
        return True

    def _follow(self, made: KeyedAnswer) -> None:
        """Note whether the key is held, and what the late grants to others add up to at its last place."""
        state, common = made.answer.state, made.common
        placed = None if state is None else (state.generation, state.current, state.late_total)
        if placed != self._placed and common is not None:
            self._placed, self._late_total = placed, common.late_total
        self.weight = self._own_weight if state is None or self.own_pace else state.weight or self._own_weight
        since = None if state is None else state.held_since
        alone = common is None or common.held_since is None
        self._is_held = since is not None and (alone or since < made.answer.now)

    def _learn(self, common: State | None, *, compared: bool = True) -> None:
        self._view.learn(common)
        self._heard = common
        self._agrees = common is not None and (self._agrees or compared)

    async def _agree(self, common: State) -> None:
        """Use the settings of the common record, or change them, after a command was refused for its own."""
        ours, theirs = self._settings, common.settings
        same_limits = ours is not None and set(ours.limits) == set(theirs.limits)  # in any order
        is_same = ours is None or (same_limits and ours == replace(theirs, limits=ours.limits))
        if ours is None or is_same or self._on_mismatch == "adopt":
            return  # the next command has these
        if self._on_mismatch == "update" and ours.tolerance == theirs.tolerance:
            change = Configure(
                interval=ours.interval,
                burst=ours.burst,
                max_running=ours.max_running,
                limits=ours.limits if ours.limits != theirs.limits else None,
            )
            answer = await self.behind.apply(self._record, change)
            self._learn(answer.state)
            return
        self._agrees = False
        fixed = "tolerance" if self._on_mismatch == "update" else ""
        command = command_for(self._record, ours, theirs)
        raise ConfigMismatch(self._record, *differences(ours, theirs), fixed=fixed, command=command)


def _held_until(state: State, until: int) -> int:
    """What `held_total` will be at the end of a hold."""
    return state.held_total + (0 if state.held_since is None else max(0, until - state.held_since))
