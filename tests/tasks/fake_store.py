"""The memory store behind a connection that delays, fails, loses answers and hangs; and helpers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import anyio

from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.tasks import Claim, Task, Tasks
from intervalq.tasks.rules import (
    Beat,
    Change,
    Command,
    Count,
    End,
    Modify,
    Range,
    Row,
    Select,
    Sessions,
    Work,
    Worked,
)
from intervalq.tasks.store import Isolation
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.tasks import MemoryTaskStore

A = TypeVar("A")


class FakeStore:
    """A store in virtual time. Each handle may have its own connection to the same store behind."""

    def __init__(self, behind: MemoryTaskStore | None = None, *, delay: float = 0.0) -> None:
        self.behind = behind or MemoryTaskStore(clock=virtual_micros)
        self.url = self.behind.url
        self.delay = delay
        self.is_down = False
        self.hangs = False
        self.is_closed = False
        self.calls: list[Command[Any]] = []
        self.loses: Callable[[Command[Any]], bool] = lambda _command: False
        """The commands whose answers are lost after they are done."""
        self.fails: Callable[[Command[Any]], Exception | None] = lambda _command: None
        """Which commands are refused, and how."""
        self.before: Callable[[Command[Any]], Awaitable[None]] = _nothing
        """What happens before a command is done."""
        self.after: Callable[[Command[Any]], Awaitable[None]] = _nothing
        """What happens between a command and its answer."""

    def line(self, **options: Any) -> FakeStore:
        """Another connection to the same store."""
        return FakeStore(self.behind, **options)

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        self.calls.append(command)
        await anyio.sleep(self.delay)
        if self.hangs:
            await anyio.sleep_forever()
        if self.is_down:
            raise StoreUnavailable(self.url, "it is down: bring it up")
        error = self.fails(command)
        if error is not None:
            raise error
        await self.before(command)
        answer = await self.behind.apply(command, now)
        await self.after(command)
        await anyio.sleep(self.delay)
        if self.loses(command):
            raise StoreTimeout(self.url, "the answer was lost")
        return answer

    async def aclose(self) -> None:
        self.is_closed = True
        await self.behind.aclose()

    # --- what tests ask of it, past the line ---------------------------------------------------------

    async def rows(self, queue: str | None = None) -> list[Row]:
        return list(await self.behind.apply(Select(queue=queue)))

    async def row(self, id_: str) -> Row:
        (row,) = await self.behind.apply(Select(ids=(id_,)))
        return row

    async def sessions(self) -> int:
        return len(await self.behind.apply(Sessions()))

    async def sizes(self) -> dict[str, int]:
        return {stats.name: stats.size for stats in await self.behind.apply(Count())}

    async def force(self, id_: str, **fields: Any) -> Row:
        """Change a task, whoever has claimed it."""
        row = await self.row(id_)
        return (
            await self.behind.apply(Modify(changes=(Change(id_, row.version, **fields),), force=True))
        ).changed[0]

    async def lapse(self) -> None:
        """Make all sessions lapse, as if other workers found them after a long pause."""
        expiry = max((session.expiry for session in await self.behind.apply(Sessions())), default=0)
        await self.behind.apply(Beat("somebody"), virtual_micros() + expiry + 1)

    def sent(self, kind: type[Command[Any]]) -> int:
        return sum(isinstance(call, kind) for call in self.calls)


async def _nothing(_command: Command[Any]) -> None:
    return


def once(kind: type[Command[Any]], when: Callable[[Any], bool] = bool) -> Callable[[Command[Any]], bool]:
    """True for the first command of a kind that meets a condition."""
    left = [kind]

    def matches(command: Command[Any]) -> bool:
        if left and isinstance(command, kind) and when(command):
            left.clear()
            return True
        return False

    return matches


def handle(store: object, **options: Any) -> Tasks:
    return Tasks(cast("Any", store), **options)


async def until(condition: Callable[[], bool]) -> None:
    """Wait in virtual time, in which it is cheap to check often."""
    with anyio.fail_after(1000):
        while not condition():
            await anyio.sleep(0.001)


async def claimed(tasks: Tasks, queue: str = "q", value: object = 1, **options: Any) -> Claim:
    """Insert a task, and claim it with a handle."""
    await tasks.insert(queue, value)
    return await tasks.claim(queue, **options)


# --- a store with ranges -----------------------------------------------------------------------------


@dataclass
class _Queue:
    jsons: list[str] = field(default_factory=list)
    head: int = 0


class RangingStore(FakeStore):
    """A store that hands out plain tasks in ranges of at most ten."""

    def __init__(self, behind: MemoryTaskStore | None = None, *, delay: float = 0.0) -> None:
        super().__init__(behind, delay=delay)
        self.plain: dict[str, _Queue] = {}
        self.leased: dict[Range, str] = {}
        self.free: list[Range] = []
        self.done: list[str] = []

    async def put(self, queue: str, jsons: Sequence[str]) -> None:
        self.plain.setdefault(queue, _Queue()).jsons.extend(jsons)

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        answer = await super().apply(command, now)
        if isinstance(command, Work) and isinstance(answer, Worked):
            return cast("A", await self._work(command, answer))
        if isinstance(command, End):
            for range_ in [range_ for range_, session in self.leased.items() if session == command.session]:
                del self.leased[range_]
                self.free.append(range_)
        if isinstance(command, Count):
            left = {name for name, queue in self.plain.items() if queue.head < len(queue.jsons)}
            left |= {range_.queue for range_ in (*self.leased, *self.free)}
            known = {stats.name for stats in cast("Any", answer)}
            return cast("A", (*cast("Any", answer), *(_stats(name) for name in sorted(left - known))))
        return answer

    async def _work(self, command: Work, worked: Worked) -> Worked:
        lost = []
        for finished in command.finished:
            if self.leased.pop(finished.range, None) is None:
                lost.append(finished.range)
                continue
            range_ = finished.range
            if finished.until is not None:
                self.leased[replace(range_, low=finished.until + 1)] = command.session
                range_ = replace(range_, high=finished.until)
            failed = {failure.number: failure.insert for failure in finished.failed}
            jsons = self.plain[range_.queue].jsons
            self.done += [
                jsons[number] for number in range(range_.low, range_.high + 1) if number not in failed
            ]
            await self.behind.apply(Modify(inserts=tuple(failed.values())))
        ranges = []
        left = command.limit - len(worked.claimed)
        for name in command.queues:
            while left > 0 and (more := self._next(name, left)) is not None:
                self.leased[more] = command.session
                jsons = self.plain[name].jsons
                ranges.append((more, tuple((n, jsons[n]) for n in range(more.low, more.high + 1))))
                left -= more.high + 1 - more.low
        return replace(worked, ranges=tuple(ranges), lost_ranges=tuple(lost))

    def _next(self, name: str, most: int) -> Range | None:
        for range_ in self.free:
            if range_.queue == name:
                self.free.remove(range_)
                return range_
        queue = self.plain.get(name)
        if queue is None or queue.head >= len(queue.jsons):
            return None
        low = queue.head
        queue.head = min(low + min(10, most), len(queue.jsons))
        return Range(name, 0, low, queue.head - 1)


def _stats(name: str) -> Any:
    from intervalq.tasks.rules import QueueStats

    return QueueStats(name, size=1)


class TransactionStore(FakeStore):
    """A store with transactions: an error undoes all commands of one, by a copy of the table."""

    def __init__(self, behind: MemoryTaskStore | None = None, *, delay: float = 0.0) -> None:
        super().__init__(behind, delay=delay)
        self.written: list[object] = []
        self.on_commit: Callable[[], Awaitable[None]] | None = None
        self.commit_takes = 0.0

    @asynccontextmanager
    async def transaction(self, isolation: Isolation) -> AsyncIterator[_Transaction]:
        del isolation
        transaction = _Transaction(self)
        yield transaction
        if self.on_commit is not None:
            await self.on_commit()
        await self.behind.apply(Modify(deletes=tuple(transaction.deletes), force=True))
        self.written += transaction.connection
        await anyio.sleep(self.commit_takes)

    async def apply_on(self, connection: Any, command: Command[A]) -> A:
        del connection
        return await self.behind.apply(command)


class _Transaction:
    """Deletes the requested tasks at the end, if they are still the caller's."""

    def __init__(self, store: TransactionStore) -> None:
        self.connection: Any = []
        self.deletes: list[Any] = []
        self._store = store

    async def apply(self, command: Command[A]) -> A:
        assert isinstance(command, Work)
        await self._store.before(command)
        lost = []
        for part in command.settled:
            rows = await self._store.behind.apply(Select(ids=(part.id,)))
            if rows and (rows[0].version, rows[0].session) == (part.version, command.session):
                self.deletes.append(part)
            else:
                lost.append(part.id)
        return cast("A", Worked(lost=tuple(lost)))


async def nothing(task: Task) -> None:
    """A worker's function that does nothing."""
