"""What a store knows of the log of one queue, and how it reads the entries added since."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from intervalq.rules import State
from intervalq_stores.nats._queue.log import Gap, Outcome, beginning, fold
from intervalq_stores.nats._queue.step import BEGIN, Entry, Position, entries, others

if TYPE_CHECKING:
    from intervalq_stores.nats._queue.stream import Checkpoint, History

_NEAR: Final = 96
"""For more entries than this, it is faster to read the checkpoint first."""


class Known:
    """The log of one queue as far as it was read, and the resulting record."""

    __slots__ = ("_history", "base", "token", "view")

    def __init__(self, token: str, history: History) -> None:
        self.token = token
        self._history = history
        self.base: Position | None = None
        """The complete record at an entry."""
        self.view: Position | None = None
        """The record at a later entry, except that others may have granted later slots."""

    def learn(self, position: Position) -> None:
        """Take in the whole record at an entry. A later view of the same log stays."""
        view = self.view
        self.base = position
        if view is None or view.sequence <= position.sequence or others(view.value) != others(position.value):
            self.view = position

    async def look(self) -> State | None:
        """The present record; None: there is none, or it is lost."""
        last = await self._history.last(self.token)
        if last is None:
            self.base = self.view = None
            return None
        if self.base is None or self.base.value != last.value:
            try:
                await self.fold(last.value, last.sequence)
            except Gap:
                if await self.is_lost():
                    self.base = self.view = None
                    return None
        assert self.base is not None
        return self.base.state

    async def is_lost(self) -> bool:
        """Whether the record can no longer be determined from the log.

        Raises:
            StoreTimeout: the log grows faster than it can be read.
        """
        gone = 0
        while True:
            last = await self._history.last(self.token)
            if last is None:
                return True
            if self.base is not None and self.base.value == last.value:  # another call has read it
                return False
            try:
                await self.fold(last.value, last.sequence)
            except Gap:
                if last.sequence == gone:
                    return True
                gone = last.sequence
                continue
            return False

    async def fold(
        self, value: int, sequence: int, checkpoint: Checkpoint | None = None
    ) -> tuple[Position, Outcome, int]:
        """The position at an entry, the outcome of the entry, and when it was stored.

        Args:
            value: the sum at that entry.
            sequence: its number.
            checkpoint: a checkpoint that was already read.

        Raises:
            Gap: this can no longer be determined.
        """
        base = self.base
        if base is None and entries(value) <= _NEAR:
            base = BEGIN
        if base is not None and 0 < entries(value) - entries(base.value) <= _NEAR:
            with suppress(Gap):
                return await self._follow(base, value, sequence)
        if checkpoint is None:
            checkpoint = await self._history.checkpoint(self.token)
        if checkpoint is not None:
            kept = checkpoint.position
            if entries(kept.value) < entries(value):
                with suppress(Gap):
                    return await self._follow(kept, value, sequence)
            if kept.value == value:
                self.learn(kept)
                return kept, None, (await self._history.entry(self.token, sequence)).at
        if base is not None and entries(value) - entries(base.value) > _NEAR:
            with suppress(Gap):  # long, but nothing else is left
                return await self._follow(base, value, sequence)
        log = beginning(await self._history.tail(self.token, sequence))
        return self._folded(BEGIN, log)

    async def _follow(self, base: Position, value: int, sequence: int) -> tuple[Position, Outcome, int]:
        count = entries(value) - entries(base.value)
        log = await self._history.entries(self.token, base.sequence, sequence, count)
        return self._folded(base, log)

    def _folded(self, base: Position, log: list[Entry]) -> tuple[Position, Outcome, int]:
        position, outcome = fold(base, log, self._history.url)
        self.learn(position)
        return position, outcome, log[-1].at
