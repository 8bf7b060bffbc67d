"""A shard's link to its queue's record: sends commands, and keeps what their answers tell.

What the shard may believe of time follows from here alone: the record's clock in terms of one's own, with the
bounds of what is sure. A job begins only when its slot has surely come and is surely not past its tolerance,
as TrueTime does it (Corbett et al., Spanner, 2012).
"""

from __future__ import annotations

import logging
import secrets
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Final

import anyio

from intervalq._shard.grants import Go, Run
from intervalq._shard.leases import Leases
from intervalq._spec import parse
from intervalq._timing.clock import CLOCK
from intervalq._timing.estimates import RoundTrips, StoreClock
from intervalq.errors import ConfigMismatch
from intervalq.rules import FOREVER, Answer, Command, Inspect, Settings, Slot, State
from intervalq.store import Store

log: Final = logging.getLogger("intervalq")

_told: Final[set[str]] = set()
"""Stores and queues that this process has warned of: once is enough, however many queues are in a store."""

_WASTEFUL: Final = 20
"""So many slots may go by, beyond jobs that began, before it is worth a warning: more than `lookahead`."""

REACTION: Final = 200
"""How long a job takes to begin after the answer that tells it to go has come, where nothing else goes on."""

_TIMER: Final = 2_000
"""By how much an event loop may wake late: room for the question before a slot."""

_TOGETHER: Final = 20_000
"""Slots that come so soon after one that is asked about are asked about with it."""

_FIRST_LEAD: Final = 50_000
"""How long before a slot to ask while no round trip is known."""

_SHORT: Final = 200_000
"""At shorter intervals a connection is made before the first ticket is taken."""

_SHARPEN: Final = 5
"""How many questions in a row are spent on knowing the store's clock better."""


class Link(ABC):
    """See the module. `settings` of None: the queue's own."""

    def __init__(self, queue: str, store: Store, settings: Settings | None) -> None:
        self.queue = queue
        self.store = store
        self.state: State | None = None
        """The record, as the last answer showed it."""
        self.mark: Slot | None = None
        """The highest ticket that is known of, whoever has it."""
        self.is_limited = False
        """Whether the queue has a limit of running jobs."""
        self.attached = False
        """The store has accepted our settings, or the queue's are taken."""
        self.clock = CLOCK.get()
        self.now = self.clock.now
        self.store_clock = StoreClock()
        self.round_trips = RoundTrips()
        self.leases = Leases(self)
        self.calls = 0
        self.regressions = 0
        self.begun = self.given_up = 0
        self.wasted = 0  # by how many more slots went by of late than jobs began
        self.begun_at: int | None = None
        self.reaction = REACTION
        """How long jobs take to begin after the answer that tells them to go, by those that came too late."""
        self._settings = settings
        self._lock = anyio.Lock(fast_acquire=True)  # answers are taken in in the order of the questions
        self._sharpened = 0
        self._gone: str | None = None  # the generation of the record that was there before there was none

    @abstractmethod
    def has_slots(self) -> bool:
        """Whether slots of the present record are outstanding here."""

    @abstractmethod
    def forget_slots(self) -> None:
        """The record that the slots were of is gone."""

    @abstractmethod
    def stepped(self) -> None:
        """The store's clock was stepped: tickets from before are not to be used.

        A step back loses the time since the clock was last read. A slot that was told to go begins at its
        instant all the same, and by the new clock, one with an earlier ticket would begin beside it.
        """

    @abstractmethod
    def changed(self) -> None:
        """The queue was held, resumed, or its clock moved against the store's."""

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
            sent = self.clock.now()
            answer = await self.store.apply(self.queue, command)
            received = self.clock.now()
            self.round_trips.add(received - sent)
            steps = self.store_clock.steps
            if answer.trip is not None and sent <= answer.trip[0] <= answer.trip[1] <= received:
                sent, received = answer.trip
            self.store_clock.learn(sent - answer.blur, received + answer.blur, answer.now)
            if self.store_clock.steps != steps:
                self.stepped()
            if answer.refused and settings is not None and answer.state is not None:
                raise ConfigMismatch(self.queue, describe(settings), describe(answer.state.settings))
            if not isinstance(command, Inspect):  # a look compares no settings
                self.attached = self.attached or answer.state is not None
            self._learn(answer)
            return answer

    def adopt(self, settings: Settings) -> None:
        """Use these settings from now on, as far as the handle has any."""
        if self._settings is not None:
            self._settings = settings

    def _generation(self) -> str | None:
        if self.state is None:
            return self._gone
        return self.state.generation if self._matters(self.state) else None

    def _matters(self, state: State) -> bool:
        """Whether losing the present record would matter: then one made anew begins with a quiet interval.

        The record of a keyed queue is forgotten on purpose when it has been idle for a while.
        """
        if not state.settings.ephemeral or self.has_slots() or self.leases.matter:
            return True
        idle = state.settings.burst * state.settings.interval
        return self.begun_at is not None and self.clock.now() - self.begun_at <= idle

    def _learn(self, answer: Answer) -> None:
        before, state = self.state, answer.state
        self.state = state
        self.is_limited = state is not None and state.settings.max_running > 0
        if state is None:
            if before is not None:
                self._gone = before.generation if self._matters(before) else None
            self.mark = None
            self.forget_slots()
            return
        self._gone = None
        if before is not None and before.generation != state.generation:
            if not state.settings.ephemeral:
                self.regressions += 1
                log.warning("queue %r: its record was lost or dropped, and made anew", self.queue)
            self.forget_slots()
        if answer.healed:
            self.regressions += 1
            log.warning(
                "queue %r: the store lost writes that it had acknowledged; the queue goes on from ticket %d, "
                "and one start may have been early (see `intervalq doctor`)",
                self.queue,
                state.ticket,
            )
        self.mark = Slot(state.ticket, state.due)
        if before is None or (before.held, before.held_since) != (state.held, state.held_since):
            self.changed()

    def last(self) -> int:
        """The highest ticket that is known of; 0: none is."""
        return self.mark.ticket if self.mark is not None else 0

    # --- time ---------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether the queue stood still when last heard of."""
        return self.state is not None and self.state.held_since is not None

    @property
    def paused(self) -> bool:
        """Whether the queue was paused or cooling down when last heard of, not just at its limit."""
        return self.state is not None and self.state.held_until > 0

    def tolerance(self, at: int) -> int:
        """How late a job may begin: as agreed, or what knowing the store's clock that badly allows."""
        wished = self.state.tolerance if self.state is not None else 0
        error = self.store_clock.error(at)
        if error * 3 <= wished * 2 or self._sharpened < _SHARPEN:
            return wished  # or nearly so: a few more questions are on their way
        allowed = error * 3 // 2
        if self.state is not None and self.store.url not in _told:
            _told.add(self.store.url)
            interval = self.state.settings.interval
            log.warning(
                "queue %r: round trips to the store are too long to know its clock better than to %s, so "
                "starts are at least %s apart, not %s: use a nearer store, or a longer interval",
                self.queue, parse.text(error), parse.text(max(0, interval - allowed)),
                parse.text(max(0, interval - wished)),
            )  # fmt: skip
        return allowed

    def is_blurred(self, enough: int) -> bool:
        """Whether it is worth a question or two to know the store's clock better; counts them.

        Args:
            enough: an error that is good enough, if the tolerance can be held with it.
        """
        if self.state is None:
            # The first answer comes with the time that connecting took: not worth much for a short interval.
            return self.calls == 0 and self._settings is not None and self._settings.interval < _SHORT
        error = self.store_clock.error(self.clock.now())
        if error * 3 <= self.state.tolerance * 2 and error <= enough:
            self._sharpened = 0
            return False
        if self._sharpened >= _SHARPEN:
            return False
        self._sharpened += 1
        return True

    def lead(self) -> int:
        """How long before a slot to ask about it: a question under way, the question itself, a late timer.

        And what an event loop that is busy with other things makes of it.
        """
        slow = self.round_trips.slow()
        busy = self.reaction - REACTION
        return (2 * slow + _TIMER if slow is not None else _FIRST_LEAD) + busy

    def together(self) -> int:
        """How long before they come slots are told to go; with a limit, such a job counts as running."""
        return self.lead() if self.is_limited else max(self.lead(), _TOGETHER)

    def is_near(self, slot: Slot) -> bool:
        """Whether being told to go stands. Else a hold has moved the slot unheard: it is asked about again.

        Not with a limit: the store has a lease for it, which can't be told from that of the second time.
        """
        return self.is_limited or self.comes(slot) <= self.clock.now() + self.together()

    def comes(self, slot: Slot) -> float:
        """When, on one's own clock, a slot may come at the earliest; infinity: the queue is held."""
        if self.state is None or self.state.held_since is not None:
            return float("inf")
        return self.store_clock.perhaps(slot.due + self.state.held)

    def is_lost(self, slot: Slot, at: int) -> bool:
        """Whether a slot is past its tolerance, beyond doubt."""
        state = self.state
        if state is None or state.held_since is not None:
            return False
        return self.store_clock.earliest(at) > slot.due + state.held + state.credit + self.tolerance(at)

    def run(self, first: Slot, count: int = 0, *, likely: bool = False) -> Run:
        """A slot was told to go, or `count` as soon as they were taken: fix them on the store's clock."""
        state = self.state
        held, step = (0, 0) if state is None else (state.held, state.settings.interval)
        return Run(
            first, held=held, steps=self.store_clock.steps, count=count or 1, step=step, at_once=count > 0,
            likely=likely,
        )  # fmt: skip

    def bounded(self, run: Run) -> Run:
        """The run, with the bounds of its slots as the last answer shows them.

        They are, on one's own clock, when a slot has surely come, and until when it is surely not past its
        tolerance. None is open any more if the store's clock was stepped.
        """
        clock = self.store_clock
        if run.known != clock.answers:
            last = run.last  # what drift makes uncertain until then is more than it makes for the others
            late = self.tolerance(self.clock.now()) + (self.state.credit if self.state is not None else 0)
            closes = clock.perhaps(last + late) - 1 if run.steps == clock.steps else last - FOREVER
            run.known, run.after, run.before = clock.answers, clock.surely(last) - last, closes - last
        return run

    def is_open(self, go: Go) -> bool:
        """Whether a slot out of its run has surely come, and is surely not past; for any thread."""
        return go.opens <= self.clock.now() and not self.is_past(go)

    def is_past(self, go: Go) -> bool:
        """Whether it may be past its tolerance by now, or the clock that it is fixed on was stepped."""
        return self.clock.now() > go.closes or go.run.steps != self.store_clock.steps

    def waste(self, slots: int) -> None:
        """Slots went by before a job could use them."""
        self.given_up += slots
        self.wasted += slots
        if self.wasted >= _WASTEFUL and self.queue not in _told:
            _told.add(self.queue)
            log.warning(
                "queue %r: slots go by before this process can use them, %d so far: something blocks its "
                "event loop (run that in a thread), the machine is overloaded, or the store answers late",
                self.queue,
                self.given_up,
            )

    def due(self, slot: Slot) -> float:
        """A slot on the store's clock, in seconds since 1970."""
        return (slot.due + (self.state.held if self.state is not None else 0)) / 1e6

    def store_time(self) -> float:
        """What the store's clock reads now, in seconds since 1970, as well as it is known here."""
        at = self.clock.now()
        return (self.store_clock.earliest(at) + self.store_clock.latest(at)) / 2e6


def describe(settings: Settings) -> str:
    """Settings as messages show them."""
    said = [f"interval={parse.text(settings.interval)}"]
    if settings.burst != 1:
        said.append(f"burst={settings.burst}")
    if settings.max_running:
        said.append(f"max_running={settings.max_running}")
    if settings.tolerance:
        said.append(f"tolerance={parse.text(settings.tolerance)}")
    return ", ".join(said)
