"""The methods that act on a whole queue, for all of its handles: pause, cool down, configure, inspect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from intervalq._keys.each import (
    OF_ALL,
    SHARED,
    in_words,
    limits_of,
    not_of_common,
    not_of_key,
    refuse_edges,
)
from intervalq._queue.handle import Handle
from intervalq._queue.options import Cost, Duration, Options, Rate, check_burst, options, whole
from intervalq._shard.wait_queue import Waiter
from intervalq._spec import parse
from intervalq._spec.keys.sharing import has_own_pace
from intervalq._spec.limits import Limit, Limits, limit_of, rules_of
from intervalq._spec.record import MAX_WEIGHT
from intervalq.errors import InvalidOption, QueueNotFound
from intervalq.rules import (
    Answer,
    Command,
    Configure,
    Drop,
    Hold,
    Inspect,
    Reclaim,
    Refusal,
    Resume,
    Settings,
    State,
)
from intervalq.store import pairing

if TYPE_CHECKING:
    from intervalq._queue.inspect import QueueState
    from intervalq._shard.grants import Grant

H = TypeVar("H", bound=Handle)

_TOGETHER: Final = 64
"""How many keys to ask about at the same time."""


async def each_of(handles: Iterable[H], action: Callable[[H], Awaitable[object]]) -> None:
    """Do something with many handles, some at a time."""
    limiter = anyio.CapacityLimiter(_TOGETHER)

    async def one(handle: H) -> None:
        async with limiter:
            await action(handle)

    try:
        async with anyio.create_task_group() as group:
            for handle in handles:
                group.start_soon(one, handle)
    except ExceptionGroup as several:
        raise several.exceptions[0] from None  # the others are alike


class Control(Handle):
    """The part of an `IntervalQueue` that acts on the queue's record instead of on this handle's jobs."""

    async def start(self) -> None:
        """Release the jobs that `start=False` has held back: those of this handle and of its keys."""
        self._options = replace(self._options, start=True)
        if self._shard_here is not None:
            self._shard().start()
        if "blocking" in self.__dict__:  # the same handle for plain functions
            self.__dict__["blocking"].start()
        for child in list(self._children.values()):
            await child.start()

    async def pause(self) -> None:
        """Stop every shard of the queue until somebody resumes it.

        Jobs whose slots are already granted may still begin: for up to 50 ms or two round trips, and for up
        to 100 ms more in a process that wakes late. Slots move by the length of the pause, and keep their
        order.
        """
        await self._command(Hold())

    async def resume(self) -> None:
        """End every pause and cool-down at once; the queue goes on at its pace, without a burst."""
        await self._command(Resume())

    async def cool_down(self, seconds: Duration) -> None:
        """Stop every shard of the queue for a while, as a server's Retry-After requests.

        If several pauses and cool-downs overlap, the one that ends last counts.
        """
        await self._command(Hold(length=parse.duration(seconds, what="cool-down")))

    async def _refused(self, grant: Grant, seconds: float) -> None:
        """Hold the queue after a server refused the job of this slot, and requested a pause (0: none).

        A rate that finds the server's limit is cut in the same step, unless it was cut for an earlier refusal
        after the slot had been handed out.
        """
        shard = self._shard()
        for count in self._count_refusals:
            count()
        refusal, pace = None, None if shard.state is None else shard.state.pace
        if pace is not None and grant.range.record == shard.grants.record and grant.ticket > pace.cut_ticket:
            refusal = Refusal(grant.ticket, grant.slot.due)
        if refusal is not None or seconds > 0:
            await self._command(Hold(length=parse.duration(seconds, what="cool-down"), refusal=refusal))

    async def configure(
        self,
        *,
        interval: Duration | None = None,
        rate: Rate | None = None,
        floor: Rate | None = None,
        ceiling: Rate | None = None,
        burst: int | None = None,
        max_running: int | None = None,
        limits: Limits | None = None,
        weight: int | None = None,
    ) -> None:
        """Change the queue for everybody, while it runs; None leaves a setting as it is.

        A longer interval applies at once: waiting jobs take new tickets. A shorter one applies after the
        slots that are already handed out. `max_running=0` removes the limit. The queue of each key is
        configured separately.

        Args:
            interval: see `IntervalQueue`.
            rate: see `IntervalQueue`. `auto` with other bounds keeps what was learned; an interval or another
                rate ends it.
            floor: see `IntervalQueue`.
            ceiling: see `IntervalQueue`.
            burst: see `IntervalQueue`.
            max_running: see `IntervalQueue`.
            limits: all the limits from now on; an empty list removes them. A limit whose unit and window are
                as before keeps what was counted. A new one takes over what another limit of its unit counted,
                or counts from now on. Waiting jobs take new tickets. Jobs of a handle that doesn't know a
                unit take none of it.
            weight: of a key under `each="shared"`, for all of its handles from now on, whatever they gave to
                `key`; 0: each has its own again. It is kept until the key has been idle for a week.
        """
        checked = options(
            self._options.name, interval=interval, rate=rate, floor=floor, ceiling=ceiling, store_url=None,
            burst=1, lookahead=None, tolerance=None, max_running=None, timeout=None, retries=0, backoff=0,
            retry_after=False,
        )  # fmt: skip
        has_pace, has_others = (interval, rate) != (None, None), (burst, max_running) != (None, None)
        self._check_each(has_pace=has_pace, has_others=has_others)
        if weight is not None:
            self._check_weight(whole("weight", weight, 0, MAX_WEIGHT))
        command = Configure(
            interval=checked.interval if checked.auto is None else None,
            auto=checked.auto,
            burst=None if burst is None else whole("burst", burst, 1),
            max_running=None if max_running is None else whole("max_running", max_running, 0),
            limits=None if limits is None else (limits_of if self._options.is_keyed else rules_of)(limits),
            weight=weight,
        )
        before = (await self._command(Inspect(), may_be_new=True)).state
        if self._options.each is None:
            self._check_record(before, command, has_pace=has_pace, has_others=has_others)
        if before is not None:
            settings = before.settings
            if not settings.has_pace and (checked.interval or command.burst):
                raise InvalidOption(
                    f"queue {self.name!r} has limits and no interval, which can't be changed while it "
                    "runs: drop it, and create it with both"
                )
            if not settings.has_pace and command.limits == ():
                raise InvalidOption(f"queue {self.name!r} has no interval: it needs at least one limit")
            longest = settings.interval if settings.auto is None else settings.auto.slowest
            check_burst(checked.interval or longest, command.burst or settings.burst)
            # From now on this handle uses the queue's settings instead of its own.
            self._shard().connection.adopt(settings, self._options.counted)
        answer = await self._command(command)
        if answer.state is not None:
            self._use(answer.state.settings)
            self._stay()

    def _use(self, settings: Settings) -> None:
        """Use the settings of the queue from now on, also for its keys."""
        mine = self._options
        units = tuple([limit.unit for limit in settings.limits])
        # The known units stay first, because waiting jobs list what they take in that order.
        counted = (*mine.counted, *(unit for unit in units if unit not in mine.counted))
        if self._shard_here is not None:
            self._shard_here.connection.adopt(settings, counted)
        if mine.is_keyed:
            each, own = mine.each and settings.interval, settings.limits[: settings.own]
            limits = settings.limits[settings.own :]
            self._options = replace(mine, each=each, own=own, limits=limits, counted=counted)
            return
        self._options = replace(
            mine,
            interval=settings.interval, burst=settings.burst, max_running=settings.max_running,
            tolerance=settings.tolerance, limits=settings.limits, counted=counted,
            auto=settings.auto,
        )  # fmt: skip
        for child in list(self._children.values()):
            child._follow(self._options)  # noqa: SLF001 - its own class

    def _agreed(self) -> Options:
        """The settings of this handle: those of the queue, as far as it has adopted them."""
        shard = self._shard_here
        if self._options.on_mismatch == "adopt" and shard is not None and shard.connection.attached:
            state = shard.connection.state
            if state is not None and state.settings.limits != self._options.all_limits:
                self._use(state.settings)
        return self._options

    def _follow(self, common: Options) -> None:
        """If this is a key under the queue with these settings, use them from now on, too."""
        mine = self._options
        if mine.is_keyed:
            self._options = replace(
                mine, interval=common.interval, tolerance=common.tolerance, limits=common.limits,
                counted=(*common.counted, *(each for each in mine.counted if each not in common.counted)),
            )  # fmt: skip
            if (shard := self._shard_here) is not None and (settings := self._options.settings) is not None:
                shard.connection.adopt(settings, self._options.counted)

    def _check_each(self, *, has_pace: bool, has_others: bool) -> None:
        """Refuse settings that keys under one rate don't have."""
        mine = self._options
        if mine.is_keyed and (has_others or (has_pace and mine.each == OF_ALL)):
            raise not_of_key(self.name, mine.name)
        if mine.each is not None and has_others:
            raise not_of_common(self.name)

    def _check_weight(self, weight: int) -> None:
        """Refuse a weight where there is none."""
        mine = self._options
        if mine.key is None or mine.each not in {None, OF_ALL}:  # None: see `_check_record`
            raise self._not_weighted(weight)
        pairing(self._open())

    def _check_record(
        self, state: State | None, command: Configure, *, has_pace: bool, has_others: bool
    ) -> None:
        """Refuse what the record can't have if it is that of a key under one rate, or isn't.

        The handle itself doesn't know `each`.
        """
        own_pace = None if state is None else has_own_pace(state)
        if command.weight is not None and own_pace is not False:
            raise self._not_weighted(command.weight)
        if own_pace is not None:
            if has_others or (has_pace and not own_pace):
                raise not_of_key(self.name, self._options.name)
            refuse_edges(command.limits or ())

    def _not_weighted(self, weight: int) -> InvalidOption:
        return InvalidOption(
            f"weight={weight} is for a key under each={SHARED!r}, and {self.name!r} is none: "
            "await queue['tenant-42'].configure(weight=...)"
        )

    async def _known_limits(self) -> tuple[Limit, ...]:
        """The queue's limits as `configure` takes them."""
        state = (await self._command(Inspect())).state
        limits = () if state is None else state.settings.limits
        return tuple([limit_of(limit) for limit in limits])

    async def reclaim(self) -> int:
        """Free the slots of shards that died, and return how many tickets were outstanding.

        Live shards lose their tickets, too, and take new ones by themselves.
        """
        from intervalq._queue.inspect import outstanding  # noqa: PLC0415 - few programs look at their queues

        before = await self._command(Inspect(), may_be_new=True)
        await self._command(Reclaim())
        return 0 if before.state is None else outstanding(before.state)

    async def drop(self, *, keys: bool = False) -> None:
        """Remove the queue's record from the store. The next job creates it again.

        Args:
            keys: also remove the records of its keys, before its own. Their waiting jobs take new tickets.
        """
        if keys:
            await each_of(await self._known_keys(), Control.drop)
        await self._shard().command(Drop())

    async def keys(self) -> list[QueueState]:
        """The queues of the keys that the store knows, those with the most outstanding tickets first.

        A key that was idle for a minute is forgotten. This reads the names of all queues of the store, and
        then one record for each key, so it is for occasional looks, not for each job. A key has no keys.
        """
        found: list[QueueState] = []

        async def look(key: Control) -> None:
            with suppress(QueueNotFound):  # forgotten in the meantime
                found.append(await key.inspect())

        await each_of(await self._known_keys(), look)
        return sorted(found, key=lambda state: (-state.outstanding, state.name))

    async def _known_keys(self) -> list[Control]:
        """The handles of all keys that the store knows."""
        if self._options.key is not None:
            return []
        self._shard()  # checks process and event loop
        prefix = f"{self._options.name}:"
        names = [name for name in await self._open().names() if name.startswith(prefix)]
        return [self._keyed(name.removeprefix(prefix)) for name in names]

    async def inspect(self) -> QueueState:
        """The queue as the store has it, and the live figures of this handle.

        Raises:
            QueueNotFound: the store has no such queue.
        """
        from intervalq._queue.inspect import inspected  # noqa: PLC0415 - few programs look at their queues

        state, mine = inspected(self._shard(), await self._command(Inspect())), self._options
        return state if mine.key is not None else replace(state, each=in_words(mine.each, mine.own))

    async def quote(self, cost: Cost = 1) -> float | None:
        """Seconds until a job added now would begin, behind those that wait; asking takes no slot.

        0: it would begin at once. None: unknown, because the queue is paused until somebody resumes it, or at
        its limit of running jobs.

        Args:
            cost: the job's cost, possibly by unit as `{"tokens": 1200}`; see `IntervalQueue.add`.

        Raises:
            InvalidOption: a job of this cost can never begin.
            QueueNotFound: the store has no such queue, and this handle has no interval to create it with.
        """
        slots, units = self._agreed().units(cost)
        await self._command(Inspect(), may_be_new=True)
        return self._shard().deadlines.wait(Waiter(cost=slots, units=units))

    async def _command(self, command: Command, *, may_be_new: bool = False) -> Answer:
        answer = await self._shard().command(command)
        if answer.state is None and not (may_be_new and self._options.interval is not None):
            raise QueueNotFound(self.name, self._open().url)
        return answer
