"""A shard's connection to its record: sends one command at a time, and keeps what the answers tell."""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from typing import Final, Protocol

import anyio

from intervalq._shard.store_time import StoreTime
from intervalq._spec import parse
from intervalq._timing.clock import CLOCK
from intervalq.errors import ConfigMismatch
from intervalq.rules import Answer, Command, Drop, Inspect, Mark, Settings, State
from intervalq.store import Store

log: Final = logging.getLogger("intervalq")

_SHORT: Final = 200_000
"""At shorter intervals a connection is made before the first ticket is taken."""


class Owner(Protocol):
    """What a connection tells its shard, and asks it."""

    def has_slots(self) -> bool:
        """Whether slots of the present record are outstanding here."""
        ...

    def last_start(self) -> int | None:
        """When a job began last, on the process's own clock; None: none did."""
        ...

    def has_leases(self) -> bool:
        """Whether the store has a lease of this shard, or may have."""
        ...

    def record_lost(self) -> None:
        """The record of the slots that are outstanding is gone."""
        ...

    def grants_lost(self) -> None:
        """The store lost writes, and with them that slots were granted: they have to be granted again."""
        ...

    def clock_stepped(self) -> None:
        """The store's clock was stepped: tickets from before are not to be used.

        A step back loses the time since the clock was last read. A slot that was granted begins at its
        instant all the same, and by the new clock, one with an earlier ticket would begin beside it.
        """
        ...

    def hold_changed(self) -> None:
        """The queue was held, resumed, or its clock moved against the store's."""
        ...


class Connection:
    """Commands in the name of one shard. `settings` of None: the queue's own."""

    def __init__(
        self, queue: str, store: Store, settings: Settings | None, time: StoreTime, owner: Owner
    ) -> None:
        self.queue = queue
        self.store = store
        self.state: State | None = None
        """The record, as the last answer showed it."""
        self.mark: Mark | None = None
        """The highest ticket that is known of, whoever has it."""
        self.attached = False
        """The store has accepted our settings, or the queue's are taken."""
        self.heard_at = 0
        """When the last answer came, on the process's own clock."""
        self.calls = 0
        self.regressions = 0
        """How many times the store was seen to have lost writes."""
        self._clock = CLOCK.get()
        self._time = time
        self._owner = owner
        self._settings = settings
        self._lock = anyio.Lock(fast_acquire=True)  # answers are taken in in the order of the questions
        self._gone: str | None = None  # the generation of the record that was there before there was none

    async def command(self, command: Command) -> Answer:
        """Send a command in this shard's name, and take in what the answer tells.

        Raises:
            ConfigMismatch: at first contact, the queue runs with other settings.
            StoreError: as the store says.
        """
        generation = self._generation()  # now: while this waits, another answer may tell of a new record
        async with self._lock:
            state = self.state
            settings = state.settings if state is not None and self.attached else self._settings
            command = replace(
                command,
                settings=settings,
                attach=not self.attached,
                generation=generation or self._generation(),
                nonce=secrets.token_hex(8),
            )
            self.calls += 1
            sent = self._clock.now()
            answer = await self.store.apply(self.queue, command)
            self._measure(sent, self._clock.now(), answer)
            if answer.refused and settings is not None and answer.state is not None:
                raise ConfigMismatch(self.queue, describe(settings), describe(answer.state.settings))
            if not isinstance(command, Inspect):  # a look compares no settings
                self.attached = self.attached or answer.state is not None
            self._learn(answer, dropped=isinstance(command, Drop))
            return answer

    def adopt(self, settings: Settings) -> None:
        """Use these settings from now on, as far as the handle has any."""
        if self._settings is not None:
            self._settings = settings

    @property
    def is_held(self) -> bool:
        """Whether the queue stood still when last heard of."""
        return self.state is not None and self.state.held_since is not None

    @property
    def is_limited(self) -> bool:
        """Whether the queue has a limit of running jobs."""
        return self.state is not None and self.state.settings.max_running > 0

    def is_new(self) -> bool:
        """Whether nothing was asked yet, and the interval is too short for what connecting takes."""
        return self.calls == 0 and self._settings is not None and self._settings.interval < _SHORT

    def last_ticket(self) -> int:
        """The highest ticket that is known of; 0: none is."""
        return self.mark.ticket if self.mark is not None else 0

    def _measure(self, sent: int, received: int, answer: Answer) -> None:
        self.heard_at = received
        time = self._time
        steps = time.clock.steps
        took: int | None = received - sent
        if answer.trip is not None and sent <= answer.trip[0] <= answer.trip[1] <= received:
            sent, received = answer.trip
        if self.calls == 1:
            # It connected, too, and perhaps imported a driver: as a round trip it would move slots far away.
            took = None if answer.trip is None else received - sent
        if took is not None:
            time.trips.add(took)
        time.clock.learn(sent - answer.blur, received + answer.blur, answer.now)
        if time.clock.steps != steps:
            self._owner.clock_stepped()

    def _generation(self) -> str | None:
        if self.state is None:
            return self._gone
        return self.state.generation if self._matters(self.state) else None

    def _matters(self, state: State) -> bool:
        """Whether losing the present record would matter: then one made anew begins with a quiet interval.

        The record of a keyed queue is forgotten on purpose when it has been idle for a while.
        """
        if not state.settings.ephemeral or self._owner.has_slots() or self._owner.has_leases():
            return True
        last = self._owner.last_start()
        return last is not None and self._clock.now() - last <= state.settings.burst * state.settings.interval

    def _learn(self, answer: Answer, *, dropped: bool) -> None:
        before, state = self.state, answer.state
        self.state = state
        is_same = before is not None and state is not None and before.generation == state.generation
        if before is not None and not (is_same or dropped or before.settings.ephemeral):
            # Told now, for who only looks, and finds none, won't know later that another one is in its place.
            self.regressions += 1
            anew = "" if state is None else ", and made anew"
            log.warning("queue %r: its record was lost or dropped%s", self.queue, anew)
        if state is None:
            if before is not None:
                self._gone = before.generation if self._matters(before) else None
            self.mark = None
            self._owner.record_lost()
            return
        self._gone = None
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
        mark = Mark(state.ticket, state.due, state.late_total)
        if is_same and before is not None and state.current < before.current:
            self._owner.grants_lost()
        known = self.mark if is_same else None
        if known is not None and (known.ticket > mark.ticket or known.late_total > mark.late_total):
            # The store lost writes, and this command could not tell it so: the next question does.
            mark = Mark(*map(max, known, mark))
        self.mark = mark
        if before is None or (before.held_total, before.held_since) != (state.held_total, state.held_since):
            self._owner.hold_changed()


def describe(settings: Settings) -> str:
    """Settings as messages show them."""
    parts = [f"interval={parse.text(settings.interval)}"]
    if settings.burst != 1:
        parts.append(f"burst={settings.burst}")
    if settings.max_running:
        parts.append(f"max_running={settings.max_running}")
    if settings.tolerance:
        parts.append(f"tolerance={parse.text(settings.tolerance)}")
    return ", ".join(parts)
