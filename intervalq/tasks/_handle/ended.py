"""The part of `Tasks` that looks at the outcomes of tasks, and waits for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import anyio

from intervalq._queue.options import Duration, wait_of, whole
from intervalq.errors import InvalidOption, plain, short
from intervalq.tasks._claim import values as _values
from intervalq.tasks._handle.operations import Operations
from intervalq.tasks._handle.outcome import NoOutcome, Outcome, TaskCancelled, TaskFailed
from intervalq.tasks._handle.waiting import await_all
from intervalq.tasks._spec.outcome import CANCELLED, FAILED, STATES, is_dead
from intervalq.tasks.rules import OutcomeRow, Outcomes, Select
from intervalq.tasks.store import MAX_ROWS, Joined, check_keeps


class Ended(Operations):
    """The outcomes of tasks that have ended."""

    async def outcomes(
        self,
        queue: str | None = None,
        *,
        ids: Sequence[str] | None = None,
        state: str | None = None,
        limit: int | None = 100,
    ) -> list[Outcome]:
        """Outcomes that are still kept, those of the last tasks to end first.

        Only tasks with `keep` leave an outcome, see `new` and `worker`. A task that failed, was put back and
        ended again has several.

        Args:
            queue: of tasks of this queue; None: of all queues.
            ids: of tasks with these ids; None: of all tasks.
            state: `done`, `failed` or `cancelled`; None: all of them.
            limit: the most outcomes to return; None: all.

        Raises:
            InvalidOption, InvalidName: an argument is wrong.
            InvalidTask: one of `ids` can't be the id of a task.
            UnsupportedOperation: the store keeps no outcomes.
        """
        name = None if queue is None else _values.queue_name(queue)
        most = None if limit is None else whole("limit", limit, 0, 1 << 40)
        if state is not None and state not in STATES:
            raise InvalidOption(f"state={short(state)}: give one of {', '.join(STATES)}")
        check_keeps(self._here())
        if ids is None:
            rows = await self._apply(Outcomes(queue=name, state=state, limit=most))
            return [Outcome(row, self._form) for row in rows]
        asked, found = list(dict.fromkeys(_several(ids))), list[OutcomeRow]()
        for first in range(0, len(asked), MAX_ROWS):
            some = tuple(asked[first : first + MAX_ROWS])
            found += await self._apply(Outcomes(ids=some, queue=name, state=state))
        if len(asked) > MAX_ROWS:  # each answer is in order
            found.sort(key=attrgetter("ended"))
        return [Outcome(row, self._form) for row in reversed(found)][:most]

    async def result(self, id: str, timeout: Duration | None = None) -> Any:  # noqa: A002, ANN401 - any JSON
        """What the function of a kept task returned; waits until the task has ended.

        None also if it returned nothing, or changes. In memory, on Postgres without a pooler, Redis and
        Valkey, the store notifies when the task has ended, and is also asked every 5 s; elsewhere it is asked
        after 20 ms, then less and less often, at last once a second.

        Args:
            id: the task's id.
            timeout: how long to wait; None: without limit.

        Raises:
            TaskFailed, TaskCancelled: it has not been done. Their `outcome` has the errors of its attempts.
            NoOutcome: it isn't there, and left no outcome.
            TimeoutError: it didn't end in time.
            InvalidTask: the id can't be one of a task.
            UnsupportedOperation: the store keeps no outcomes.
            StoreError: the store can't be reached, or can't be trusted.
        """
        (outcome,) = await self.wait([id], timeout)
        if outcome.state == FAILED:
            raise TaskFailed(outcome)
        if outcome.state == CANCELLED:
            raise TaskCancelled(outcome)
        return outcome.result

    async def wait(self, ids: Iterable[str], timeout: Duration | None = None) -> list[Outcome]:
        """The outcomes of kept tasks, in the order of the ids; waits until all of these have ended.

        A task in a dead-letter queue has ended, as long as nobody puts it back.

        Raises:
            NoOutcome, TimeoutError, InvalidTask, UnsupportedOperation, StoreError: as for `result`.
        """
        asked = _several(ids)
        seconds = wait_of(timeout)
        check_keeps(self._here())
        found = await self._ended(list(dict.fromkeys(asked)))  # also if there is no time to wait
        with anyio.move_on_after(math.inf if seconds is None else seconds):
            await await_all(self._here(), list(dict.fromkeys(asked)), self._ended, found)
        left = [id_ for id_ in dict.fromkeys(asked) if id_ not in found]
        if left:
            many = f", and {len(left) - 1} others" if len(left) > 1 else ""
            raise TimeoutError(
                f"task {plain(left[0])}{many} did not end within {seconds:g} s: see `intervalq tasks show`, "
                "and whether a worker runs for its queue"
            )
        return [found[id_] for id_ in asked]

    async def _ended(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """The last outcome of each of these tasks that has ended; it was written in the step of that end."""
        queues = await self._queues_of.ask(ids)
        gone = [id_ for id_ in ids if id_ not in queues or is_dead(queues[id_])]
        found = {outcome.id: outcome for outcome in await self._of(gone)}
        for id_ in gone:
            if id_ not in found:
                raise NoOutcome(id_, queues.get(id_))
        return found

    async def _of(self, ids: Sequence[str]) -> list[Outcome]:
        rows = await self._left_of.ask(ids) if ids else {}
        return [Outcome(row, self._form) for id_ in dict.fromkeys(ids) for row in rows.get(id_, ())]

    @cached_property
    def _queues_of(self) -> Joined[dict[str, str]]:
        """The queues of those of the given tasks that exist."""

        async def queues_of(ids: Sequence[str]) -> dict[str, str]:
            found: dict[str, str] = {}
            for first in range(0, len(ids), MAX_ROWS):
                asked = Select(ids=tuple(ids[first : first + MAX_ROWS]), values=False)
                found |= {row.id: row.queue for row in await self._apply(asked)}
            return found

        return Joined(queues_of)

    @cached_property
    def _left_of(self) -> Joined[dict[str, list[OutcomeRow]]]:
        """The outcomes of each of the given tasks, the latest last."""

        async def outcomes_of(ids: Sequence[str]) -> dict[str, list[OutcomeRow]]:
            found: dict[str, list[OutcomeRow]] = {}
            for first in range(0, len(ids), MAX_ROWS):
                for row in await self._apply(Outcomes(ids=tuple(ids[first : first + MAX_ROWS]))):
                    found.setdefault(row.id, []).append(row)
            return found

        return Joined(outcomes_of)


def _several(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):
        raise InvalidOption(f"ids={short(ids)} is one text: give a list of ids, or use result() for one task")
    return [_values.text("id", id_) for id_ in ids]  # looked up together with those that others wait for
