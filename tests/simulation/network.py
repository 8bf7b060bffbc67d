"""The store of a simulated world, the network between it and the processes, and the faults of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import replace
from functools import partial
from random import Random

import anyio

from intervalq._timing.clock import CLOCK
from intervalq.errors import StoreTimeout, StoreUnavailable
from intervalq.rules import Answer, Command, Finish, Resume, State
from intervalq.store import DocumentStore, Step, T
from simulation.loop import Process
from simulation.messages import answer_of, listening, result_of
from simulation.mix import Mix
from simulation.observer import Observer
from simulation.plans import Route

URL = "simulated://store"


class Records(DocumentStore):
    """The store: a dictionary of records behind `DocumentStore`, with a clock that can be stepped."""

    def __init__(self, base: int, ppm: float) -> None:
        self.url = URL
        self.states: dict[str, State] = {}
        self.rate = 1 + ppm / 1e6
        self._base = base
        self._copies: list[tuple[float, dict[str, State]]] = []

    def now(self) -> int:
        """What the store's clock reads."""
        return self._base + int(asyncio.get_running_loop().time() * 1e6 * self.rate)

    def set_clock(self, seconds: float) -> None:
        """Step the clock."""
        self._base += round(seconds * 1e6)

    async def update(self, queue: str, step: Step[T], now: int | None) -> T:
        """See `DocumentStore.update`."""
        before = self.states.get(queue)
        after, answer = step(before, self.now() if now is None else now)
        if after is not before:
            self._copies.append((asyncio.get_running_loop().time(), dict(self.states)))
            if after is None:
                del self.states[queue]
            else:
                self.states[queue] = after
        return answer

    def lose(self, age: float | None) -> None:
        """Fall back to a copy that is `age` seconds old. None: to no records at all."""
        then = asyncio.get_running_loop().time() - (age or 0.0)
        later = [states for at, states in self._copies if at > then]
        if age is None:
            self.states.clear()
        elif later:
            self.states = dict(later[0])

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return sorted(self.states)


class Network:
    """Carries commands and answers with delays, and loses some."""

    def __init__(self, records: Records, mix: Mix, random: Random, observer: Observer) -> None:
        self.records = records
        self.observer = observer
        self.is_healthy = False
        """Whether the faults have ended."""
        self.primary = 0
        """How many times the store has failed over."""
        self.listeners: dict[Callable[[], None], Connection] = {}
        self.interrupt: Callable[[Process, float, float], None] = lambda *_: None
        """Stops a process after a delay, for a time; both in seconds."""
        self.withdraw: Callable[[Process, float], None] = lambda *_: None
        """Cancels a job of a process after a delay in seconds."""
        self.reclaim: Callable[[float], None] = lambda _: None
        """Reclaims all tickets, or sets a longer interval, after a delay in seconds."""
        self.subscribes = mix.subscribes
        """How long it takes until a process that listens gets wake-ups, in seconds."""
        self._mix = mix
        self._random = random

    def delay(self, connection: Connection, way: tuple[float, float]) -> float:
        """How long one message takes."""
        delay = self._random.uniform(*way)
        if (
            not (self.is_healthy or connection.is_good)
            and self._mix.slow
            and self._random.random() < self._mix.slow
        ):
            delay += self._random.uniform(0.1, 2.5)
        return delay

    def loses(self, connection: Connection) -> bool:
        """Whether the next message is lost."""
        return self._happens(connection, self._mix.lost)

    def repeats(self, connection: Connection) -> bool:
        """Whether the next request reaches the store twice."""
        return self._happens(connection, self._mix.again)

    def lag(self) -> float:
        """How much later a request arrives for the second time."""
        return self._random.choice((0.0, 0.002, 0.05, 0.5, 2.0)) * self._random.random()

    def busy(self, connection: Connection) -> float:
        """How long the driver is busy with a message, in seconds."""
        most = 0.0 if self.is_healthy or connection.is_good else self._mix.measured
        return self._random.uniform(0, most) if most else 0.0

    def blurred(self, answer: Answer) -> Answer:
        """An answer whose store can't read its clock precisely, and says so."""
        if not self._mix.blur:
            return answer
        most = round(self._mix.blur * 1e6)
        return replace(answer, now=answer.now + self._random.randint(-most, most), blur=most)

    def _happens(self, connection: Connection, share: float) -> bool:
        return bool(share) and not (self.is_healthy or connection.is_good) and self._random.random() < share

    def resume(self, queue: str) -> None:
        """End every hold, as an operator would."""
        self.observer.say("store", "resumes")
        self.observer.resumes.append(asyncio.get_running_loop().time())
        if result_of(self.records.apply(queue, Resume())).woken:
            self.wake()

    def arrive(
        self, connection: Connection, command: Command, reply: asyncio.Future[Answer], primary: int
    ) -> None:
        """Apply a command that reached the store, whether or not its sender still waits for the answer."""
        if self.is_cut_short(primary):
            return
        if reply.done() and isinstance(command, Finish):
            self.observer.overtaken.add(connection.process)
        loop = asyncio.get_running_loop()
        before = self.records.states.get(connection.queue)
        answer = result_of(self.records.apply(connection.queue, command))
        self.observer.stepped(
            connection.process, command, before, self.records.states.get(connection.queue), answer
        )
        if answer.woken:
            self.wake()
        if (answer.granted or answer.begun) and self._happens(connection, self._mix.interrupted):
            interval = answer.state.settings.interval / 1e6 if answer.state is not None else 0.0
            self.interrupt(
                connection.process, self._random.uniform(0, 0.05), interval * self._random.uniform(0.1, 3)
            )
        if (answer.granted or answer.begun) and self._happens(connection, self._mix.withdrawn):
            self.withdraw(connection.process, self._random.uniform(0, 0.06))
        if (answer.granted or answer.begun) and self._happens(connection, self._mix.reclaimed):
            self.reclaim(self._random.uniform(0, 0.02))
        if not self.loses(connection):
            delay, context = self.delay(connection, connection.route.down), connection.process.context
            loop.call_later(delay, connection.receive, reply, answer, self.primary, context=context)

    def is_cut_short(self, primary: int) -> bool:
        """Whether a message is lost because the store failed over while it was on its way."""
        return primary != self.primary and self._random.random() < 0.5

    def wake(self) -> None:
        """Send a wake-up to every listener: a hold has ended."""
        loop = asyncio.get_running_loop()
        for wake, connection in self.listeners.items():
            if not self.loses(connection):
                loop.call_later(
                    self.delay(connection, connection.route.down), wake, context=connection.process.context
                )


class Connection:
    """The `Store` of one process's handle: its connection to the simulated store."""

    def __init__(self, network: Network, process: Process, route: Route, queue: str) -> None:
        self.url = URL
        self.network = network
        self.process = process
        self.route = route
        self.queue = queue
        self.is_cut = False
        self.is_good = False
        self.stop: Callable[[], None] | None = None
        """Stops its process for a while; called just before its first step after each answer."""

    async def apply(self, queue: str, command: Command, now: int | None = None) -> Answer:
        """See `Store.apply`."""
        assert (queue, now) == (self.queue, None)
        network, loop = self.network, asyncio.get_running_loop()
        if busy := network.busy(self):
            await anyio.sleep(busy)
        sent, since = loop.time(), CLOCK.get().now()
        if self.is_cut:
            network.observer.tried(self.process)
            await anyio.sleep(network.delay(self, self.route.up))
            network.observer.failed(self.process, command)
            raise StoreUnavailable(URL, "no route to it")
        reply: asyncio.Future[Answer] = loop.create_future()
        lost = network.loses(self)
        network.observer.sent(self.process, command, lost=lost)
        if not lost:
            delay = network.delay(self, self.route.up)
            arrive = partial(network.arrive, self, command, reply, network.primary)
            loop.call_later(delay, arrive, context=Context())
            if network.repeats(self):
                loop.call_later(delay + network.lag(), arrive, context=Context())
        try:
            answer = await answer_of(reply, URL, self.route.deadline)
        except StoreTimeout:
            network.observer.failed(self.process, command)
            raise
        except asyncio.CancelledError:
            network.observer.withdrew(self.process, sent)
            raise
        answers = network.observer.answers[self.process]
        place = len(answers)
        network.observer.answered(self.process, command, answer, sent)
        if self.stop is not None:
            self.process.trap(1, self.stop)
        if not self.is_good:
            answer = network.blurred(answer)
        if busy := network.busy(self):
            answer = replace(answer, trip=(since, CLOCK.get().now()))
            await anyio.sleep(busy)
            answers[place] = (loop.time(), *answers[place][1:])  # only now does the handle have it
        return answer

    def receive(self, reply: asyncio.Future[Answer], answer: Answer, primary: int) -> None:
        """Deliver an answer, unless it was lost or comes too late."""
        if not self.network.is_cut_short(primary) and not reply.done():
            reply.set_result(answer)

    async def names(self) -> list[str]:
        """See `Store.names`."""
        return await self.network.records.names()

    async def aclose(self) -> None:
        """See `Store.aclose`."""


class WakingConnection(Connection):
    """A connection to a store that sends wake-ups when a hold ends."""

    @asynccontextmanager
    async def wakeups(self, queue: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """See `Waking.wakeups`."""
        assert queue == self.queue
        if self.is_cut:
            raise StoreUnavailable(URL, "no route to it")
        heard = partial(self.network.observer.woken, self.process)
        if self.network.subscribes:
            await anyio.sleep(self.network.subscribes)
        async with listening(self.network.listeners, self, heard) as woken:
            yield woken
