"""The part of `Tasks` for durable schedules: what inserts tasks at set times."""

from __future__ import annotations

from datetime import datetime

from intervalq._queue.options import Duration
from intervalq._spec import parse
from intervalq.errors import InvalidOption, short
from intervalq.schedules._choice import Misfire
from intervalq.schedules._times.plan import Plan
from intervalq.tasks._claim import values as _values
from intervalq.tasks._handle.claiming import Claiming
from intervalq.tasks._schedule.changes import TaskSchedules, put
from intervalq.tasks._schedule.record import Stored
from intervalq.tasks.store import refuse_inserts

_MISFIRES = ("all", "once", "skip")


class Scheduling(Claiming):
    """Durable schedules."""

    async def schedule(
        self,
        name: str,
        queue: str,
        value: object = None,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        start: datetime | None = None,
        end: datetime | None = None,
        window: str | None = None,
        jitter: Duration = 0,
        misfire: Misfire = "all",
        grace: Duration = 60,
        key: str | None = None,
        replace: bool = False,
        priority: int = 0,
        keep: Duration | None = None,
    ) -> None:
        """Insert a task at set times from now on, whatever happens to processes: once for each occurrence.

        The store keeps the schedule. Any process that runs workers of this store (`run`, `intervalq work`)
        keeps it going; without one, tasks are inserted once there is one again. A task's id is the
        schedule's name and the occurrence's time in UTC, such as `nightly/2026-11-22T03:00Z`.

        If the schedule exists, this changes it, and does nothing if it is the same. What lies before a change
        of its times is not made up for.

        Args:
            name: the name of the schedule.
            queue: the queue of its tasks.
            value: the value of its tasks: any JSON value.
            every: the time between two occurrences, from a millisecond to a year. They are multiples of it
                since 1970, UTC, or since `start`. One of `every` and `cron` is given.
            cron: a cron expression, see `intervalq.schedules.Schedules.cron`.
            timezone: the zone of `cron` and `window`.
            start: nothing occurs before this time. Without a zone it is in that of the schedule. None: now.
            end: nothing occurs after this time. None: there is no end.
            window: the part of the day in which it occurs, such as `22:00-06:00`. None: all of it.
            jitter: by how much an occurrence may be inserted later than it is scheduled.
            misfire: what happens to occurrences that come too late, because no worker ran: `all`: each one is
                inserted. `once`: the last of them is. `skip`: none is, unless at most `grace` late.
            grace: with `misfire="skip"`: how late an occurrence may be.
            key, replace, priority, keep: as for `new`. With a key, the tasks of a schedule run one after the
                other, with `replace` only the newest of those that wait.

        Raises:
            InvalidName, InvalidTask, InvalidInterval, InvalidOption: an argument is wrong.
            MissingExtra: the parser isn't installed: `pip install 'intervalq[schedules]'`.
            UnsupportedOperation: the store has no `keep`, or no `priority`.
            StoreError: the schedule may not be kept; it is safe to repeat this.
        """
        if (every is None) == (cron is None):
            raise InvalidOption("give one of every= and cron=: it says when the schedule occurs")
        if misfire not in _MISFIRES:
            raise InvalidOption(f"misfire={short(misfire)} must be one of {', '.join(_MISFIRES)}")
        late = parse.duration(grace, what="grace")
        task = _values.insert(
            queue, value, key=key, replace=replace, priority=priority, keep=keep, form=self._form
        )
        refuse_inserts(self._here(), [task])
        new = Stored(
            name=parse.name(name, what="name of a schedule"),
            plan=Plan.of(
                every=every, cron=cron, timezone=timezone, start=start, end=end, window=window, jitter=jitter
            ),
            task=task._replace(id="", skip=True),
            misfire=misfire,
            grace=late if misfire == "skip" else None,
        )
        await put(self, new)
        if self._keeper is not None:
            self._keeper.look()

    @property
    def schedules(self) -> TaskSchedules:
        """The durable schedules of the store, to look at and to change."""
        return TaskSchedules(self)
