"""A shard's connection to its record: sends one command at a time, and keeps the state from the answers."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Final, Protocol

import anyio

from intervalq._keys.each import other_each
from intervalq._keys.limits import alone
from intervalq._keys.shards import keyed_on
from intervalq._shard.leases import LEASE
from intervalq._shard.planner import Ask
from intervalq._shard.store_time import StoreTime
from intervalq._spec import windows
from intervalq._spec.configure import reordered
from intervalq._spec.keys.sharing import has_own_pace
from intervalq._spec.mismatch import OnMismatch, command_for, differences
from intervalq._timing.clock import CLOCK
from intervalq.errors import ConfigMismatch, QueueExists
from intervalq.rules import (
    Advance,
    Answer,
    Command,
    Configure,
    Drop,
    HighWaterMark,
    Inspect,
    Limit,
    Settings,
    Slot,
    State,
)
from intervalq.store import Store

log: Final = logging.getLogger("intervalq")

_SHORT: Final = 200_000
"""At intervals shorter than this, the shard connects before it takes its first ticket."""


class Owner(Protocol):
    """What a connection needs from its shard."""

    def has_slots(self) -> bool:
        """Whether slots of the present record are outstanding here."""
        ...

    def last_start(self) -> int | None:
        """When the last job began, on the process's own clock; None: none has begun."""
        ...

    def has_leases(self) -> bool:
        """Whether the store has leases of this shard, or may have some."""
        ...

    def record_lost(self) -> None:
        """Note that the record of the outstanding slots is gone."""
        ...

    def grants_lost(self) -> None:
        """Note that the store lost writes, and grants with them: these slots have to be granted again."""
        ...

    def clock_stepped(self) -> None:
        """Note that the store's clock was stepped: tickets from before the step must not be used.

        A backward step loses the time since the clock was last read. A granted slot still begins at its
        instant, and by the new clock, the slot of an earlier ticket would begin at about the same time.
        """
        ...

    def hold_changed(self) -> None:
        """Note that the queue was held or resumed, has another end of its pause, or that its clock moved."""
        ...


class Connection:
    """Sends the commands of one shard. If `settings` is None, the queue's own are used."""

    def __init__(
        self,
        queue: str,
        store: Store,
        settings: Settings | None,
        time: StoreTime,
        owner: Owner,
        *,
        on_mismatch: OnMismatch = "raise",
        new: bool = False,
        counted: tuple[str, ...] | None = None,
    ) -> None:
        self.queue = queue
        self.store = store
        self.state: State | None = None
        """The record, as the last answer showed it."""
        self.has_seen = False
        """Whether an answer has shown the record, or that there is none; a refusal of settings has not."""
        self.high_water_mark: HighWaterMark | None = None
        """The highest known ticket, whoever owns it."""
        self.attached = False
        """Whether the store has accepted our settings, or we use the queue's."""
        self.heard_at = 0
        """When the last answer arrived, on the process's own clock."""
        self.calls = 0
        self.regressions = 0
        """How many times the store was found to have lost writes."""
        self._clock = CLOCK.get()
        self._time = time
        self._owner = owner
        self._settings = settings
        limits = () if settings is None else settings.limits
        # The units of limits, in the order in which jobs and slots of this shard list what they take of them.
        self.counted = tuple([limit.unit for limit in limits]) if counted is None else counted
        self._lock = anyio.Lock(fast_acquire=True)  # answers are processed in the order of the requests
        self._gone: str | None = None  # the generation of the last record, if there is none now
        self._on_mismatch: OnMismatch = on_mismatch
        # With `new`: the generation of this handle's record, which distinguishes it from earlier ones.
        self._first = os.urandom(8).hex() if new else None

    async def command(self, command: Command) -> Answer:
        """Send a command for this shard, and process the answer.

        Raises:
            ConfigMismatch: at first contact, if the queue runs with other settings.
            QueueExists: at first contact, if the queue was to be new.
            StoreError: raised by the store.
        """
        # Read now: while this waits, another answer may show a new record.
        generation = self._generation(has_slots=isinstance(command, Advance) and bool(command.release))
        steps = self._time.clock.steps
        async with self._lock:
            if isinstance(command, Advance):
                command = self._up_to_date(command, steps)
            if self._first is not None and not isinstance(command, Inspect | Drop):
                await self._create(self._first)
            while (answer := await self._send(command, generation)).refused:
                await self._agree(answer)
            return answer

    def advance(self, ask: Ask, release: tuple[Slot, ...]) -> Advance:
        """The command that sends a request, and gives these slots back."""
        return Advance(
            release=release,
            slots=ask.slots,
            take=len(ask.costs),
            costs=() if all(cost == 1 for cost in ask.costs) else ask.costs,
            units=ask.units,
            notice=ask.notice,
            reach=ask.reach,
            lease=LEASE,
            ahead=ask.ahead if ask.slots else None,
            high_water_mark=self.high_water_mark,
        )

    @property
    def is_busy(self) -> bool:
        """Whether a command is on its way, or about to be sent."""
        return self._lock.locked()

    async def at_rest(self) -> None:
        """Wait until no command is on its way: its answer may change what to ask for next."""
        if self._lock.locked():
            async with self._lock:
                pass

    def _up_to_date(self, command: Advance, steps: int) -> Advance:
        """A command with the error of the store's clock, as the last answer shows it, and how late it may be.

        If the command waited for others, slots from before a step of that clock are void.
        """
        at, state = self._clock.now(), self.state
        slots = command.slots if self._time.clock.steps == steps else ()
        error = 0 if state is None else self._time.error_to_report(state, at)
        until = self._time.latest_arrival(at) + command.notice if slots else None
        return replace(command, slots=slots, error=error, until=until)

    async def _create(self, nonce: str) -> None:
        """Create the record, unless it exists."""
        state = (await self._send(Advance(), None, nonce=nonce)).state
        if state is None or state.generation != nonce:
            raise QueueExists(self.queue)
        self._first = None

    async def _agree(self, refusal: Answer) -> None:
        """Use the settings of the record, or change them, after a command was refused for its settings."""
        assert refusal.state is not None
        if has_own_pace(refusal.state) is not None and not keyed_on(self.store):
            raise other_each(self.queue, refusal.state)
        if self.attached:  # the queue's limits were changed: the next attempt knows them
            self._learn(refusal, dropped=False)
            return
        assert self._settings is not None
        ours, theirs = self._settings, refusal.state.settings
        if keyed_on(self.store):
            ours = replace(ours, tolerance=theirs.tolerance)  # that of a key follows from the common one
        same_limits = set(ours.limits) == set(theirs.limits)  # in any order
        is_same = same_limits and ours == replace(theirs, limits=ours.limits)
        if is_same or self._on_mismatch == "adopt":
            self._settings = theirs
        elif self._on_mismatch == "update" and ours.tolerance == theirs.tolerance:
            limits = None if ours.limits == theirs.limits else ours.limits
            if limits is not None and keyed_on(self.store):
                limits = limits[: ours.own]
            change = Configure(
                interval=ours.interval if ours.auto is None else None,
                burst=ours.burst,
                max_running=ours.max_running,
                limits=limits,
                auto=ours.auto,
            )
            await self._send(change, None, attach=False)
        else:
            fixed = "tolerance" if self._on_mismatch == "update" else ""
            command = command_for(self.queue, ours, theirs)
            raise ConfigMismatch(self.queue, *differences(ours, theirs), fixed=fixed, command=command)

    async def _send(
        self, command: Command, generation: str | None, *, attach: bool = True, nonce: str | None = None
    ) -> Answer:
        state = self.state
        command = replace(
            command,
            settings=state.settings if state is not None and self.attached else self._settings,
            attach=attach and not self.attached,
            generation=generation or self._generation(),
            nonce=nonce or os.urandom(8).hex(),
        )
        self.calls += 1
        sent = self._clock.now()
        if self.counted and isinstance(command, Advance) and command.settings is not None:
            answer = await self._advance(command, command.settings.limits)
        else:
            answer = await self.store.apply(self.queue, command)
        self._measure(sent, self._clock.now(), answer)
        if not answer.refused:
            if not isinstance(command, Inspect):  # this one compares no settings
                self.attached = self.attached or answer.state is not None
            self._learn(answer, dropped=isinstance(command, Drop))
        return answer

    async def _advance(self, command: Advance, limits: tuple[Limit, ...]) -> Answer:
        """Send a command about slots that take units: the store has them in the order of its limits."""
        answer = await self.store.apply(self.queue, reordered(command, self.counted, limits))
        listed = {slot.ticket: slot.units for slot in command.slots}
        units = (*(listed[ticket] for ticket in answer.missed), *command.units)[: answer.count]
        if not any(units):
            return answer
        # Slots have the units that were requested for them, even if the queue has no limits any more.
        return replace(answer, units=units, dues=answer.dues or tuple([slot.due for slot in answer.taken]))

    def adopt(self, settings: Settings, counted: tuple[str, ...]) -> None:
        """Use these settings from now on, unless the handle has none of its own; and use these units."""
        self.counted = counted
        if self._settings is not None:
            self._settings = settings

    @property
    def has_own_limits(self) -> bool:
        """Whether its limits, if it has any, are not only those that all keys of a queue share."""
        return keyed_on(self.store) is None or (self._settings is not None and self._settings.own > 0)

    @property
    def is_held(self) -> bool:
        """Whether the queue was held at the last answer."""
        return self.state is not None and self.state.held_since is not None

    @property
    def is_limited(self) -> bool:
        """Whether the queue has a limit of running jobs."""
        return self.state is not None and self.state.settings.max_running > 0

    def is_new(self) -> bool:
        """Whether nothing was sent yet, and the interval is short compared with the time to connect."""
        is_first = self.calls == 0 and self._time.trips.slow() is None
        return is_first and self._settings is not None and self._settings.interval < _SHORT

    def last_ticket(self) -> int:
        """The highest known ticket; 0: none is known."""
        return self.high_water_mark.ticket if self.high_water_mark is not None else 0

    def _measure(self, sent: int, received: int, answer: Answer) -> None:
        self.heard_at = received
        time = self._time
        steps = time.clock.steps
        took: int | None = received - sent
        if answer.trip is not None and sent <= answer.trip[0] <= answer.trip[1] <= received:
            sent, received = answer.trip
        if self.calls == 1:
            # The command also connected, and may have imported a driver: counted as a round trip, that would
            # move slots far ahead.
            took = None if answer.trip is None else received - sent
        if took is not None:
            time.took(took, way=received - sent)
        time.reading(sent - answer.blur, received + answer.blur, answer.now)
        if time.clock.steps != steps:
            self._owner.clock_stepped()

    def _generation(self, *, has_slots: bool = False) -> str | None:
        """The record that a command is for; None: any. Slots are given back to their own."""
        if self.state is None:
            return self._gone
        return self.state.generation if has_slots or self._matters(self.state) else None

    def _matters(self, state: State) -> bool:
        """Whether losing the present record would matter: its successor then begins with a quiet interval.

        The record of a keyed queue is forgotten on purpose when it has been idle for a while.
        """
        if not state.settings.ephemeral or self._owner.has_slots() or self._owner.has_leases():
            return True
        last = self._owner.last_start()
        kept = windows.kept(
            alone(state) if keyed_on(self.store) else state
        )  # common ones aren't of this record
        matters = state.settings.burst * state.settings.interval + kept
        return last is not None and self._clock.now() - last <= matters

    def _learn(self, answer: Answer, *, dropped: bool) -> None:
        before, state = self.state, answer.state
        self.state, self.has_seen = state, True
        is_same = before is not None and state is not None and before.generation == state.generation
        if before is not None and not (is_same or dropped or before.settings.ephemeral):
            # Report it now: a handle that only inspects would not notice later that there is another record.
            self.regressions += 1
            anew = "" if state is None else ", and was created again"
            log.warning("queue %r: its record was lost or dropped%s", self.queue, anew)
        if state is None:
            if before is not None:
                self._gone = before.generation if self._matters(before) else None
            self.high_water_mark = None
            self._owner.record_lost()
            return
        if before is not None and not is_same:
            self._owner.record_lost()
        if answer.healed:
            self.regressions += 1
            log.warning(
                "queue %r: the store lost writes that it had acknowledged; the queue goes on from ticket %d, "
                "and one start may have been early (see `intervalq doctor`)",
                self.queue,
                state.ticket,
            )
        mark = HighWaterMark(state.ticket, state.due, state.late_total)
        if is_same and before is not None and state.current < before.current:
            self._owner.grants_lost()
        known = self.high_water_mark if is_same else None
        if known is not None and (known.ticket > mark.ticket or known.late_total > mark.late_total):
            # The store lost writes, and this command could not repair that: the next request does.
            mark = HighWaterMark(*map(max, known, mark))
        self.high_water_mark = mark
        if before is None or _hold(before) != _hold(state):
            self._owner.hold_changed()


def _hold(state: State) -> tuple[int, int | None, int]:
    return state.held_total, state.held_since, state.held_until
