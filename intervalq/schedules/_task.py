"""`ScheduledTask`: a function, when it is to be called, and what happens when that fails."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from anyio import CapacityLimiter, to_thread

from intervalq.errors import InvalidOption, short
from intervalq.schedules._choice import Misfire
from intervalq.schedules._occurrence import Occurrence
from intervalq.schedules._times.plan import Plan

if TYPE_CHECKING:
    from intervalq._queue.queue import IntervalQueue

Overlap: TypeAlias = Literal["skip", "wait", "allow"]

_MISFIRES: Final = ("skip", "once", "all")
_OVERLAPS: Final = ("skip", "wait", "allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """A schedule in the program of a process."""

    name: str
    plan: Plan
    function: Callable[..., Any]
    misfire: Misfire
    grace: int | None
    """How late an occurrence may start, in microseconds; None: without limit."""
    overlap: Overlap
    queue: IntervalQueue | None

    async def call(
        self, occurrence: Occurrence, threads: CapacityLimiter, begins: Callable[[], None]
    ) -> None:
        """Call the function, at a slot of the queue if there is one; plain functions run in a thread.

        `begins` is called just before.
        """
        if self.queue is None:
            await self._call(occurrence, threads, begins)
        else:
            async with self.queue.slot():
                await self._call(occurrence, threads, begins)

    async def _call(
        self, occurrence: Occurrence, threads: CapacityLimiter, begins: Callable[[], None]
    ) -> None:
        arguments = (occurrence,) if _takes_one(self.function) else ()
        if inspect.iscoroutinefunction(self.function):
            begins()
            await self.function(*arguments)
            return
        async with threads:
            begins()
            made = await to_thread.run_sync(self.function, *arguments, limiter=CapacityLimiter(1))
        if inspect.isawaitable(made):  # of an object whose call is async
            await made


def checked_policies(misfire: object, overlap: object) -> None:
    """Check these options.

    Raises:
        InvalidOption: one is unknown, or they contradict each other.
    """
    if misfire not in _MISFIRES:
        raise InvalidOption(f"misfire={short(misfire)} must be one of {', '.join(_MISFIRES)}")
    if overlap not in _OVERLAPS:
        raise InvalidOption(f"overlap={short(overlap)} must be one of {', '.join(_OVERLAPS)}")
    if misfire == "all" and overlap == "skip":
        raise InvalidOption(
            "misfire='all' and overlap='skip' contradict each other, because occurrences that are made up "
            "for come at once: use overlap='wait' or 'allow'"
        )


def checked_function(function: object) -> None:
    """Check the function of a schedule.

    Raises:
        InvalidOption: it can't be called with an occurrence, or with nothing.
    """
    shown = getattr(function, "__name__", None) or short(function)
    if (
        not callable(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise InvalidOption(f"{shown} is not a function that a schedule can call")
    try:
        inspect.signature(function).bind(*((None,) if _takes_one(function) else ()))
    except (TypeError, ValueError) as error:
        raise InvalidOption(
            f"{shown} must take the occurrence as its only argument, or no arguments ({error})"
        ) from None


def _takes_one(function: Callable[..., Any]) -> bool:
    return bool(inspect.signature(function).parameters)
