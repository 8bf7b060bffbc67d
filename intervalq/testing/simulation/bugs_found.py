"""What simulation found in this code, put back: bugs that were real once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from intervalq._shard.connection import Link
from intervalq._shard.grants import Go
from intervalq._shard.leases import Leases
from intervalq._shard.shard import Shard
from intervalq.rules import Advance, Answer, Command
from intervalq.testing.simulation.planting import bug, instead

_COMMAND: Final = Link.command
_GIVE_UP: Final = Shard.give_up
_PUT: Final = Shard._put  # noqa: SLF001


@bug("slot-resurrected", "calm", 96)
def _() -> Iterator[None]:
    """A slot that a job of several slots let pass while the store was asked about it is used all the same."""

    async def put(self: Shard, question: Advance) -> Answer:
        answer = await _PUT(self, question)
        have = {slot.ticket for run in self.slots.granted for slot in run}
        back = [slot for slot in question.slots if slot.ticket in answer.granted and slot.ticket not in have]
        self.slots.granted.extendleft(self.run(slot) for slot in reversed(back))
        self._beginning.wake()
        return answer

    yield from instead(Shard, "_put", put)


@bug("owed-in-a-hold", "calm", 165)
def _() -> Iterator[None]:
    """Slots that a job still owes are forgotten when its own start brings the queue to `max_running`."""

    def wants(self: Shard) -> bool:
        return bool(self.line) or (self._owed > 0 and not self.held)

    yield from instead(Shard, "_wants", wants)


@bug("question-of-another-record", "failover", 10)
def _() -> Iterator[None]:
    """A question made up for one record is sent to another, that an answer in between has told of."""

    async def command(self: Link, command: Command) -> Answer:
        async with self._lock:
            pass
        return await _COMMAND(self, command)

    yield from instead(Link, "command", command)


@bug("nobody-woken", "all", 82)
def _() -> Iterator[None]:
    """A shard whose slots are forgotten because of somebody else's answer is not told, and waits for ever."""

    def forget_slots(self: Shard) -> None:
        self.slots.forget()

    yield from instead(Shard, "forget_slots", forget_slots)


@bug("never-sharpened", "stalls", 803)
def _() -> Iterator[None]:
    """Far away, and held by its own start each time, a shard never learns the store's clock well enough."""

    def give_up(self: Shard, go: Go) -> None:
        _GIVE_UP(self, go)
        self._sharpened -= 1

    yield from instead(Shard, "give_up", give_up)


@bug("leases-of-keys", "calm", 40)
def _() -> Iterator[None]:
    """With `max_running`, the end of a keyed queue's last job is told in nobody's name, and ignored."""
    yield from instead(Leases, "matter", property(lambda self: bool(self.running)))
