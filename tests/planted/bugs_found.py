"""Bugs that were once in this code and that the simulation found, planted again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from intervalq._shard.connection import Connection
from intervalq._shard.conversation import Conversation
from intervalq._shard.leases import Leases
from intervalq._shard.listener import Listener
from intervalq._shard.shard import Shard
from intervalq._shard.store_time import StoreTime
from intervalq._timing.outage import Outage
from intervalq.errors import StoreUnavailable
from intervalq.rules import Answer, Command
from intervalq.store import Waking
from planted.planting import bug, instead

_BEAR: Final = Conversation._bear
_COMMAND: Final = Connection.command
_LISTEN: Final = Listener._listen
_RECORD_LOST: Final = Shard.record_lost
_SIT_OUT: Final = Conversation._sit_out
_TOOK: Final = StoreTime.took


@bug("question-of-another-record", "failover", 40)
def _() -> Iterator[None]:
    """A question that was planned for one record is sent to another, which an answer in between reported."""

    async def command(self: Connection, command: Command) -> Answer:
        async with self._lock:
            pass
        return await _COMMAND(self, command)

    yield from instead(Connection, "command", command)


@bug("leases-of-keys", "calm", 40)
def _() -> Iterator[None]:
    """With `max_running`, the end of a keyed queue's last job is reported without a name, and ignored."""
    yield from instead(Leases, "matter", property(lambda self: bool(self.running)))


@bug("leases-of-another-record", "anew", 9)
def _() -> Iterator[None]:
    """Jobs of a lost record are reported as running, and as ended, to the record that replaced it."""
    yield from instead(Leases, "forget", lambda _: None)


@bug("held-by-a-lost-record", "anew", 16)
def _() -> Iterator[None]:
    """A shard that waits for the end of a hold goes on waiting after its record was lost."""

    def record_lost(self: Shard) -> None:
        for _ in instead(Conversation, "hold_changed", lambda _: None):
            _RECORD_LOST(self)

    yield from instead(Shard, "record_lost", record_lost)


@bug("lost-grants-used", "all", 10_000_026)
def _() -> Iterator[None]:
    """Slots that the record has forgotten are used, in addition to the slots to which it moved those jobs."""
    yield from instead(Shard, "grants_lost", lambda _: None)


@bug("taken-in-late", "threads", 184)
def _() -> Iterator[None]:
    """An answer that was processed late makes the shard ask for slots long before they come."""

    def took(self: StoreTime, trip: int, way: int) -> None:
        del way
        _TOOK(self, trip, trip)

    yield from instead(StoreTime, "took", took)


@bug("woken-in-vain", "gone", 5)
def _() -> Iterator[None]:
    """A shard that can't subscribe to wake-ups is woken, and asks an absent store again without a pause."""

    async def listen(self: Listener, store: Waking) -> None:
        wake = self._wake
        await _LISTEN(self, store)
        if not self._scope.cancel_called:
            wake()

    yield from instead(Listener, "_listen", listen)


@bug("never-given-up", "gone", 0)
def _() -> Iterator[None]:
    """Jobs wait for an unreachable store for ever."""

    async def bear(self: Conversation, error: StoreUnavailable) -> None:
        if self._connection.attached and self._wait_queue:
            self.outage.ended()
        await _BEAR(self, error)

    yield from instead(Conversation, "_bear", bear)


@bug("hours-end-unseen", "hours", 39)
def _() -> Iterator[None]:
    """A shard that waits for the end of a hold, as for room under a limit, doesn't see that hours end."""

    async def sit_out(self: Conversation) -> None:
        hours, self._time.hours = self._time.hours, None
        try:
            await _SIT_OUT(self)
        finally:
            self._time.hours = hours

    yield from instead(Conversation, "_sit_out", sit_out)


@bug("slept-through", "debts", 286)
def _() -> Iterator[None]:
    """An outage begins anew whenever a shard has slept, so that jobs wait for ever."""
    yield from instead(Outage, "rested", lambda self, _now: self.ended())


@bug("asks-for-nobody", "gone", 2)
def _() -> Iterator[None]:
    """What is to be reported when no job waits is sent to an absent store until it answers."""

    async def bear(self: Conversation, error: StoreUnavailable) -> None:
        if self._wait_queue:
            await _BEAR(self, error)
        else:
            await self._parked.until(self.outage.again(self._clock.now()))

    yield from instead(Conversation, "_bear", bear)
