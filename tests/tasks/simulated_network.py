"""The store of simulated workers, their connections, and the checks at each command that reaches it."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from random import Random
from typing import Any, TypeVar

import anyio

from intervalq.errors import IntervalqError, StoreError, StoreUnavailable
from intervalq.tasks.rules import Beat, Beaten, Begin, Command, End, Modify, Row, Work
from intervalq_stores.memory.tasks import MemoryTaskStore
from simulation.loop import Process
from simulation.messages import answer_of, listening, result_of

A = TypeVar("A")

URL = "simulated://tasks"
DEADLINE = 2.0
TRIES, SPAN = 100, 2.0
"""How many requests a process sends at most to a store that it can't reach, in how many seconds."""
CONSUMER = "fetchers"
MAX_PENDING = 3
"""How many tasks this pull consumer may have unsettled."""


class Network:
    """Carries commands and answers with delays, and loses some."""

    def __init__(self, random: Random, *, lost: float, slow: float) -> None:
        self.store = MemoryTaskStore(clock=self.now)
        self.violations: list[str] = []
        self.lines: list[str] = []
        self.calls = 0
        self.is_healthy = False
        self.is_over = False
        """True once the checks are over."""
        self.listeners: dict[Callable[[], None], Connection] = {}
        self.guarded: dict[str, Process] = {}
        """The processes whose death the store notices, by session."""
        self.observe: Callable[[Process, Command[Any], object], None] = lambda *_: None
        """Called with each command that the store has done, and its answer."""
        self.answered: Callable[[Command[Any], float], None] = lambda *_: None
        """Called with each command whose answer has arrived, and when the command was sent."""
        self._random = random
        self._lost = lost
        self._slow = slow

    def now(self) -> int:
        """The store's clock, in microseconds."""
        return 1_000_000_000 + int(asyncio.get_running_loop().time() * 1e6)

    def say(self, text: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time():10.6f} {text}")

    def broken(self, text: str) -> None:
        if self.is_over:
            return
        self.violations.append(text)
        self.say(f"BROKEN {text}")

    def rows(self) -> list[Row]:
        return list(self.store._tasks.table._rows.values())

    def row(self, id_: str) -> Row | None:
        """A task as stored."""
        return self.store._tasks.table._rows.get(id_)

    def delay(self) -> float:
        delay = self._random.uniform(0.0002, 0.003)
        if not self.is_healthy and self._random.random() < self._slow:
            delay += self._random.uniform(0.05, 2.5)
        return delay

    def loses(self) -> bool:
        return not self.is_healthy and self._random.random() < self._lost

    def arrive(self, connection: Connection, command: Command[Any], reply: asyncio.Future[Any]) -> None:
        """Do a command at the store, whether or not somebody still waits for the answer."""
        answer: object = None
        try:
            if asyncio.get_running_loop().time() < connection.refused_until:
                raise StoreError(URL, "no rights")
            answer = result_of(self.store.apply(command))
        except IntervalqError as error:
            answer = error
        self.calls += 1
        self.say(f"{connection.process.name} {command} -> {answer}")
        self.check()
        self.observe(connection.process, command, answer)
        brings = isinstance(command, Modify | End) or (isinstance(command, Work) and command.settled)
        if (brings and not isinstance(answer, IntervalqError)) or (
            isinstance(answer, Beaten) and answer.lapsed
        ):
            for wake, other in self.listeners.items():
                if not self.loses():
                    self._later(self.delay(), wake, other.process.context)
        if not self.loses():
            self._later(
                self.delay(), lambda: connection.came(command, reply, answer), connection.process.context
            )

    def bury(self, connection: Connection, session: str) -> bool:
        """Remove the sessions of dead processes, at the request of a living one; returns whether any were."""
        table = self.store._tasks.table
        dead = [id_ for id_, process in self.guarded.items() if process.dead]
        for id_ in dead:
            del self.guarded[id_]
            if (lost := table.session(id_)) is not None:
                table.put_session(lost._replace(beaten=lost.beaten - 2 * lost.expiry - 10**9))
        if dead:
            command = Beat(session)
            self.observe(connection.process, command, result_of(self.store.apply(command)))
        return bool(dead)

    def check(self) -> None:
        """Check what must hold at any time."""
        table = self.store._tasks.table
        mine = {each.id for each in table.sessions() if each.consumer == CONSUMER}
        if mine and sum(row.session in mine for row in self.rows()) > MAX_PENDING:
            self.broken(f"{CONSUMER} have more than {MAX_PENDING} tasks unsettled")
        lines: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows():
            if row.key is not None:
                lines.setdefault((row.queue, row.key), []).append(row)
            if row.session is not None and self.store._tasks.table.session(row.session) is None:
                self.broken(f"{row.id} is claimed by a session that is no more")
        for name, rows in lines.items():
            rows.sort(key=lambda row: row.place)
            if [row.waiting for row in rows] != [False] + [True] * (len(rows) - 1):
                self.broken(f"the inbox of {name} is not fed: {rows}")
            if any(row.session is not None for row in rows[1:]):
                self.broken(f"two tasks of {name} are claimed")

    def _later(self, delay: float, action: Callable[[], None], context: Context) -> None:
        asyncio.get_running_loop().call_later(delay, action, context=context)


class Connection:
    """One process's connection to the store, which is the store of its handle."""

    def __init__(self, network: Network, process: Process) -> None:
        self.url = URL
        self.network = network
        self.process = process
        self.is_cut = False
        self._tries = deque[float](maxlen=TRIES)
        self.refused_until = 0.0
        """Until when the store refuses what it is asked."""
        self.refused = -math.inf
        """When an answer came that refused something that a caller waits for."""
        self.heard: Callable[[object], None] = lambda _: None
        """Called with each answer as soon as it arrives."""
        self.ends = anyio.Event()
        """Set when the end of a session is being sent."""

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        assert now is None
        network, loop = self.network, asyncio.get_running_loop()
        if self.is_cut:
            self._tried(loop.time())
            await anyio.sleep(network.delay())
            raise StoreUnavailable(URL, "no way to it")
        reply: asyncio.Future[A] = loop.create_future()
        sent = loop.time()
        if isinstance(command, End):
            self.ends.set()
            self.ends = anyio.Event()
        if not network.loses():
            loop.call_later(network.delay(), network.arrive, self, command, reply, context=Context())
        try:
            answer = await answer_of(reply, URL, DEADLINE)
        except StoreUnavailable:
            raise
        except StoreError:
            if isinstance(command, Begin | Work):
                self.refused = loop.time()
            raise
        network.answered(command, sent)
        self.heard(answer)
        return answer

    def _tried(self, at: float) -> None:
        """Check that a store that can't be reached isn't asked again and again."""
        self._tries.append(at)
        if len(self._tries) == TRIES and at - self._tries[0] < SPAN:
            self.network.broken(f"{self.process.name} asks {TRIES} times in {at - self._tries[0]:.6f} s")
            self._tries.clear()

    def came(self, command: Command[Any], reply: asyncio.Future[Any], answer: object) -> None:
        """Receive an answer."""
        if reply.done():
            self.missed(command, answer)
        elif isinstance(answer, IntervalqError):
            reply.set_exception(answer)
        else:
            reply.set_result(answer)

    def missed(self, command: Command[Any], answer: object) -> None:
        """Note an answer for which nobody waits any more."""

    async def aclose(self) -> None:
        pass


class WakingConnection(Connection):
    """A connection to a store that wakes its sessions when there are new tasks."""

    @asynccontextmanager
    async def wakeups(self, session: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        del session
        async with listening(self.network.listeners, self) as woken:
            yield woken
