"""`nats://`: records in the streams of a NATS, as logs of commands on counters.

Each command is one message, so concurrent writers never cause a retry: see `_queue.log`. For a command that
only continues a backlog, the acknowledgement alone gives the answer; after any other, the sender reads what
was stored since it last looked. So a late grant costs its sender a second round trip, and every other process
one more with its next command.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import anyio

from intervalq import rules
from intervalq.errors import (
    CorruptState,
    MissingExtra,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    Unauthorized,
    VersionMismatch,
)
from intervalq.rules import Advance, Answer, Command, Drop, Inspect
from intervalq.store import StoredSchedules, Swapped, stopwatch
from intervalq_stores.nats._names import decoded, encoded
from intervalq_stores.nats._queue.cache import Known
from intervalq_stores.nats._queue.clock import ServerClock
from intervalq_stores.nats._queue.entry import STEP, ends_hold, is_ephemeral
from intervalq_stores.nats._queue.log import Gap, Outcome, full, increment, is_over, plain
from intervalq_stores.nats._queue.step import (
    Full,
    Plain,
    Position,
    entries,
    fingerprint,
    granting,
    others,
    tickets,
)
from intervalq_stores.nats._queue.stream import Appended, History
from intervalq_stores.nats._server import Server
from intervalq_stores.nats.schedules import NATSSchedules

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_CHECKPOINT: Final = 64
"""Entries of a queue between two checkpoints, each written by the sender of the entry."""

_LOOK: Final = 64
"""After this many commands that aren't plain, as many old entries are examined, to forget keyed queues."""

_KNOWN: Final = 4_096
"""The number of queues whose logs are kept in memory."""

_AT_ONCE: Final = 16
"""The number of queues that are examined concurrently."""

_IN_FLIGHT: Final = 256
"""The number of commands in flight at once. The others wait, and their time limit begins after that."""

_LOST: Final = "lost"
"""The generation of a lost record if it is unknown: the next record begins with a quiet interval."""


class NATSStore:
    """Records in a NATS server with JetStream. One connection, open while it is in use."""

    def __init__(self, url: str) -> None:
        if find_spec("nats") is None:
            raise MissingExtra("a store in NATS", "nats")
        self._server = Server(url)
        self._history = History(self._server)
        self._schedules = NATSSchedules(self._server)
        self.url = self._server.url
        self._clock = ServerClock()
        self._queues: OrderedDict[str, Known] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._looked = 0
        self._turns = anyio.Semaphore(_IN_FLIGHT, fast_acquire=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        async with self._turns:
            with self._server.expected():
                return await self._apply(queue, command, now)

    async def _apply(self, queue: str, command: Command, now: int | None) -> Answer:
        known = self._known(queue)
        try:
            view = known.view
            if view is not None and view.state is not None:
                if now is not None:
                    step = plain(view.state, command, now, now)
                elif self._clock.known:
                    at = stopwatch()
                    step = plain(view.state, command, self._clock.earliest(at), self._clock.latest(at))
                else:
                    step = None
                if step is not None and (answer := await self._increment(known, view, step, now)):
                    if not is_over(answer):
                        return answer
                    assert isinstance(command, Advance)
                    command = replace(command, release=answer.taken)
            async with self._server.bounded():
                if isinstance(command, Inspect):
                    return await self._inspect(known, command, now)
                if (command.settings is None or isinstance(command, Drop)) and (
                    view is None or view.state is None
                ):
                    answer = await self._inspect(known, Inspect(), now)
                    if answer.state is None:
                        return answer
                return await self._command(known, command, now)
        except StoreUnavailable:
            self._history.forget()
            raise

    async def read_schedules(
        self, names: Collection[str] | None = None, now: int | None = None
    ) -> StoredSchedules:
        """See `Scheduling.read_schedules`."""
        with self._server.expected():
            return await self._schedules.read(names, now)

    async def swap_schedule(
        self, name: str, known: str | None, text: str | None, *, earliest: int = 0, now: int | None = None
    ) -> Swapped:
        """See `Scheduling.swap_schedule`."""
        with self._server.expected():
            return await self._schedules.swap(name, known, text, earliest, now)

    async def names(self) -> list[str]:
        """See `Store.names`. Logs without a record are removed."""
        with self._server.expected():
            return await self._names()

    async def _names(self) -> list[str]:
        tokens = await self._history.tokens()
        _, _, now = await self._history.clock()
        found: list[str] = []
        turn = asyncio.Semaphore(_AT_ONCE)

        async def look(token: str) -> None:
            async with turn, self._server.bounded():
                if await self._is_there(token, now):
                    found.append(decoded(token))

        try:
            async with asyncio.TaskGroup() as group:
                for token in tokens:
                    group.create_task(look(token))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None  # the others are alike
        return sorted(found)

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`: a listener receives all entries of the queue and can tell which end holds."""
        heard = asyncio.Event()

        def came(message: Msg) -> None:
            if ends_hold((message.headers or {}).get(STEP, "")):
                heard.set()

        async def woken() -> None:
            ended = asyncio.ensure_future(connection.ended.wait())
            waiting = asyncio.ensure_future(heard.wait())
            try:
                await asyncio.wait([ended, waiting], return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended.cancel()
                waiting.cancel()
            if connection.ended.is_set():
                raise StoreUnavailable(self.url, "the connection to the server has ended")
            heard.clear()

        async with AsyncExitStack() as stack:
            async with self._server.bounded():
                with self._server.expected():
                    await self._history.prepare()
                connection = await self._server.connection()
                denied = connection.denied
                subject = self._history.subject(encoded(queue))
                await stack.enter_async_context(connection.subscribed(subject, came))
                if connection.denied != denied:
                    raise Unauthorized(
                        self.url, f"the server forbids it ({connection.denied}): allow it for this user"
                    )
            yield woken

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks)
        await self._server.close()

    async def advice(self) -> list[tuple[str, str]]:
        """What an operator should know of the server: pairs of `ok`, `warning` or `error`, and a sentence."""
        from intervalq_stores.nats._advice import advice  # noqa: PLC0415 - only for a manual check

        with self._server.expected():
            return await advice(self._history)

    def _known(self, queue: str) -> Known:
        known = self._queues.get(queue)
        if known is None:
            known = self._queues[queue] = Known(encoded(queue), self._history)
            if len(self._queues) > _KNOWN:
                self._queues.popitem(last=False)
        else:
            self._queues.move_to_end(queue)
        return known

    # --- a plain increment ----------------------------------------------------------------------------

    async def _increment(self, known: Known, view: Position, step: Plain, now: int | None) -> Answer | None:
        """Send a plain entry; None: it did not apply, so the command must be sent in full."""
        assert view.state is not None
        try:
            own = await self._history.append(known.token, step, step.increment)
            count = entries(own.value) - entries(view.value)
            taken = tickets(own.value) - tickets(view.value) - step.take
            if others(own.value) != others(view.value) or count < 1 or taken < 0:
                async with self._server.bounded():
                    return await self._learned(known, own, now)
        except Gap:
            return None
        at, blur, trip = now or 0, 0, None
        if now is None:
            at, blur = await self._timed(known, own)
            trip = own.sent, own.received
        later = known.view  # another call of this process may have granted slots meanwhile
        if later is not None and others(later.value) == others(own.value) and later.sequence < own.sequence:
            view, taken = later, tickets(own.value) - tickets(later.value) - step.take
        assert view.state is not None
        state, answer = increment(view.state, step, taken, now=at, blur=blur, trip=trip)
        position = Position(state, own.value, own.sequence)
        if known.base is view and granting(own.value) - granting(view.value) == (step.now is not None):
            known.base = position  # whatever others did, they granted no slot
        known.view = position
        self._keep(known, own)
        return answer

    async def _timed(self, known: Known, own: Appended) -> tuple[int, int]:
        """When our own entry was stored, and by how much that may be off."""
        clock = self._clock
        earliest, latest = clock.earliest(own.sent), clock.latest(own.received)
        at = (earliest + latest) // 2
        if clock.is_fresh(own.received):
            return at, latest - at
        with suppress(Gap):  # removed since, so what is known must suffice
            entry = await self._history.entry(known.token, own.sequence)
            clock.learn(own.sent, own.received, entry.at)
            return entry.at, 0
        return at, latest - at

    async def _learned(self, known: Known, own: Appended, now: int | None) -> Answer | None:
        """The answer to our own plain entry, according to the log."""
        _, outcome, at = await known.fold(own.value, own.sequence)
        if not isinstance(outcome, Answer):
            return None
        if now is None:
            self._clock.learn(own.sent, own.received, at)
            return replace(outcome, now=at, trip=(own.sent, own.received))
        return outcome

    # --- any other command ----------------------------------------------------------------------------

    async def _command(self, known: Known, command: Command, now: int | None, reset: bool = False) -> Answer:
        if reset and command.generation is None:
            command = replace(command, generation=_LOST)
        step = Full(command, now, reset)
        added = fingerprint(secrets.randbits(48) | 1)
        outcome: Outcome
        try:
            own = await self._history.append(known.token, step, added)
            base = known.base
            if reset or (base is not None and own.value - added == base.value):
                at = now
                if at is None:
                    at = (await self._history.entry(known.token, own.sequence)).at
                state, outcome = full(None if reset or base is None else base.state, step, at, self.url)
                known.learn(Position(state, own.value, own.sequence))
            else:
                _, outcome, at = await known.fold(own.value, own.sequence)
        except Gap:
            if reset:
                raise StoreUnavailable(
                    self.url, "the log of the queue was removed at the same moment: ask again"
                ) from None
            if not await known.is_lost():  # only our own entry is gone: newer ones displaced it
                raise StoreTimeout(
                    self.url, "the command was stored, and its log moved on before what it did was read"
                ) from None
            return await self._command(known, command, now, reset=True)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        if now is None:
            self._clock.learn(own.sent, own.received, at)
            outcome = replace(outcome, trip=(own.sent, own.received))
        if isinstance(command, Drop):  # it stays, for concurrent writers
            before = await self._history.checkpoint(known.token)
            await self._history.clear(known.token, own.sequence - 1, before)
        else:
            made = outcome.state is not None and outcome.state.generation == command.nonce
            self._keep(known, own, now=made and entries(own.value) > 1)
        self._sent += 1
        if self._sent % _LOOK == 0 and now is None:
            self._later(lambda: self._tidy(self._clock.earliest(stopwatch())))
        return outcome

    async def _inspect(self, known: Known, command: Inspect, now: int | None) -> Answer:
        await self._history.prepare()
        state = await known.look()
        trip = None
        if now is None:
            sent, received, now = await self._history.clock()
            self._clock.learn(sent, received, now)
            trip = sent, received
        _, answer = rules.apply(state, command, now)
        return replace(answer, trip=trip)

    # --- keeping order --------------------------------------------------------------------------------

    def _keep(self, known: Known, own: Appended, *, now: bool = False) -> None:
        """Write a checkpoint in the background if our own entry's number is due for one, or with `now`.

        `now` is for a record that was created again: older entries may be removed at this moment.
        """
        if now or entries(own.value) % _CHECKPOINT == 0:
            self._later(lambda: self._checkpoint(known, own))

    def _later(self, work: Callable[[], Awaitable[None]]) -> None:
        async def do() -> None:
            with suppress(Gap, StoreError), self._server.expected():
                async with self._server.bounded():
                    await work()

        task = asyncio.ensure_future(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _checkpoint(self, known: Known, own: Appended) -> None:
        """Store the record as of our own entry. If that fails, the next checkpoint makes up for it."""
        before = await self._history.checkpoint(known.token)
        base = known.base
        if base is None or base.sequence < own.sequence or others(base.value) != others(own.value):
            base, _, _ = await known.fold(own.value, own.sequence, before)
        await self._history.save(known.token, base, before)

    async def _is_there(self, token: str, now: int) -> bool:
        """Whether a queue has a record; if not, the remains of its log are removed."""
        known = Known(token, self._history)
        try:
            before = await self._history.checkpoint(token)
            last = await self._history.last(token)
            if last is None:
                return False
            await known.fold(last.value, last.sequence, before)
        except (Gap, CorruptState, VersionMismatch):  # its next user repairs it, or gets the error
            return True
        assert known.base is not None
        state = known.base.state
        if state is not None and rules.lapses(rules.settle(state, now)) > now:
            return True
        if last.at <= now - rules.IDLE_KEPT:  # nobody writes to it, or hardly ever
            await self._history.clear(token, last.sequence, before)
        return False

    async def _tidy(self, now: int) -> None:
        """Remove logs of long idle keyed queues, found among the next few of the oldest entries."""
        found = await self._history.oldest(self._looked, _LOOK)
        old = [(token, entry) for token, entry in found if entry.at <= now - rules.IDLE_KEPT]
        self._looked = old[-1][1].sequence if old else 0
        for token in {token for token, entry in old if is_ephemeral(entry.step)}:
            await self._is_there(token, now)
