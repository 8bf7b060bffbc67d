"""Reads what a store has now: queues, tasks by state, schedules, worker processes and what they work on."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from anyio import to_thread

from intervalq import IntervalQueue, QueueNotFound, QueueState
from intervalq._observe.actions import Acting, Action, acting, last_actions
from intervalq._queue.control import each_of
from intervalq._watch.edit import Edit, Make
from intervalq._watch.follow import Logs
from intervalq.errors import ScheduleNotFound, UnknownStore, UnsupportedOperation
from intervalq.schedules import ScheduleInfo, Schedules
from intervalq.store import Store, given_url, open_store, sound_url
from intervalq.tasks import QueueStats, Task, Tasks, TaskSchedules, WorkerSession
from intervalq.tasks.rules import Select

MAX_RECORDS: Final = 1_000
"""The maximum number of queues and keys that a live view reads."""

MAX_TASKS: Final = 200
"""The maximum number of tasks of a queue that are read."""

_MAX_BEGUN: Final = 100
"""The maximum number of tasks of each worker process that are read."""


class Looked(NamedTuple):
    """The queues of a store, or one of them, with their keys behind them."""

    states: list[QueueState]
    left_out: int
    """How many keys were not read."""


async def inspect_all(store: Store, name: str | None = None, most: int | None = None) -> Looked:
    """The states of all queues of a store, or of one, and of their keys; keys that wait come first.

    Args:
        store: where they are.
        name: a queue; None: all.
        most: how many records to read, queues before keys; None: all.

    Raises:
        QueueNotFound: there is neither the queue of that name nor any of its keys.
        StoreError: the store can't be read.
    """
    found = list[QueueState]()

    async def look(queue: IntervalQueue) -> None:
        with suppress(QueueNotFound):  # dropped in the meantime
            found.append(await queue.inspect())

    records = [each for each in await store.names() if name in {None, each, each.partition(":")[0]}]
    records.sort(key=lambda each: ":" in each)
    await each_of([_handle(each, store) for each in records[:most]], look)
    if name is not None and not found:
        raise QueueNotFound(name, store.url)
    return Looked(sorted(found, key=_place), 0 if most is None else max(0, len(records) - most))


def _place(state: QueueState) -> tuple[str, bool, int, str]:
    """Sorts queues by their names, and puts the keys of each behind it, those that wait first."""
    queue, is_key, key = state.name.partition(":")
    return queue, bool(is_key), -state.outstanding if is_key else 0, key


def _handle(record: str, store: Store) -> IntervalQueue:
    """The handle for a record."""
    name, colon, key = record.partition(":")
    queue = IntervalQueue(name, store=store)
    return queue._keyed(key) if colon else queue


async def begun(
    tasks: Tasks, limit: int, *, values: bool = True
) -> tuple[list[Task], dict[str, WorkerSession]]:
    """The tasks that are being worked on, at most `limit` of each process, and the sessions by id."""
    sessions = {session.id: session for session in await tasks.sessions()}
    found: list[Task] = []
    for session in sessions:
        rows = await tasks._apply(Select(session=session, limit=limit, values=values))
        found += [Task(row, tasks._form) for row in rows if row.begun]
    return found, sessions


class Reader:
    """The queues, tasks and schedules of a store, for live views."""

    def __init__(self, queues: Store | None, tasks: Tasks | None, logs: Iterable[Path] = ()) -> None:
        self.queues, self.tasks, self.logs = queues, tasks, Logs(logs)

    @classmethod
    def opened(cls, url: str | None, logs: Iterable[Path] = ()) -> Self:
        """A reader of the stores at a URL or path; None: the default store of each kind.

        `logs`: execution logs of queues, which tell more about them.

        Raises:
            InvalidOption, UnknownStore, MissingExtra, StoreError: as for `open_store`.
        """
        return cls(open_store(url), tasks_at(url), logs)

    async def look(self, name: str | None = None) -> Looked:
        """The queues, or one of them, with their keys: see `inspect_all`. Reads the logs, too."""
        await to_thread.run_sync(self.logs.read)
        return await inspect_all(self._queues(), name, MAX_RECORDS)

    async def counts(self) -> list[QueueStats]:
        """The queues of tasks, with their numbers by state; one too many says that there are more.

        Raises:
            UnsupportedOperation: there is no store of tasks.
            StoreError: it can't be read; so for the others.
        """
        return await self._tasks().queues(limit=MAX_RECORDS + 1)

    async def tasks_of(self, queue: str) -> list[Task]:
        """The first 200 tasks of a queue by time, without their values.

        Raises:
            InvalidName: no queue can have this name.
        """
        return await self._tasks().tasks(queue, limit=MAX_TASKS, values=False)

    async def sessions(self) -> dict[str, WorkerSession]:
        """The worker processes, by the ids of their sessions."""
        return {session.id: session for session in await self._tasks().sessions()}

    async def task(self, id_: str) -> Task | None:
        """A task with its value; None: it is gone."""
        found = await self._tasks().tasks(ids=[id_])
        return found[0] if found else None

    def edit(self, make: Make) -> Edit:
        """Changes tasks of the store."""
        return Edit(self._tasks()._apply, make)

    async def workers(self) -> list[tuple[WorkerSession, list[Task]]]:
        """The worker processes, and what they work on, at most 100 tasks of each.

        Raises:
            UnsupportedOperation: there is no store of tasks, or only workers know what they work on.
        """
        tasks, sessions = await begun(self._tasks(), _MAX_BEGUN, values=False)
        return [(each, [task for task in tasks if task.claimant == each.id]) for each in sessions.values()]

    async def schedules(self) -> list[ScheduleInfo]:
        """Schedules of functions, and durable ones.

        Raises:
            UnsupportedOperation: the store keeps neither.
            InvalidOption, MissingExtra: a time zone isn't known here, or there is no parser for `cron`.
        """
        return sorted([info for kind in self._kinds() for info in await kind.inspect_all()])

    async def actions(self) -> list[Action]:
        """The last actions on these stores that this machine has written down, the latest first."""
        return await to_thread.run_sync(last_actions, self.urls())

    def urls(self) -> set[str]:
        """The URLs of the stores, without secrets."""
        stores = self.queues, None if self.tasks is None else self.tasks._here()
        return {store.url for store in stores if store is not None}

    def acting(self, action: str, subject: str, *, of_tasks: bool = False) -> AbstractContextManager[Acting]:
        """Write down an action of this process, when it has ended. `of_tasks`: on their store."""
        store = self._tasks()._here() if of_tasks else self._queues()
        return acting(action, subject, store.url)

    async def pause(self, name: str, *, resume: bool = False) -> None:
        """Pause or resume a queue, or that of a key (`name:key`), for everybody.

        Raises:
            QueueNotFound: there is none.
            StoreError: the store can't be reached.
        """
        queue = self._queue(name)
        await (queue.resume() if resume else queue.pause())

    async def weigh(self, name: str, weight: int) -> None:
        """Set the weight of a key (`name:key`) for all processes; 0: each has its own.

        Raises:
            InvalidOption: it isn't from 0 to 1,000, or the store has no keys under one rate.
            QueueNotFound, StoreError: as for `pause`.
        """
        await self._queue(name).configure(weight=weight)

    async def change_schedule(self, info: ScheduleInfo, change: str) -> None:
        """Do `pause`, `resume` or `fire` with a schedule.

        Raises:
            ScheduleNotFound: there is none.
            StoreError: the store can't be reached.
        """
        for kind in self._kinds():
            if isinstance(kind, TaskSchedules) == (info.queue is not None):
                await getattr(kind, change)(info.name)
                return
        raise ScheduleNotFound(info.name, self._queues().url)

    async def aclose(self) -> None:
        """Close what `opened` opened."""
        self.logs.close()
        if self.tasks is not None:
            await self.tasks.aclose()
        if self.queues is not None:
            await self.queues.aclose()

    def _kinds(self) -> list[Schedules | TaskSchedules]:
        kinds: list[Schedules | TaskSchedules] = []
        with suppress(UnsupportedOperation):
            kinds.append(Schedules(self._queues()))
        if self.tasks is not None:
            kinds.append(self.tasks.schedules)
        if not kinds:
            raise UnsupportedOperation(self._queues().url, "this store keeps no schedules")
        return kinds

    def _queue(self, name: str) -> IntervalQueue:
        name, colon, key = name.partition(":")
        queue = IntervalQueue(name, store=self._queues())
        return queue[key] if colon else queue

    def _queues(self) -> Store:
        if self.queues is None:
            raise UnsupportedOperation("the store", "it has no queues")
        return self.queues

    def _tasks(self) -> Tasks:
        if self.tasks is None:
            raise UnsupportedOperation(self._queues().url, "this store keeps no tasks")
        return self.tasks


def tasks_at(url: str | None) -> Tasks | None:
    """The tasks at the URL of queues and schedules; None: that store keeps none."""
    url = given_url(url)
    tasks = Tasks(None if url is None else sound_url(url, otherwise="file")[1])
    try:
        tasks._here()
    except UnknownStore:
        return None
    return tasks
