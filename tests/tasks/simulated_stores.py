"""Connections of simulated processes to stores that can do more, or may forget more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import anyio

from intervalq.errors import StoreUnavailable
from intervalq.tasks._claim.endings import unused
from intervalq.tasks.rules import Beat, Beaten, Begin, Command, Row, Work, Worked
from intervalq.tasks.store import Pulled, Watched
from simulation.loop import Process
from simulation.messages import result_of
from tasks.simulated_mixes import Mix
from tasks.simulated_network import URL, Connection, Network, WakingConnection

A = TypeVar("A")

LOOK = 0.2
"""Seconds after which the store looks again for tasks for a caller that waits."""


class PullingConnection(Connection):
    """A connection to a store at which callers wait for tasks, and that forgets claims of silent sessions.

    What it gives to a caller that has left goes back.
    """

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__(network, process)
        self._expiries: dict[str, float] = {}
        self._sure: dict[str, float] = {}
        """Until when each session has its claims for sure."""
        self._pulls: set[int] = set()

    async def apply(self, command: Command[A], now: int | None = None) -> A:
        sent = asyncio.get_running_loop().time()
        answer = await super().apply(command, now)
        if isinstance(command, Begin):
            session = command.session
            self._expiries[session.id] = session.expiry / 1e6
            self._sure[session.id] = sent + session.expiry / 1e6
        elif isinstance(command, Beat) and isinstance(answer, Beaten) and answer.alive:
            self._sure[command.session] = sent + self._expiries[command.session]
        return answer

    def holds(self, session: str, row: Row) -> bool:
        """See `Forgetting.holds`."""
        del row
        return asyncio.get_running_loop().time() < self._sure.get(session, 0.0)

    async def pull(self, work: Work, seconds: float) -> tuple[Row, ...]:
        """See `Pulling.pull`."""
        now = asyncio.get_running_loop().time
        end = now() + seconds
        while True:
            command = replace(work)
            self._pulls.add(id(command))
            worked = await self.apply(command)
            left = end - now()
            if worked.claimed or left <= 0:
                return worked.claimed
            await anyio.sleep(min(LOOK, left))

    def missed(self, command: Command[Any], answer: object) -> None:
        """See `Connection.missed`."""
        if isinstance(command, Work) and isinstance(answer, Worked) and id(command) in self._pulls:
            result_of(self.network.store.apply(Work(command.session, tuple(map(unused, answer.claimed)))))

    async def pulled(self, queues: tuple[str, ...]) -> dict[str, Pulled]:
        """See `Pulling.pulled`."""
        raise NotImplementedError


class GuardingConnection(WakingConnection):
    """A connection to a store that notices at once that a process is dead."""

    @asynccontextmanager
    async def guard(self, session: str) -> AsyncIterator[Callable[[float], Awaitable[Watched]]]:
        """See `Guarding.guard`."""
        network = self.network

        async def look(pause: float) -> Watched:
            await anyio.sleep(pause)
            if self.is_cut:
                raise StoreUnavailable(URL, "no way to it")
            is_idle = all(row.session != session for row in network.rows())
            return Watched(network.bury(self, session), is_idle)

        network.guarded[session] = self.process
        try:
            yield look
        finally:
            network.guarded.pop(session, None)


def connection_of(network: Network, process: Process, mix: Mix, *, wakes: bool) -> Connection:
    """A connection to the store of a mix."""
    if mix.pulls:
        return PullingConnection(network, process)
    if mix.guards:
        return GuardingConnection(network, process)
    return (WakingConnection if wakes else Connection)(network, process)
