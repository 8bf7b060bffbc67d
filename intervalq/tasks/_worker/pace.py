"""What paces a function that runs tasks: one queue for all of them, or one that is chosen for each task."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from intervalq._queue.options import Cost
from intervalq._queue.queue import IntervalQueue
from intervalq._queue.slot import Slot
from intervalq.errors import InvalidOption, short
from intervalq.tasks._claim.task import Claim

QueueOf = IntervalQueue | Callable[[Claim], IntervalQueue | None]
CostOf = Cost | Callable[[Claim], Cost]


@dataclass(frozen=True, slots=True)
class Pace:
    """The queue of a function, and what a task costs there. See `Tasks.worker`."""

    queue: QueueOf
    cost: CostOf

    def slot(self, claim: Claim | None) -> AbstractAsyncContextManager[Slot] | None:
        """The slot that a task waits for; None: it waits for none.

        Args:
            claim: the task; None: a chunk, for which nothing is chosen by task.

        Raises:
            InvalidOption: `queue` returned something else, or the cost isn't one that the queue can take.
        """
        queue = self.queue
        if not isinstance(queue, IntervalQueue):
            assert claim is not None
            chosen = queue(claim)
            if chosen is None:
                return None
            if not isinstance(chosen, IntervalQueue):
                raise InvalidOption(
                    f"queue= returned a {type(chosen).__name__} for a task: return an IntervalQueue, or "
                    "None to start it without a pace"
                )
            queue = chosen
        cost = self.cost
        if callable(cost):
            assert claim is not None
            cost = cost(claim)
        return queue.slot(cost=cost)


def pace_of(queue: QueueOf | None, cost: CostOf, *, chunks: bool) -> Pace | None:
    """The pace of a function; None: it has none.

    Raises:
        InvalidOption: the options are none, disagree, or can't be used for chunks.
    """
    if queue is None:
        if cost != 1:
            raise InvalidOption(
                f"cost={short(cost)} is counted by a queue: give queue=, an IntervalQueue, too"
            )
        return None
    one = isinstance(queue, IntervalQueue)
    if not one and (not callable(queue) or hasattr(queue, "slot")):
        raise InvalidOption(
            f"queue= must be an intervalq.IntervalQueue, or a function that returns one, not {short(queue)}"
        )
    if chunks and not (one and not callable(cost)):
        raise InvalidOption(
            "a chunk takes one slot, before its tasks are known: with batch=, queue= and cost= can't be "
            "functions of a task"
        )
    pace = Pace(queue, cost)
    if one and not callable(cost):
        pace.slot(None)  # a cost that the queue can't take is refused here
    return pace
