"""`intervalq tasks insert --follow-up`: the lines of standard input as one batch, all or none."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import click

from intervalq._show import as_json, warn
from intervalq._watch.task import many
from intervalq.cli._run.input import Input
from intervalq.cli._run.jobs import BadLine
from intervalq.cli._tasks.batch import Interrupt
from intervalq.errors import InvalidInterval, InvalidTask
from intervalq.tasks import Tasks
from intervalq.tasks.rules import Insert
from intervalq.tasks.store import refuse_inserts


class BatchOfLines:
    """Reads all lines, and then inserts them and their follow-up in one step."""

    def __init__(
        self,
        source: Input,
        part: Callable[[Tasks, str], Insert],
        follow_up: Callable[[Tasks], Insert],
        *,
        blank: bool,
    ) -> None:
        """Begin. `blank`: blank lines are values, too."""
        self._source, self._part, self._follow_up, self._blank = source, part, follow_up, blank
        self._id: str | None = None
        self._parts: list[Insert] = []
        self._bad = ""
        self._begun = False
        self._interrupt = Interrupt()

    async def insert(self, handle: Tasks) -> None:
        """Read and insert.

        Raises:
            DependencyError, InboxFull, InvalidOption, UnsupportedOperation: nothing was inserted.
            StoreError.
        """
        self._part(handle, '"1"')  # options are checked before anything is read
        follow_up = self._follow_up(handle)
        refuse_inserts(handle._here(), [follow_up._replace(awaits=1)])
        async with anyio.create_task_group() as group:
            await group.start(self._interrupt.heed, group.cancel_scope)
            await self._interrupt.or_until(lambda: self._read(handle))
            if self._interrupt.by is None and not self._bad and not self._parts:
                self._bad = (
                    "standard input has no values, so the follow-up would start at once: see whether the "
                    "command in front of the pipe has failed"
                )
            if not self._bad and self._interrupt.by is None:
                self._begun = True
                self._id = await handle.batch(self._parts, follow_up)
            group.cancel_scope.cancel()

    async def _read(self, handle: Tasks) -> None:
        at = 0
        try:
            async for number, line in self._source.lines():
                at = number
                if line.strip() or self._blank:
                    self._parts.append(self._part(handle, line))
        except BadLine as error:
            self._bad = str(error)
        except (InvalidTask, InvalidInterval) as error:
            self._bad = f"standard input, line {at}: {error}"

    def end(self, *, as_json_: bool) -> int:
        """Report what was done, and return the exit code."""
        count = 0 if self._id is None else len(self._parts)
        if as_json_:
            click.echo(as_json({"inserted": count, "follow_up": self._id}))
        elif self._id is None:
            click.echo(f"{many(count)} inserted")
        else:
            click.echo(f"{many(count)} inserted, and their follow-up {self._id}")
        if self._bad:
            warn(f"{self._bad}; nothing was inserted")
            return 2
        if self._interrupt.by is not None:
            if self._id is None:
                sure = "the batch may be inserted or not" if self._begun else "nothing was inserted"
                warn(f"interrupted: {sure}")
            return 128 + self._interrupt.by
        return 0
