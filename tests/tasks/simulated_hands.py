"""Users who claim tasks by hand in simulated processes: they hold them for a while, and settle them."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import anyio

from intervalq.errors import ClaimLost, QueueClosed, StoreError
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Worked
from intervalq.testing.simulation.loop import Process, ProcessClock
from tasks.simulated_network import Connection, WakingConnection

if TYPE_CHECKING:
    from tasks.simulated_process import Worker
    from tasks.simulated_workers import World

SOON = 1.0
"""Seconds after which a task that was claimed for a caller who left has been given back."""

LAST = 1.0
"""Seconds that a call waits after its timeout for an answer that is on its way."""


class Hand:
    """A process whose user claims tasks of the queue `h` until there are no more.

    With a worker, the user is in the worker's process, and uses its handle.
    """

    def __init__(self, world: World, name: str, worker: Worker | None = None) -> None:
        self.world = world
        self.dice = world.dice if worker is None else Random(f"{world.seed}:{name}:user")
        self._worker = worker
        if worker is None:
            self.process = Process(name, ProcessClock(0, 0.0, lambda: 0.0))
            self.connection = (WakingConnection if world.waking else Connection)(world.network, self.process)
            self.connection.heard = self._heard
            self.tasks = Tasks(self.connection, expiry=world.expiry)
        else:
            self.process, self.tasks = worker.process, worker.tasks
        self._turns = Random(f"{world.seed}:{name}")
        self._call: anyio.CancelScope | None = None

    async def work(self) -> None:
        """Claim and settle until the run is over."""
        while not self.world.over:
            try:
                claim = await self._claim()
                if claim is not None:
                    await self._hold(claim)
                elif self._worker is None and self.dice.random() < 0.2:
                    await self._leave()
            except StoreError as error:
                self.world.network.say(f"{self.process.name}: {error!r}")
            except QueueClosed:
                self.world.network.broken(f"{self.process.name} refuses a claim, and its handle is open")
            await anyio.sleep(self.dice.uniform(0, 0.3))
        while self._worker is not None and self._worker.is_on:
            await anyio.sleep(0.1)
        await self._leave()

    async def _claim(self) -> Claim | None:
        dice, now = self.dice, self.world.loop.time
        lease = dice.choice([None, None, dice.uniform(0.5, 3)])
        since, seconds = now(), dice.choice([0, 0.2, dice.uniform(0, 3)])
        with anyio.move_on_after(dice.choice([100.0, 100.0, dice.uniform(0, 1)])) as scope:
            self._call = scope
            try:
                claim = await self.tasks.claim("h", lease=lease, timeout=seconds)
            except TimeoutError:
                claim = None
            if self.world.judge.calm and now() - since > seconds + LAST + 0.1:
                self.world.network.broken(
                    f"{self.process.name} waited {now() - since:.6f} s, not {seconds:g}"
                )
            return claim
        assert scope.cancelled_caught
        await anyio.sleep(SOON)
        self._judge_left()
        return None

    def _heard(self, answer: object) -> None:
        """The caller may leave just when its task arrives, before or after it is given the task."""
        has_come = isinstance(answer, Worked) and answer.claimed
        if has_come and self._call is not None and self._turns.random() < 0.3:
            self._cancel(self._call, self._turns.randrange(5))

    def _cancel(self, call: anyio.CancelScope, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._cancel, call, turns - 1)
        else:
            call.cancel()

    def _judge_left(self) -> None:
        """Check that nothing is claimed here while no call waits and no task is held."""
        network = self.world.network
        for row in network.rows() if self.world.judge.calm else ():
            if row.queue == "h" and row.session in self.world.judge.sessions_of(self.process):
                network.broken(f"{self.process.name} has {row.json} claimed, and its caller has left")

    async def _hold(self, claim: Claim) -> None:
        world, dice, now = self.world, self.dice, self.world.loop.time
        judge, until = world.judge, self._until(claim, world.loop.time())
        world.network.say(f"{self.process.name} has {claim.value}")
        if judge.calm and (other := world.holders.get(claim.id)) is not None and other[1] > now() + 0.01:
            world.network.broken(f"{self.process.name} has {claim.value}, and so has {other[0]}")
        if judge.calm and claim.id not in judge.unsure and claim.attempt != 1 + judge.failed[claim.id]:
            world.network.broken(f"attempt {claim.attempt} of {claim.value} by hand")
        if until < float("inf"):
            judge.unsure.add(claim.id)
        world.holders[claim.id] = self.process.name, until - 0.01
        try:
            await anyio.sleep(dice.choice([0, dice.uniform(0, 0.5), dice.uniform(0, 4)]))
            for _ in range(dice.choice([0, 0, 1, 3])):
                until = min(until, now())  # until it is answered, the outcome is unknown
                until = await self._renew(claim)
                world.holders[claim.id] = self.process.name, until - 0.01
                await anyio.sleep(dice.uniform(0, 1))
            world.holders.pop(claim.id, None)
            await self._settle(claim)
        except ClaimLost as error:
            judge.unsure.add(claim.id)
            if judge.calm and now() < until - 0.1:
                world.network.broken(f"{self.process.name} lost {claim.value} before {until:.6f}: {error}")
            return
        finally:
            world.holders.pop(claim.id, None)

    def _until(self, claim: Claim, now: float) -> float:
        return float("inf") if claim._lease is None else now + claim._lease / 1e6 - 0.05

    async def _renew(self, claim: Claim) -> float:
        """Request more time, perhaps twice at once; returns until when the claim holds."""
        lease = self.dice.choice([None, self.dice.uniform(1, 5)])
        since = self.world.loop.time()
        if lease is not None:
            self.world.judge.unsure.add(claim.id)
        lost: list[ClaimLost] = []
        async with anyio.create_task_group() as group:
            for _ in range(self.dice.choice([1, 1, 2])):
                group.start_soon(self._renews, claim, lease, lost)
        if lost:
            raise lost[0]
        return float("inf") if lease is None else since + lease

    async def _renews(self, claim: Claim, lease: float | None, lost: list[ClaimLost]) -> None:
        try:
            with self.world.judge.settles(self.process, claim):
                await claim.in_progress(lease)
        except ClaimLost as error:
            lost.append(error)

    async def _settle(self, claim: Claim) -> None:
        chance = self.dice.random()
        with self.world.judge.settles(self.process, claim):
            if chance < 0.6:
                await claim.ack(self.tasks.new("ledger", claim.value))
            elif chance < 0.75:
                await claim.release()
            elif chance < 0.95:
                self.world.judge.failed[claim.id] += 1
                await claim.nak(self.dice.uniform(0, 0.5))
            else:
                await claim.term()

    async def _leave(self) -> None:
        """Close the handle, which may be used again."""
        await self.tasks.aclose()
        if self.world.judge.calm and self.world.has_session(self.process):
            self.world.network.broken(f"{self.process.name} has closed its handle and has a session")
