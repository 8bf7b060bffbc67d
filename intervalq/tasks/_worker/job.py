"""A function that runs tasks: its options, and its possible results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from intervalq._queue.queue import IntervalQueue
from intervalq.errors import DependencyError, InvalidOption
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._worker.policy import Policy
from intervalq.tasks.rules import Change, Delete, Depend, Insert

Result = None | Insert | Change | Delete | Depend | Sequence[Insert | Change | Delete | Depend]
Run = Callable[[Claim], Awaitable[Any]]
Work = Run | Callable[[Claim], Any]
Refused = Callable[[Claim, DependencyError], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A function and how it is run. See `Tasks.worker`."""

    function: Work
    queues: tuple[str, ...]
    pace: IntervalQueue | None
    concurrency: int | None
    policy: Policy
    timeout: float | None
    on_dependency: Refused | None = None


def changes_of(result: Any) -> Sequence[Insert | Change | Delete | Depend]:  # noqa: ANN401 - checked here
    """A function's result, as the changes to make with the acknowledgement."""
    parts: Sequence[Any] = [result]
    if isinstance(result, list | tuple) and not isinstance(result, Insert | Delete):  # these are tuples, too
        parts = result
    for part in parts:
        if not isinstance(part, Insert | Change | Delete | Depend):
            raise InvalidOption(
                f"a worker's function returned a {type(part).__name__}: return None, or changes such as "
                "tasks.new(...) to be made together with the acknowledgement"
            )
    return parts
