"""What simulation found in this code, put back: bugs that were real once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from intervalq._shard.connection import Connection
from intervalq._shard.conversation import Conversation
from intervalq._shard.leases import Leases
from intervalq._shard.shard import Shard
from intervalq.rules import Answer, Command
from planted.planting import bug, instead

_COMMAND: Final = Connection.command
_RECORD_LOST: Final = Shard.record_lost


@bug("question-of-another-record", "failover", 40)
def _() -> Iterator[None]:
    """A question made up for one record is sent to another, that an answer in between has told of."""

    async def command(self: Connection, command: Command) -> Answer:
        async with self._lock:
            pass
        return await _COMMAND(self, command)

    yield from instead(Connection, "command", command)


@bug("leases-of-keys", "calm", 40)
def _() -> Iterator[None]:
    """With `max_running`, the end of a keyed queue's last job is told in nobody's name, and ignored."""
    yield from instead(Leases, "matter", property(lambda self: bool(self.running)))


@bug("leases-of-another-record", "anew", 7)
def _() -> Iterator[None]:
    """Jobs of a record that is gone are told to be running, and to have ended, to the one made anew."""
    yield from instead(Leases, "forget", lambda _: None)


@bug("held-by-a-lost-record", "anew", 16)
def _() -> Iterator[None]:
    """A shard that waits for the end of a hold goes on waiting when its record is gone."""

    def record_lost(self: Shard) -> None:
        for _ in instead(Conversation, "hold_ended", lambda _: None):
            _RECORD_LOST(self)

    yield from instead(Shard, "record_lost", record_lost)


@bug("lost-grants-used", "all", 10_000_026)
def _() -> Iterator[None]:
    """Slots are used that the record has forgotten, beside those that it moved since."""
    yield from instead(Shard, "grants_lost", lambda _: None)


@bug("question-grows-old", "tight", 31_241)
def _() -> Iterator[None]:
    """A question that waited for its turn reports an error of the clock that its process has no more."""
    yield from instead(Connection, "_up_to_date", lambda _self, command, _steps: command)
