"""One call of the user's function, async or plain, and the check of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from anyio import to_thread

from intervalq import IntervalQueue
from intervalq._queue.options import Cost
from intervalq.errors import BadResult
from intervalq.spark._answers.fit import Unfit, fitter
from intervalq.spark._paced.context import BlockingContext, CallContext, Client
from intervalq.spark._paced.job import Job


class Caller:
    """Calls the function of a job."""

    def __init__(self, job: Job) -> None:
        self._function = job.function
        self._blocks = job.blocks
        self._cost = job.cost
        self._columns = job.columns
        self._fits = {field.name: fitter(field.type, nullable=field.nullable) for field in job.columns}
        self._names = frozenset(self._fits)
        self._threads = anyio.CapacityLimiter(job.concurrency) if job.blocks else None

    def context(self, run: str, key: str, queue: IntervalQueue | None, client: Client) -> CallContext:
        """The context that a row's calls get with the row."""
        return (BlockingContext if self._blocks else CallContext)(run, key, queue, client)

    async def call(self, row: dict[str, Any], context: CallContext) -> Any:  # noqa: ANN401 - as the user has it
        """Call the function, and return its result."""
        if not self._blocks:
            return await self._function(row, context)
        return await to_thread.run_sync(
            self._function, row, context, limiter=self._threads, abandon_on_cancel=True
        )

    def cost(self, row: dict[str, Any], queue: IntervalQueue | None) -> Cost:
        """What a row's call takes. Raises the user's errors, or that of a cost that is too high."""
        cost = self._cost
        if not callable(cost):
            return cost  # checked on the driver
        taken = cost(row)
        if queue is not None:
            queue._plan(cost=taken)
        return taken

    def checked(self, key: str, value: object) -> dict[str, Any]:
        """An answer as values of the schema's columns.

        Raises:
            BadResult: it doesn't fit.
        """
        if value is None:
            value = {}
        if type(value) is not dict and not isinstance(value, Mapping):
            raise BadResult(key, f"it is a {type(value).__name__}, not a dict of columns (or None)")
        if not self._names.issuperset(value):
            more = ", ".join(sorted(map(str, value.keys() - self._fits.keys())))
            raise BadResult(key, f"it has columns that are not in the schema: {more}")
        fitted = {}
        for name, fit in self._fits.items():
            try:
                fitted[name] = fit(value.get(name))
            except Unfit as why:
                kind = self._columns.field(name).type
                raise BadResult(key, f"column {name} is {kind}: {why}") from None
        return fitted
