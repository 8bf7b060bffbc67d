"""An active queue: callers of several handles, what began and when, and how each of their calls ended."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from intervalq import IntervalQueue
from intervalq._timing.clock import CLOCK
from intervalq.errors import IntervalqError

INTERVAL = 20_000


@dataclass(frozen=True, slots=True)
class Start:
    """One job that began."""

    at: int
    """The time of the last check, on this process's clock: later delays are the machine's."""
    tolerance: int
    """How late after its slot it was allowed to begin, by its handle's estimate of the store's clock."""
    handle: int
    job: int
    ticket: int
    generation: str
    granted: bool
    """The store is known to have granted that ticket, or a later one."""


class Work:
    """The handles of one queue and their callers, with what began and how calls ended. Made by `working`."""

    def __init__(self, urls: list[str], *, callers: int) -> None:
        self.name = f"w{secrets.token_hex(8)}"
        self.handles = [IntervalQueue(self.name, interval=INTERVAL / 1e6, store=url) for url in urls]
        self.starts: list[Start] = []
        self.calls: list[Counter[int]] = [Counter() for _ in urls]
        """Of each handle: how often each of its calls returned."""
        self.asked = [0 for _ in urls]
        self.errors: list[tuple[int, IntervalqError]] = []
        """Calls that failed, each with the number of its handle."""
        self._callers = callers
        self._stopping = False
        self._news = anyio.Event()
        self._ended = anyio.Event()
        self._running = 0

    def go(self, group: TaskGroup) -> None:
        """Let the callers begin."""
        self._stopping = False
        for handle in range(len(self.handles)):
            for _ in range(self._callers):
                self._running += 1
                group.start_soon(self._call, handle)

    async def stop(self) -> None:
        """Let every call that was made end, and make no more."""
        self._stopping = True
        await self.until(lambda: self._running == 0)

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait for a condition on this object."""
        while not happened():
            assert self._running, f"all callers have failed: {self.errors}"
            await self._news.wait()

    async def more(self, count: int, handle: int | None = None) -> None:
        """Wait until this many more jobs have begun: of one handle, or of each."""
        handles = range(len(self.handles)) if handle is None else [handle]
        before = [self.begun(number) for number in handles]
        await self.until(
            lambda: all(self.begun(n) >= was + count for n, was in zip(handles, before, strict=True))
        )

    def begun(self, handle: int) -> int:
        """How many jobs of a handle have begun."""
        return sum(start.handle == handle for start in self.starts)

    async def _call(self, handle: int) -> None:
        queue = self.handles[handle]
        try:
            while not self._stopping:
                number = self.asked[handle]
                self.asked[handle] += 1

                try:
                    async with queue.slot() as slot:
                        shard = queue._shard()
                        begun_at, state = shard.dispatcher.last.at, shard.state
                        assert begun_at is not None
                        assert state is not None
                        tolerance = state.tolerance + 2 * shard.time.error(state, CLOCK.get().now())
                        self.starts.append(
                            Start(
                                begun_at,
                                tolerance,
                                handle,
                                number,
                                slot.ticket,
                                state.generation,
                                slot.ticket <= state.current,
                            )
                        )
                        self._tell()
                except IntervalqError as error:
                    self.errors.append((handle, error))
                    return
                else:
                    self.calls[handle][number] += 1
                finally:
                    self._tell()
        finally:
            self._running -= 1
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def check(self, *, losses: int = 0, healed: bool = False, failed: int = 0) -> None:
        """Check that every call has ended once, and that starts kept their distance and the order of tickets.

        Args:
            losses: how often the store lost something that it had acknowledged. Slots that were granted by
                then are still used, beside those that were handed out since: at most one per caller.
            healed: the record was brought forward, so both kinds of slots are of one generation.
            failed: how many calls may have failed.
        """
        assert len(self.errors) <= failed, self.errors
        begun = Counter((start.handle, start.job) for start in self.starts)
        for handle, asked in enumerate(self.asked):
            lost = sum(1 for where, _ in self.errors if where == handle)
            assert sum(self.calls[handle].values()) == asked - lost
            assert all(count == 1 for count in self.calls[handle].values())
            assert all(begun[handle, number] == 1 for number in self.calls[handle])
        assert max(begun.values()) == 1, "no job began twice"
        if not healed:  # an older record knows less than the handles
            assert all(start.granted for start in self.starts), "no job begins unless the store says so"
        starts = sorted(self.starts, key=lambda start: start.at)
        beside = losses * self._callers
        assert len(_early(starts)) <= 2 * beside, "one before and one after each"
        for generation in {start.generation for start in starts}:
            of_one = [start for start in starts if start.generation == generation]
            tickets = [start.ticket for start in of_one]
            if healed:
                assert len(tickets) - len(set(tickets)) <= beside
            else:
                assert tickets == sorted(set(tickets)), "in the order of the tickets, each once"
                assert not _early(of_one)


def _early(starts: list[Start]) -> list[tuple[int, int]]:
    """For each start that came too soon after the previous one: how soon, and what is promised."""
    gaps = [(later.at - one.at, INTERVAL - one.tolerance) for one, later in pairwise(starts)]
    return [(gap, least) for gap, least in gaps if gap < least]


@asynccontextmanager
async def working(urls: list[str], *, callers: int = 3) -> AsyncIterator[Work]:
    """Callers of handles with these URLs of one store, all of which have begun; at the end all calls end."""
    work = Work(urls, callers=callers)
    try:
        async with anyio.create_task_group() as group:
            work.go(group)
            await work.more(2)
            yield work
            await work.stop()
    finally:
        with anyio.CancelScope(shield=True):
            for handle in work.handles:
                await handle.close(drain=False)


async def stands_still(work: Work) -> None:
    """Wait until each handle has noticed an outage of the store, and check that no job begins during it."""
    shards = [handle._shard() for handle in work.handles]
    while any(not shard.conversation.outage or shard.grants.granted for shard in shards):
        await checkpoint()  # slots granted before may be used
        assert not work.errors, "calls don't wait"
    begun, calls = len(work.starts), [shard.calls for shard in shards]
    while not all(shard.calls > before + 1 for shard, before in zip(shards, calls, strict=True)):
        await checkpoint()
    assert len(work.starts) == begun, "a job began without the store"
