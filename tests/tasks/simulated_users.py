"""Users who claim tasks by hand in simulated processes: they hold them for a while, and settle them."""

from __future__ import annotations

import asyncio
import math
from random import Random
from typing import TYPE_CHECKING

import anyio

from intervalq.errors import ClaimLost, DependencyError, QueueClosed, StoreError, UnsupportedOperation
from intervalq.tasks import Claim, Tasks
from intervalq.tasks.rules import Worked
from simulation.loop import Process, ProcessClock
from tasks.simulated_network import CONSUMER, DEADLINE, MAX_PENDING, Connection

if TYPE_CHECKING:
    from tasks.simulated_process import Worker
    from tasks.simulated_workers import World

SOON = 1.0
"""Seconds after which a task that was claimed for a caller who left has been given back."""

READY = 0.7
"""Seconds within which a ready task is given to a caller: callers poll every half second at least."""

EARLY = 0.11
"""Seconds by which a call of `fetch` may end before its timeout."""

CLOSES = 0.1
"""Seconds for which those who waited may still learn that their handle was closed."""

ATTEMPT = 3 * DEADLINE
"""Seconds that a session may need to begin, and a call to claim something, or to find no store."""

LAST = 1.0
"""Seconds that a call waits after its timeout for an answer that is on its way."""


class User:
    """A process whose user claims tasks of the queue `h` until there are no more.

    With a worker, the user is in the worker's process, and uses its handle.
    """

    def __init__(
        self, world: World, name: str, worker: Worker | None = None, other: User | None = None
    ) -> None:
        self.world = world
        self.dice = world.dice if worker is None else Random(f"{world.seed}:{name}:user")
        self._worker = worker
        self._others: list[User] = [] if other is None else other._others
        """All users of the handle."""
        self._others.append(self)
        self._closed = -math.inf  # when this user closed the handle last
        self.process: Process
        self.tasks: Tasks
        self.connection: Connection
        if other is not None:
            self.process, self.tasks, self.connection = other.process, other.tasks, other.connection
        elif worker is None:
            self.process = Process(name, ProcessClock(0, 0.0, lambda: 0.0))
            self.connection = world.connection(self.process)
            self.connection.heard = self._heard
            self.tasks = Tasks(self.connection, expiry=world.expiry)
        else:
            self.process, self.tasks, self.connection = worker.process, worker.tasks, worker.connection
        self._turns = Random(f"{world.seed}:{name}")
        self._call: anyio.CancelScope | None = None
        self._leases: dict[Claim, float | None] = {}
        """For how many seconds each claim holds after each call about it; None: without an end."""

    async def work(self) -> None:
        """Claim and settle until the run is over."""
        while not self.world.over:
            try:
                claims = await self._claim()
                async with anyio.create_task_group() as group:
                    for claim in claims:
                        group.start_soon(self._hold, claim)
                if not claims and self._worker is None and self.dice.random() < 0.2:
                    await self._leave()
            except StoreError as error:
                self.world.network.say(f"{self.process.name}: {error!r}")
            except QueueClosed:
                if self._was_open():
                    self.world.network.broken(f"{self.process.name} refuses a claim, and its handle is open")
            with anyio.move_on_after(self.dice.uniform(0, 0.3)):  # or just while the session ends
                await self.connection.ends.wait()
        while self._worker is not None and self._worker.is_on:
            await anyio.sleep(0.1)
        await self._leave()

    def _was_open(self, since: float = math.inf) -> bool:
        """Whether nobody has closed the handle lately, or since then."""
        return max(each._closed for each in self._others) < min(since, self.world.loop.time() - CLOSES)

    async def _claim(self) -> list[Claim]:
        dice, now = self.dice, self.world.loop.time
        lease = dice.choice([None, None, dice.uniform(0.5, 3)])
        since, seconds = now(), dice.choice([0, 0.2, dice.uniform(0, 3)])
        with anyio.move_on_after(dice.choice([100.0, 100.0, dice.uniform(0, 1)])) as scope:
            self._call = scope
            try:
                claims = await self._claimed(lease, seconds)
            except TimeoutError:
                claims = []
            finally:
                self._judge_call(since, seconds)
            self._leases = dict.fromkeys(claims, lease)
            if not claims:
                self._judge_wait(now() - since, seconds)
            return claims
        assert scope.cancelled_caught
        await anyio.sleep(SOON)
        self._judge_left()
        return []

    async def _claimed(self, lease: float | None, seconds: float) -> list[Claim]:
        if not (self.world.mix.fetches and self.dice.random() < 0.3):
            return [await self.tasks.claim("h", lease=lease, timeout=seconds)]
        pull = self.tasks.pull("h", name=CONSUMER, max_ack_pending=MAX_PENDING)
        return await pull.fetch(self.dice.choice([1, 2, 5]), seconds, lease=lease)

    def _judge_call(self, since: float, seconds: float) -> None:
        """Check that a call has ended in time: soon after its timeout, or an error.

        If the store can't be reached, a last attempt may take some time. Who asks once waits for the store.
        """
        judge, now, who = self.world.judge, self.world.loop.time(), self.process.name
        last = 0.1 + (LAST if seconds else 0.0) + (0.0 if judge.calm else ATTEMPT)
        is_judged = judge.calm or (self._worker is None and (seconds or self.world.mix.pulls))
        if is_judged and now - since > seconds + last:
            self.world.network.broken(f"{who} waited {now - since:.6f} s, not {seconds:g}")
        if since < self.connection.refused < now - 0.1:
            self.world.network.broken(f"{who} waits since {since:.6f}, and was refused")

    def _judge_wait(self, waited: float, seconds: float) -> None:
        """Check that a call that got nothing has waited for its time, and no task was ready meanwhile."""
        world, now = self.world, self.world.loop.time()
        if waited < seconds - EARLY:
            world.network.broken(f"{self.process.name} waited only {waited:.6f} s of {seconds:g}")
        if not world.judge.calm or seconds < READY or world.mix.fetches or not self._was_open():
            return
        for row in world.network.rows():
            ready = max(row.at, row.modified) / 1e6 - 1000
            if row.queue == "h" and row.session is None and ready < now - READY:
                world.network.broken(f"{self.process.name} waited {seconds:g} s, and {row.json} was ready")

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
        is_alone = len(self._others) == 1 and self.world.judge.calm
        for row in network.rows() if is_alone else ():
            if row.queue == "h" and row.session in self.world.judge.sessions_of(self.process):
                network.broken(f"{self.process.name} has {row.json} claimed, and its caller has left")

    async def _hold(self, claim: Claim) -> None:
        try:
            await self._work_on(claim)
        except StoreError as error:
            self.world.judge.unsure.add(claim.id)
            self.world.network.say(f"{self.process.name}: {error!r}")

    async def _work_on(self, claim: Claim) -> None:
        world, dice, now = self.world, self.dice, self.world.loop.time
        judge, until, since = world.judge, self._until(claim, world.loop.time()), now()
        world.network.say(f"{self.process.name} has {claim.value}")
        other = world.holders.get(claim.id)
        if judge.calm and other is not None and other[1] > now() + 0.01 and other[0]._was_open(other[2]):
            name = other[0].process.name
            world.network.broken(f"{self.process.name} has {claim.value}, and so has {name}")
        if judge.calm and claim.id not in judge.unsure and claim.attempt != 1 + judge.failed[claim.id]:
            world.network.broken(f"attempt {claim.attempt} of {claim.value} by hand")
        if until < float("inf"):
            judge.unsure.add(claim.id)
        world.holders[claim.id] = self, until - 0.01, since
        try:
            await anyio.sleep(dice.choice([0, dice.uniform(0, 0.5), dice.uniform(0, 4)]))
            for _ in range(dice.choice([0, 0, 1, 3])):
                # Until it is answered, the outcome is unknown.
                held, until = until, min(until, now())
                renews = dice.random() < 0.7
                until = await self._renew(claim) if renews else await self._changes(claim, held)
                world.holders[claim.id] = self, until - 0.01, since
                await anyio.sleep(dice.uniform(0, 1))
            world.holders.pop(claim.id, None)
            await self._settle(claim)
        except ClaimLost as error:
            judge.unsure.add(claim.id)
            if judge.calm and now() < until - 0.1 and self._was_open(since):
                world.network.broken(f"{self.process.name} lost {claim.value} before {until:.6f}: {error}")
            return
        finally:
            world.holders.pop(claim.id, None)

    def _until(self, claim: Claim, now: float) -> float:
        lease = self._leases.get(claim)
        return float("inf") if lease is None else now + lease - 0.05

    async def _renew(self, claim: Claim) -> float:
        """Request more time, perhaps twice at once; returns until when the claim holds."""
        lease = self.dice.choice([None, self.dice.uniform(1, 5)])
        since = self.world.loop.time()
        if lease is not None:
            self.world.judge.unsure.add(claim.id)
        lost: list[ClaimLost | StoreError] = []
        async with anyio.create_task_group() as group:
            for _ in range(self.dice.choice([1, 1, 2])):
                group.start_soon(self._renews, claim, lease, lost)
        if lost:
            raise lost[0]
        self._leases[claim] = lease
        return float("inf") if lease is None else since + lease

    async def _renews(self, claim: Claim, lease: float | None, lost: list[ClaimLost | StoreError]) -> None:
        try:
            with self.world.judge.settles(self.process, claim):
                await claim.in_progress(lease)
        except (ClaimLost, StoreError) as error:
            lost.append(error)

    async def _changes(self, claim: Claim, held: float) -> float:
        """Report on the work, or change the task, which both keep the claim; returns until when it holds."""
        judge = self.world.judge
        if self.world.mix.pulls:
            try:
                await claim.in_progress(progress=0.5)
            except UnsupportedOperation:
                return held
            self.world.network.broken(f"{self.process.name} reports on {claim.value}, which can't be kept")
        since = self.world.loop.time()
        if self.dice.random() < 0.5:
            checkpoint = self.dice.randrange(1000)
            with judge.settles(self.process, claim), judge.reports(claim, checkpoint):
                await claim.in_progress(checkpoint=checkpoint)
        else:
            try:
                with judge.settles(self.process, claim):
                    await self.tasks.modify(claim.change(value=claim.value))
            except DependencyError as error:
                raise claim._lost() from error
            row, lease = self.world.network.row(claim.id), self._leases.get(claim)
            is_mine = judge.calm and row is not None and row.session == claim._row.session
            if is_mine and row is not None and (row.until is None) != (lease is None):
                self.world.network.broken(
                    f"{self.process.name} changes {row.json}, and its lease was {lease}"
                )
        return self._until(claim, since)

    async def _settle(self, claim: Claim) -> None:
        chance = self.dice.random()
        with self.world.judge.settles(self.process, claim):
            if chance < 0.1 and not self.world.mix.pulls:
                try:
                    await self.tasks.modify(claim.delete(), self.tasks.new("ledger", claim.value))
                except DependencyError as error:
                    raise claim._lost() from error
                if claim.open:
                    self.world.network.broken(f"{self.process.name} has ended {claim.value}, which is open")
            elif chance < 0.6:
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
        world, self._closed = self.world, math.inf
        before = world.judge.sessions_of(self.process)
        await self.tasks.aclose()
        self._closed = world.loop.time()
        if world.judge.calm and before & set(world.network.store._tasks.table._sessions):
            world.network.broken(f"{self.process.name} has closed its handle and has a session")
