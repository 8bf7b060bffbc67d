"""Durable tasks for blocking code: inserting, also at set times, looking, cancelling, and locks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self, Unpack

import anyio

from intervalq._queue.options import Duration
from intervalq._timing.background_loop import BACKGROUND
from intervalq.schedules import ScheduleInfo
from intervalq.tasks._claim.task import Task
from intervalq.tasks._handle.keywords import (
    NewOptions,
    OutcomesLook,
    QueuesLook,
    ScheduleOptions,
    TasksLook,
    TasksOptions,
)
from intervalq.tasks._handle.outcome import Outcome
from intervalq.tasks._handle.tasks import Modified
from intervalq.tasks._handle.tasks import Tasks as AsyncTasks
from intervalq.tasks.rules import Cancelled, Change, Delete, Depend, Insert, QueueStats


class TaskSchedules:
    """`intervalq.tasks.TaskSchedules` for blocking code."""

    def __init__(self, here: Callable[[], AsyncTasks]) -> None:
        self._here = here

    def inspect_all(self, *, upcoming: int = 1) -> list[ScheduleInfo]:
        """The schedules. See `intervalq.tasks.TaskSchedules.inspect_all`."""
        return BACKGROUND.call(lambda: self._here().schedules.inspect_all(upcoming=upcoming))

    def inspect(self, name: str, *, upcoming: int = 10) -> ScheduleInfo:
        """One schedule. See `intervalq.tasks.TaskSchedules.inspect`."""
        return BACKGROUND.call(lambda: self._here().schedules.inspect(name, upcoming=upcoming))

    def fire(self, name: str) -> str:
        """Insert the task of a schedule now. See `intervalq.tasks.TaskSchedules.fire`."""
        return BACKGROUND.call(lambda: self._here().schedules.fire(name))

    def pause(self, name: str) -> None:
        """Let a schedule insert nothing. See `intervalq.tasks.TaskSchedules.pause`."""
        BACKGROUND.call(lambda: self._here().schedules.pause(name))

    def resume(self, name: str) -> None:
        """End a pause. See `intervalq.tasks.TaskSchedules.resume`."""
        BACKGROUND.call(lambda: self._here().schedules.resume(name))

    def drop(self, name: str) -> None:
        """Forget a schedule. See `intervalq.tasks.TaskSchedules.drop`."""
        BACKGROUND.call(lambda: self._here().schedules.drop(name))


class Tasks:
    """`intervalq.tasks.Tasks` for blocking code: the same arguments, the same store, plain calls.

    Safe from any number of threads, and in child processes after a fork. To insert in a transaction of a
    blocking driver of Postgres, call the SQL function `intervalq.enqueue` in it.
    """

    def __init__(self, store: str | os.PathLike[str] | None = None, **options: Unpack[TasksOptions]) -> None:
        self._made = (store, options)
        self._tasks = AsyncTasks(store, **options)
        self._process = os.getpid()

    def new(self, queue: str, value: object, **options: Unpack[NewOptions]) -> Insert:
        """A task to be inserted by `modify`. See `intervalq.tasks.Tasks.new`."""
        return self._tasks.new(queue, value, **options)

    def insert(self, queue: str, value: object, **options: Unpack[NewOptions]) -> str:
        """Insert a task, and return its id. See `intervalq.tasks.Tasks.insert`."""
        return BACKGROUND.call(lambda: self._here().insert(queue, value, **options))

    def put(self, queue: str, values: Iterable[object]) -> int:
        """Insert many plain tasks. See `intervalq.tasks.Tasks.put`."""
        return BACKGROUND.call(lambda: self._here().put(queue, values))

    def modify(self, *parts: Insert | Change | Delete | Depend) -> Modified:
        """Insert, change and delete tasks. See `intervalq.tasks.Tasks.modify`."""
        return BACKGROUND.call(lambda: self._here().modify(*parts))

    def batch(self, parts: Iterable[Insert], follow_up: Insert) -> str:
        """Insert tasks, and one for when all of them have ended. See `intervalq.tasks.Tasks.batch`."""
        return BACKGROUND.call(lambda: self._here().batch(parts, follow_up))

    def cancel(self, *ids: str) -> Cancelled:
        """Cancel tasks, waiting or running. See `intervalq.tasks.Tasks.cancel`."""
        return BACKGROUND.call(lambda: self._here().cancel(*ids))

    def schedule(
        self, name: str, queue: str, value: object = None, **options: Unpack[ScheduleOptions]
    ) -> None:
        """Insert a task at set times from now on. See `intervalq.tasks.Tasks.schedule`."""
        BACKGROUND.call(lambda: self._here().schedule(name, queue, value, **options))

    @property
    def schedules(self) -> TaskSchedules:
        """The durable schedules of the store. See `intervalq.tasks.Tasks.schedules`."""
        return TaskSchedules(self._here)

    def tasks(self, queue: str | None = None, **options: Unpack[TasksLook]) -> list[Task]:
        """Tasks of a queue. See `intervalq.tasks.Tasks.tasks`."""
        return BACKGROUND.call(lambda: self._here().tasks(queue, **options))

    def queues(self, *names: str, **options: Unpack[QueuesLook]) -> list[QueueStats]:
        """The queues that have tasks. See `intervalq.tasks.Tasks.queues`."""
        return BACKGROUND.call(lambda: self._here().queues(*names, **options))

    def outcomes(self, queue: str | None = None, **options: Unpack[OutcomesLook]) -> list[Outcome]:
        """Outcomes of tasks that have ended. See `intervalq.tasks.Tasks.outcomes`."""
        return BACKGROUND.call(lambda: self._here().outcomes(queue, **options))

    def result(self, id: str, timeout: Duration | None = None) -> Any:  # noqa: A002, ANN401 - as there
        """What the function of a kept task returned. See `intervalq.tasks.Tasks.result`."""
        return BACKGROUND.call(lambda: self._here().result(id, timeout))

    def wait(self, ids: Iterable[str], timeout: Duration | None = None) -> list[Outcome]:
        """The outcomes of kept tasks, once all have ended. See `intervalq.tasks.Tasks.wait`."""
        return BACKGROUND.call(lambda: self._here().wait(ids, timeout))

    def wait_empty(self, *queues: str, timeout: Duration | None = None) -> None:
        """Wait until none of the queues has any task. See `intervalq.tasks.Tasks.wait_empty`."""
        BACKGROUND.call(lambda: self._here().wait_empty(*queues, timeout=timeout))

    @contextmanager
    def lock(
        self, name: str, *, timeout: Duration | None = None, expiry: Duration | None = None
    ) -> Iterator[int]:
        """Hold an exclusive lock: `with tasks.lock("car1") as fence:`. See `intervalq.tasks.Tasks.lock`.

        Blocking code can't be cancelled, so it goes on if the lock is lost, and `LockLost` is raised at its
        end. With the fencing number, what it writes can be refused.
        """
        entered = Future[tuple[int, anyio.Event]]()

        async def hold() -> None:
            over = anyio.Event()
            async with self._here().lock(name, timeout=timeout, expiry=expiry) as fence:
                entered.set_result((fence, over))
                await over.wait()

        def ended(holder: Future[None]) -> None:
            if not entered.done():  # it was not acquired
                entered.set_exception(holder.exception() or RuntimeError("the lock ended before it began"))

        holder = BACKGROUND.start(hold)
        holder.add_done_callback(ended)
        try:
            fence, over = entered.result()
        except BaseException:  # an interrupt, perhaps
            holder.cancel()
            raise
        try:
            yield fence
        except BaseException:
            BACKGROUND.tell(over.set)
            with suppress(Exception):  # the error of the code is raised
                holder.result()
            raise
        BACKGROUND.tell(over.set)
        holder.result()

    def close(self) -> None:
        """Close all connections. The handle can be used again."""
        if self._process == os.getpid():
            BACKGROUND.call(self._tasks.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _here(self) -> AsyncTasks:
        if self._process != os.getpid():  # a child must not use the connections of its parent
            store, options = self._made
            self._tasks, self._process = AsyncTasks(store, **options), os.getpid()
        return self._tasks

    def __repr__(self) -> str:
        return repr(self._tasks)
