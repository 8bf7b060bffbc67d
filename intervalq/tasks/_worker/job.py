"""A function that runs tasks, one by one or in chunks: its options, and its possible results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

from intervalq.errors import DependencyError, InvalidOption
from intervalq.tasks._claim.task import Claim
from intervalq.tasks._worker.pace import Pace
from intervalq.tasks._worker.policy import Policy
from intervalq.tasks.rules import Change, Delete, Depend, Insert

Result = None | Insert | Change | Delete | Depend | Sequence[Insert | Change | Delete | Depend]
Work = Callable[[Claim], Any]
ChunkWork = Callable[[list[Claim]], Any]
_CHANGES: Final = (Insert, Change, Delete, Depend)
_PLAIN: Final = (str, int, float, NoneType)
_SIMPLE: Final = frozenset({*_PLAIN, bool})
"""The types of nearly all results and their parts: a look takes a fraction of the time of `isinstance`."""
Refused = Callable[[Claim, DependencyError], Any]
ChunkRefused = Callable[[list[Claim], DependencyError], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A function and how it is run. See `Tasks.worker`."""

    function: Callable[[Any], Any]
    """A `Work`; or a `ChunkWork`, if there is a `batch`."""
    queues: tuple[str, ...]
    pace: Pace | None
    concurrency: int | None
    policy: Policy
    timeout: float | None
    on_dependency: Callable[[Any, DependencyError], Any] | None = None
    batch: int | None = None
    """How many claims the function gets at most; None: one, and not in a list."""
    within: float = 0.0
    """How long a chunk that isn't full waits for further tasks, in seconds."""
    keep_for: int = 0
    """How long outcomes of tasks without a `keep_for` are kept, in microseconds; 0: not at all."""


def check_function(function: Callable[..., Any]) -> None:
    """Refuse a function that can't be called with one argument.

    Raises:
        InvalidOption: it can't.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some that are written in C don't tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise InvalidOption(
            f"a worker's function is called with a claim, or with a list of them if batch= is given: {error}"
        ) from None


def has_changes(result: Any) -> bool:  # noqa: ANN401 - of any function
    """Whether a function's result is no JSON value: changes to make, or what `changes_of` refuses.

    Changes in the midst of other values, or in a generator, would be lost silently.
    """
    kind = type(result)
    if kind in _SIMPLE or (kind is dict and _SIMPLE.issuperset(map(type, result.values()))):
        return False
    if isinstance(result, _CHANGES):  # some of them are tuples
        return True
    if isinstance(result, dict):
        return any(map(has_changes, result.values()))
    if isinstance(result, list | tuple):
        return any(map(has_changes, result))
    return not isinstance(result, _PLAIN)


def changes_of(result: Any) -> Sequence[Insert | Change | Delete | Depend]:  # noqa: ANN401 - checked here
    """A function's result, as the changes to make with the acknowledgement."""
    parts: Sequence[Any] = [result]
    if isinstance(result, list | tuple) and not isinstance(result, Insert | Delete):  # these are tuples, too
        parts = result
    for part in parts:
        if not isinstance(part, Insert | Change | Delete | Depend):
            raise InvalidOption(
                f"a worker's function returned {type(part).__name__}: return None, a JSON value, or "
                "changes such as tasks.new(...) in a list, to be made together with the acknowledgement"
            )
    return parts
