"""Changes many tasks for a command, with a progress bar, until a signal comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from intervalq._watch.edit import Edit, Make
from intervalq.cli._tasks.batch import Bar, Interrupt
from intervalq.errors import IntervalqError
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Count


class BulkEdit(Edit):
    """An `Edit` that a signal ends after the step that it is in."""

    def __init__(self, handle: Tasks, make: Make, word: str, *, force: bool) -> None:
        super().__init__(handle._apply, make, force=force, otherwise=", or give --force")
        self.error: IntervalqError | None = None
        """The error that ended it early."""
        self._handle, self._word = handle, word
        self._interrupt = Interrupt()
        self._bar: Bar | None = None

    @property
    def by(self) -> int | None:
        """The signal that ended it early."""
        return self._interrupt.by

    def goes_on(self) -> bool:
        """See `Edit`."""
        return self.by is None

    def advance(self, count: int) -> None:
        """See `Edit`."""
        if self._bar is not None:
            self._bar.advance(count)

    async def these(self, ids: Sequence[str], queue: str | None = None) -> None:
        """See `Edit`."""
        await self._in_steps(len({*ids}), lambda: Edit.these(self, ids, queue))

    async def all_of(self, queue: str) -> None:
        """See `Edit`."""
        stats = await self._handle._apply(Count(names=(queue,)))
        total = sum(each.size for each in stats)
        await self._in_steps(total, lambda: Edit.all_of(self, queue))

    async def _in_steps(self, total: int, work: Callable[[], Awaitable[None]]) -> None:
        with Bar(self._word, total) as self._bar:
            async with anyio.create_task_group() as group:
                await group.start(self._interrupt.heed, group.cancel_scope)
                try:
                    await work()
                except IntervalqError as error:
                    self.error = error
                group.cancel_scope.cancel()
