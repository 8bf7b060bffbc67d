"""`nats://`: durable tasks as messages of a JetStream, claimed through pull consumers.

A claim is a delivery that isn't acknowledged yet. The server delivers a message again after its ack wait, and
accepts an acknowledgement from anybody, so three measures make claims safe here. A worker counts the ack wait
from before its request, and gives its claims up before the server does. A message that was delivered before
isn't worked on: whoever receives it stores it anew, with another sequence, so an acknowledgement of the old
one by its former holder has no effect. And where it can't be proven that a settlement was sent in time, or
that its task still exists, it is a message that replaces the task's own, which succeeds only once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from anyio.lowlevel import checkpoint

from intervalq.errors import MissingExtra, StoreError, StoreUnavailable, UnsupportedOperation
from intervalq.tasks.rules import (
    Acquire,
    Beat,
    Beaten,
    Begin,
    Cancel,
    Cancelled,
    Command,
    Count,
    End,
    Modified,
    Modify,
    QueueStats,
    Release,
    Row,
    Select,
    Session,
    Sessions,
    Work,
    Worked,
)
from intervalq.tasks.store import Lock, Pulled, refuse_command

if TYPE_CHECKING:
    from intervalq_stores.nats._task.claims import Claims
    from intervalq_stores.nats._task.idle import Idle

A = TypeVar("A")


class NATSTaskStore:
    """Tasks in one stream. One connection, which is open while it is in use."""

    def __init__(self, url: str) -> None:
        try:
            import nats  # noqa: F401, PLC0415 - an extra
        except ImportError as missing:
            raise MissingExtra("a store in NATS", "nats") from missing
        from intervalq_stores.nats._server import Server  # noqa: PLC0415 - likewise
        from intervalq_stores.nats._task.stream import Stream  # noqa: PLC0415 - needs that extra

        self._stream = Stream(Server(url))
        self._sessions: dict[str, Claims] = {}
        self._idle: dict[str, Idle] = {}
        self.url = self._stream.server.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        """See `TaskStore.apply`. The time is the server's, whatever `now` says.

        Raises:
            UnsupportedOperation: JetStream can't do that, such as to keep outcomes; nothing was done.
        """
        del now
        refuse_command(self, command)
        with self._seen():
            answer = await _COMMANDS[type(command)](self, command)
        return cast("A", answer)

    async def pull(self, work: Work, seconds: float) -> tuple[Row, ...]:
        """See `Pulling.pull`."""
        claims = self._sessions.get(work.session)
        if claims is None:
            await checkpoint()  # the caller asks again, by its next session
            return ()
        with self._seen():
            return tuple(await claims.pull(work, seconds))

    @contextmanager
    def _seen(self) -> Iterator[None]:
        """Forget the stream on `StoreUnavailable`: it, or a consumer, may have been removed.

        Raises:
            StoreError: an answer can't be read.
        """
        try:
            with self._stream.server.expected():
                yield
        except StoreUnavailable:
            self._stream.forget()
            raise

    async def pulled(self, queues: tuple[str, ...]) -> dict[str, Pulled]:
        """See `Pulling.pulled`."""
        from intervalq_stores.nats._task.looks import pulled  # noqa: PLC0415 - needs the extra

        with self._seen():
            return await pulled(self._stream, queues)

    def holds(self, session: str, row: Row) -> bool:
        """See `Forgetting.holds`."""
        claims = self._sessions.get(session)
        return claims is not None and claims.holdings.is_sure(row.id, row.version)

    def lock(self, name: str, expiry: int) -> Lock:
        """See `Locking.lock`."""
        from intervalq_stores.nats.locks import NATSLock  # noqa: PLC0415 - needs the extra

        return NATSLock(self._stream, name, expiry)

    async def _locks(self, _: Acquire | Release) -> None:
        raise UnsupportedOperation(self.url, "its locks are of another kind: use `Tasks.lock`")

    async def advice(self) -> list[tuple[str, str]]:
        """What an operator should know of it: pairs of `ok`, `warning` or `error`, and a sentence."""
        from intervalq_stores.nats._task.looks import advice  # noqa: PLC0415 - needs the extra

        with self._seen():
            return await advice(self._stream)

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[Worked]]]:
        """See `Waking.wakeups`. An idle worker has a request waiting at the server, which delivers a task."""
        from intervalq_stores.nats._task.idle import Idle  # noqa: PLC0415 - only for waiting callers

        claims = self._sessions.get(session)
        if claims is None:
            raise StoreError(self.url, "the session has ended")
        async with Idle.of(claims) as idle:
            self._idle[session] = idle
            try:
                yield idle.woken
            finally:
                self._idle.pop(session, None)

    async def aclose(self) -> None:
        """See `TaskStore.aclose`."""
        await self._stream.close()

    # --- commands -----------------------------------------------------------------------------------

    async def _begin(self, command: Begin) -> None:
        from intervalq_stores.nats._task.claims import Claims  # noqa: PLC0415 - needs the extra

        await self._stream.connection()
        now = self._stream.now()
        session = command.session._replace(started=now, beaten=now)
        claims = self._sessions.get(session.id)
        if claims is None:
            claims = self._sessions[session.id] = Claims(self._stream, session)
        claims.holdings.session = session  # if a session begins again, it keeps its claims
        await claims.holdings.connection()  # messages stored from now on need fewer checks

    async def _beat(self, command: Beat) -> Beaten:
        claims = self._sessions.get(command.session)
        if claims is None:
            return Beaten(alive=False)
        holdings = claims.holdings
        if not await holdings.beat():
            self._lapse(command.session)
            return Beaten(alive=False)
        holdings.session = holdings.session._replace(beaten=self._stream.now())
        return Beaten(alive=True, claim_count=len(holdings.deliveries))

    async def _end(self, command: End) -> None:
        claims = self._sessions.pop(command.session, None)
        if claims is not None:
            await claims.end()

    async def _work(self, command: Work) -> Worked:
        claims = self._sessions.get(command.session)
        if claims is None:
            return Worked(alive=False, lost=tuple(part.id for part in command.settled))
        claims.holdings.begin(command.begun)
        lost = await claims.holdings.settle(command.settled)
        if claims.holdings.overdue:
            self._lapse(command.session)
            return Worked(alive=False, lost=tuple(lost))
        rows: list[Row] = []
        if command.limit and command.queues:
            rows = await claims.pull(command, 0)
            idle = self._idle.get(command.session)
            if idle is not None:
                idle.look(command, full=len(rows) >= command.limit)
        claims.holdings.answered(command.settled)
        return Worked(lost=tuple(lost), claimed=tuple(rows))

    async def _modify(self, command: Modify) -> Modified:
        from intervalq_stores.nats._task.changes import modify  # noqa: PLC0415 - needs the extra

        await self._stream.connection()
        return await modify(self._stream, self._sessions.get(command.session), command)

    async def _cancel(self, command: Cancel) -> Cancelled:
        from intervalq_stores.nats._task.changes import cancel  # noqa: PLC0415 - needs the extra

        await self._stream.connection()
        return Cancelled(removed=await cancel(self._stream, tuple(dict.fromkeys(command.ids))))

    async def _select(self, command: Select) -> tuple[Row, ...]:
        from intervalq_stores.nats._task.looks import select  # noqa: PLC0415 - needs the extra

        return await select(self._stream, self._sessions, command)

    async def _count(self, command: Count) -> tuple[QueueStats, ...]:
        from intervalq_stores.nats._task.looks import count  # noqa: PLC0415 - needs the extra

        return await count(self._stream, command)

    async def _sessions_here(self, _: Sessions) -> tuple[Session, ...]:
        return tuple(
            sorted(
                (claims.holdings.session for claims in self._sessions.values()),
                key=lambda session: (session.started, session.id),
            )
        )

    def _lapse(self, session: str) -> None:
        claims = self._sessions.pop(session, None)
        if claims is not None:
            claims.holdings.forget()


_COMMANDS: Final[dict[type, Callable[[NATSTaskStore, Any], Awaitable[Any]]]] = {
    Modify: NATSTaskStore._modify,  # noqa: SLF001 - its own
    Cancel: NATSTaskStore._cancel,  # noqa: SLF001
    Work: NATSTaskStore._work,  # noqa: SLF001
    Begin: NATSTaskStore._begin,  # noqa: SLF001
    Beat: NATSTaskStore._beat,  # noqa: SLF001
    End: NATSTaskStore._end,  # noqa: SLF001
    Acquire: NATSTaskStore._locks,  # noqa: SLF001
    Release: NATSTaskStore._locks,  # noqa: SLF001
    Select: NATSTaskStore._select,  # noqa: SLF001
    Count: NATSTaskStore._count,  # noqa: SLF001
    Sessions: NATSTaskStore._sessions_here,  # noqa: SLF001
}
