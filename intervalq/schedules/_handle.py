"""`Schedules`: the handle with which users declare, run and change schedules."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, TypeVar, Unpack

import anyio

from intervalq._queue.options import Duration
from intervalq._spec import parse
from intervalq._timing.clock import CLOCK
from intervalq.errors import InvalidOption, ScheduleNotFound, StoreUnavailable
from intervalq.schedules._choice import Misfire
from intervalq.schedules._holder import host_of, runs_command
from intervalq.schedules._occurrence import Occurrence
from intervalq.schedules._records import Records
from intervalq.schedules._runner import Runner, look_first, look_often
from intervalq.schedules._task import Overlap, ScheduledTask, checked_function, checked_policies
from intervalq.schedules._times.plan import Plan
from intervalq.schedules.rules import Record, ask, pause, resume
from intervalq.store import Store, checked_store, open_store, scheduling

if TYPE_CHECKING:
    from intervalq._queue.queue import IntervalQueue

F = TypeVar("F", bound=Callable[[Occurrence], Any] | Callable[[], Any])

_LOOK: Final = 60.0
"""Seconds between two looks for schedules that were paused, resumed or changed elsewhere."""

_GRACE: Final = 60
_SHOWN: Final = 10


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, apart from when it occurs."""

    name: str
    """Its name, which all processes share. Default: that of the function."""
    start: datetime
    """Nothing occurs before this time. Without a zone it is in that of the schedule."""
    end: datetime
    """Nothing occurs after this time."""
    window: str
    """The part of the day in which it occurs, such as `22:00-06:00`, in the schedule's zone; the end doesn't
    belong to it. Default: all of it."""
    jitter: Duration
    """By how much each occurrence may start later than it is scheduled, and before the next one is: the same
    time in every process, different for each occurrence and schedule. Default: 0."""
    misfire: Misfire
    """What happens to occurrences that come too late, for example because no process ran. `skip`, the
    default: they don't fire. `once`: the last of them fires. `all`: all of them fire, in order."""
    grace: Duration
    """With `misfire="skip"`: how late an occurrence may start. Default: 60 seconds."""
    overlap: Overlap
    """What happens to an occurrence while the function still runs for an earlier one, in any process. `skip`,
    the default: it doesn't fire. `wait`: it fires when that run ends; of several, only the last one (all of
    them with `misfire="all"`). `allow`: it fires, and the runs overlap."""
    queue: IntervalQueue
    """A queue: once its occurrence has fired, the function waits for a slot of it. Default: none."""


class ScheduleInfo(NamedTuple):
    """A schedule, as the store has it. Times are in the schedule's zone."""

    name: str
    plan: str
    """When it occurs, in words."""
    paused: bool
    running: bool
    """Whether the function runs somewhere; False with `overlap="allow"`, with which nobody knows, and for
    durable schedules."""
    last: datetime | None
    """The scheduled time of the last occurrence that fired; None: none has."""
    upcoming: tuple[datetime, ...]
    """The next scheduled times, also while it is paused."""
    queue: str | None = None
    """The queue of its tasks, if it is a durable schedule (`Tasks.schedule`)."""
    host: str | None = None
    """The machine that fired the last occurrence; None: none has, or it is a durable schedule."""
    is_command: bool = False
    """Whether it is one of `intervalq once`, which cron starts on the hosts."""
    skipped: tuple[datetime, ...] = ()
    """The times since `last` that processes let pass, because the function still ran or they came too late
    (`overlap`, `misfire`): at most the last 100. The next occurrence reports them as missed."""
    overdue: tuple[datetime, ...] = ()
    """The times that no process has taken up, though they have been due for a second: at most the last 100.
    `misfire` decides what a process does with them once it runs the schedule. Empty in a pause, while the
    function runs, and for durable schedules, whose `upcoming` begins with the first time that no worker has
    taken up."""


class Schedules:
    """Functions that are called at set times, each time by one of the processes that run the same schedules.

    A handle doesn't connect until it is used, and belongs to one event loop.

    Args:
        store: a URL, a path, or a store object. None: the environment variable `INTERVALQ_STORE`, else the
            SQLite database in the user's state folder, as for queues.

    Raises:
        UnknownStore, MissingExtra, InvalidOption, StoreError: as for `intervalq.store.open_store`.
        UnsupportedOperation: the store keeps no schedules.
    """

    def __init__(self, store: str | os.PathLike[str] | Store | None = None) -> None:
        self._is_own = store is None or isinstance(store, str | os.PathLike)
        self._given = store
        self._open()
        self._tasks: dict[str, ScheduledTask] = {}
        self._runs: list[tuple[Records, dict[str, Runner]]] = []

    def _open(self) -> None:
        self._clock, given = CLOCK.get(), self._given
        self._opened: Store = (
            open_store(None if given is None else os.fspath(given))
            if given is None or isinstance(given, str | os.PathLike)
            else checked_store(given)
        )
        self._store = scheduling(self._opened)

    def _records(self) -> Records:
        if self._is_own and self._clock is not CLOCK.get():
            self._open()
        return Records(self._store, self._opened.url)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._opened.url}>"

    # --- declarations -------------------------------------------------------------------------------

    def every(
        self, interval: Duration, *, timezone: str = "UTC", **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """Call the decorated function every so often.

        The times are multiples of the interval since 1970, UTC, or since `start`: `5m` means :00, :05 ...

        Args:
            interval: from a millisecond to a year: seconds, a timedelta, or text such as `5m`, `1.5h`, `1d`.
            timezone: the zone of `window`, and of the times that the function gets.
            options: see `ScheduleOptions`.

        Raises:
            InvalidInterval, InvalidOption, InvalidName: an argument is wrong.
        """
        if callable(interval):
            raise InvalidOption("give the interval in parentheses: @schedules.every('5m')")
        return self._declared({"every": interval, "timezone": timezone}, options)

    def cron(
        self, expression: str, *, timezone: str = "UTC", **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """Call the decorated function at the times of a cron expression.

        Args:
            expression: five fields (minute, hour, day of the month, month, day of the week), with names such
                as `mon`, lists, ranges and steps, as Debian's cron knows them; or `@daily` and its like.
            timezone: the zone of its times. If minute and hour are not `*`, a time that is skipped for
                daylight saving fires once at the end of the gap, and one that comes twice fires once.
            options: see `ScheduleOptions`.

        Raises:
            InvalidInterval, InvalidOption, InvalidName: an argument is wrong.
            MissingExtra: the parser isn't installed: `pip install 'intervalq[schedules]'`.
        """
        if callable(expression):
            raise InvalidOption("give the expression in parentheses: @schedules.cron('0 3 * * *')")
        return self._declared({"cron": expression, "timezone": timezone}, options)

    def _declared(self, times: dict[str, Any], options: ScheduleOptions) -> Callable[[F], F]:
        given: dict[str, Any] = dict(options)
        name = given.pop("name", None)
        misfire, overlap = given.pop("misfire", "skip"), given.pop("overlap", "skip")
        checked_policies(misfire, overlap)
        grace = parse.duration(given.pop("grace", _GRACE), what="grace")
        queue = given.pop("queue", None)
        plan = Plan.of(**times, **given)

        def declared(function: F) -> F:
            checked_function(function)
            own = parse.name(name or getattr(function, "__name__", None), what="name of a schedule")
            if own in self._tasks:
                raise InvalidOption(f"there is a schedule {own!r} already: give this one a name=")
            self._tasks[own] = ScheduledTask(
                name=own,
                plan=plan,
                function=function,
                misfire=misfire,
                grace=grace if misfire == "skip" else None,
                overlap=overlap,
                queue=queue,
            )
            return function

        return declared

    # --- running ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the declared schedules until cancelled, in as many processes as you like.

        A schedule that the store doesn't have, or has with other times, gets those of this program; other
        processes learn that within a minute. What a function raises is logged. While the store can't be
        reached, nothing fires, and it is tried again and again.

        Raises:
            InvalidOption: no schedule is declared.
            StoreError: the store can't keep schedules, or a record in it is broken.
        """
        if not self._tasks:
            raise InvalidOption(
                "there is no schedule to run: decorate functions with every(...) or cron(...)"
            )
        records = self._records()
        await look_first(records, [*self._tasks])
        try:
            async with anyio.create_task_group() as group:
                runners = {name: Runner(task, records, group) for name, task in self._tasks.items()}
                own = records, runners
                self._runs.append(own)
                for runner in runners.values():
                    group.start_soon(runner.follow)
                try:
                    await look_often(records, runners, _LOOK)
                finally:
                    self._runs.remove(own)
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # they have been logged

    # --- from anywhere ------------------------------------------------------------------------------

    async def inspect_all(self, *, upcoming: int = 1) -> list[ScheduleInfo]:
        """The schedules in the store, sorted by name.

        Args:
            upcoming: how many of the next times of each to list.

        Raises:
            StoreError: the store can't be read, or a record in it is broken.
            InvalidOption, MissingExtra: a time zone isn't known here, or there is no parser for `cron`.
        """
        records = await self._look(None)
        return [self._info(records, name, upcoming) for name in records.names]

    async def inspect(self, name: str, *, upcoming: int = _SHOWN) -> ScheduleInfo:
        """One schedule of the store.

        Args:
            name: its name.
            upcoming: how many of its next times to list.

        Raises:
            ScheduleNotFound: the store has no such schedule.
            StoreError, InvalidOption, MissingExtra: as for `inspect_all`.
        """
        records = await self._look(name)
        return self._info(records, name, upcoming)

    async def pause(self, name: str) -> None:
        """Stop a schedule from firing, in every process, until `resume`. What runs goes on.

        Processes learn it before their next occurrence.

        Raises:
            ScheduleNotFound: the store has no such schedule.
            StoreError: as for `inspect_all`.
        """
        await self._change(name, lambda record, _: pause(record))

    async def resume(self, name: str) -> None:
        """End a pause. Occurrences in it are not made up for; the next one fires.

        Processes learn of it when that occurs, or within a second if it occurs more often; what runs by this
        handle learns of it at once.

        Raises:
            ScheduleNotFound: the store has no such schedule.
            StoreError: as for `inspect_all`.
        """
        await self._change(name, resume)

    async def fire(self, name: str) -> None:
        """Fire a schedule now, in one of its processes: beside its times, and even while it is paused.

        They learn of it within a minute; what runs by this handle at once.

        Raises:
            ScheduleNotFound: the store has no such schedule.
            InvalidOption: it is one of `intervalq once`, which has no processes that wait.
            StoreError: as for `inspect_all`.
        """

        def asked(record: Record, now: int) -> Record:
            if runs_command(record.holder):
                raise InvalidOption(
                    f"schedule {name!r} is one of `intervalq once`: no process waits to run its command. Run "
                    "the command itself, on the host of your choice"
                )
            return ask(record, now)

        await self._change(name, asked)

    async def drop(self, name: str) -> None:
        """Forget a schedule. A process that still runs it creates it again.

        Raises:
            ScheduleNotFound: the store has no such schedule.
            StoreError: as for `inspect_all`.
        """
        await (await self._look(name)).drop(name)
        await self._tell(name)

    async def _look(self, name: str | None) -> Records:
        records = self._records()
        await records.look(None if name is None else [name])
        if name is not None and name not in records.names:
            raise ScheduleNotFound(name, self._opened.url)
        return records

    async def _change(self, name: str, change: Callable[[Record, int], Record]) -> None:
        records = await self._look(name)

        def changed(record: Record | None, now: int) -> Record | None:
            return None if record is None else change(record, now)

        await records.change(name, changed)
        await self._tell(name)

    async def _tell(self, name: str) -> None:
        """Let what this handle runs look at a schedule that has changed."""
        for records, runners in self._runs:
            if name in runners:
                with suppress(StoreUnavailable):  # the change is made, and they will look themselves
                    await records.look([name])
                runners[name].wake()

    def _info(self, records: Records, name: str, upcoming: int) -> ScheduleInfo:
        record = records.get(name)
        assert record is not None
        plan = records.plan(name, record)
        times: list[datetime] = []
        now = records.now()
        is_running = record.running and now < record.until
        at = max(now, record.through)
        while len(times) < upcoming and (following := plan.after(at)) is not None:
            times.append(plan.time(following))
            at = following
        return ScheduleInfo(
            name,
            str(plan),
            record.paused,
            is_running,
            None if record.fired is None else plan.time(record.fired),
            tuple(times),
            host=None if record.fired is None else host_of(record.holder),
            is_command=runs_command(record.holder),
            skipped=plan.times(max(record.reported, record.fired or 0), record.through),
            overdue=() if record.paused or is_running else plan.overdue(name, record.through, now),
        )

    def _twin(self, store: str | os.PathLike[str] | None) -> Schedules:
        """A handle of its own with the same schedules, for a forked child."""
        made = Schedules(store)
        made._tasks = dict(self._tasks)
        return made

    # --- closing ------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connections to the store, which is opened again if it is used again.

        A store object that was given stays open.
        """
        if self._is_own:
            await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
