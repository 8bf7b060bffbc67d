"""A shard's connection to its record: sends one command at a time, and keeps the state from the answers."""

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
        """Whether the store has a lease of this shard, or may have."""
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
        """Note that the queue was held or resumed, or that its clock moved relative to the store's."""
        ...


class Connection:
    """Sends the commands of one shard. If `settings` is None, the queue's own are used."""

    def __init__(
        self, queue: str, store: Store, settings: Settings | None, time: StoreTime, owner: Owner
    ) -> None:
        self.queue = queue
        self.store = store
        self.state: State | None = None
        """The record, as the last answer showed it."""
        self.mark: Mark | None = None
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
        self._lock = anyio.Lock(fast_acquire=True)  # answers are processed in the order of the requests
        self._gone: str | None = None  # the generation of the last record, if there is none now

    async def command(self, command: Command) -> Answer:
        """Send a command for this shard, and process the answer.

        Raises:
            ConfigMismatch: at first contact, if the queue runs with other settings.
            StoreError: raised by the store.
        """
        generation = self._generation()  # read now: while this waits, another answer may show a new record
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
            if not isinstance(command, Inspect):  # this one compares no settings
                self.attached = self.attached or answer.state is not None
            self._learn(answer, dropped=isinstance(command, Drop))
            return answer

    def adopt(self, settings: Settings) -> None:
        """Use these settings from now on, unless the handle has none."""
        if self._settings is not None:
            self._settings = settings

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
        return self.calls == 0 and self._settings is not None and self._settings.interval < _SHORT

    def last_ticket(self) -> int:
        """The highest known ticket; 0: none is known."""
        return self.mark.ticket if self.mark is not None else 0

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
            time.trips.add(took)
        time.clock.learn(sent - answer.blur, received + answer.blur, answer.now)
        if time.clock.steps != steps:
            self._owner.clock_stepped()

    def _generation(self) -> str | None:
        if self.state is None:
            return self._gone
        return self.state.generation if self._matters(self.state) else None

    def _matters(self, state: State) -> bool:
        """Whether losing the present record would matter: its successor then begins with a quiet interval.

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
            # Report it now: a handle that only inspects would not notice later that there is another record.
            self.regressions += 1
            anew = "" if state is None else ", and was created again"
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
            # The store lost writes, and this command could not repair that: the next request does.
            mark = Mark(*map(max, known, mark))
        self.mark = mark
        if before is None or (before.held_total, before.held_since) != (state.held_total, state.held_since):
            self._owner.hold_changed()


def describe(settings: Settings) -> str:
    """Settings in the form for messages."""
    parts = [f"interval={parse.text(settings.interval)}"]
    if settings.burst != 1:
        parts.append(f"burst={settings.burst}")
    if settings.max_running:
        parts.append(f"max_running={settings.max_running}")
    if settings.tolerance:
        parts.append(f"tolerance={parse.text(settings.tolerance)}")
    return ", ".join(parts)
