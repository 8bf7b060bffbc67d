"""Workers in a simulated process, whose functions fail, take long, or end the process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from intervalq import IntervalQueue
from intervalq.errors import ClaimLost, DependencyError, StoreError
from intervalq.tasks import Claim, Reject, Retry, Snooze, Tasks
from intervalq.tasks.rules import Depend
from simulation.loop import Process, ProcessClock
from tasks.simulated_judge import Call
from tasks.simulated_users import User

if TYPE_CHECKING:
    from tasks.simulated_workers import World

GRACE = 1.0
SOON = 0.5
"""Seconds in which workers stop that run nothing: less than `GRACE`."""
REFUSED = 0.1
"""Seconds within which workers end after the store has refused something."""
BACK = 10.0
"""Seconds after a partition within which a process reaches the store again."""
OF_M = 0.5
"""Seconds that a task of the queue `m` may take."""


class Worker:
    """A process with a handle whose workers run."""

    def __init__(self, world: World, name: str) -> None:
        dice = world.dice
        self.world = world
        clock = ProcessClock(dice.randrange(10**12), dice.uniform(-200, 200), lambda: 0.0)
        self.process = Process(name, clock)
        self.connection = world.connection(self.process)
        self.tasks = Tasks(self.connection, expiry=world.expiry)
        self.run_task: asyncio.Task[None] | None = None
        self.seat = world.judge.seats[self.process]
        self.seat.holds = getattr(self.connection, "holds", None)
        world.judge.looks.append(self.judge_refused)
        self.is_on = False
        """Whether its workers run."""
        self.ending = False
        """Whether a function has asked for the end of the process."""
        pace, self.seat.is_paced = IntervalQueue("pace", interval=0.2, store=world.pace), world.is_paced
        self._serve("ab", self.work, "a", "b", backoff=0.2)
        self._serve("k", self.work, "k", backoff=0.2, queue=pace if world.is_paced else None)
        self._serve("m", self.timed, "m", max_attempts=2, timeout=OF_M, backoff=0.1)
        self._serve("q", self.quick, "q", on_dependency=self._refused)
        self._serve("poison", self.poisoned, "poison", max_attempts=2, backoff=0.2)
        if world.mix.chunks:
            self._serve_chunks()

    def _serve(self, group: str, function: Callable[[Claim], Any], *queues: str, **options: Any) -> None:
        many = 1 if group == "poison" else self.world.dice.randint(1, 3)
        self.seat.many[group] = many
        options = {"max_attempts": None} | options
        self.tasks.worker(*queues, concurrency=many, **options)(partial(self._called, group, function))

    def _serve_chunks(self) -> None:
        dice = self.world.dice
        many, batch = dice.randint(1, 3), dice.choice([2, 5, 30])
        self.seat.many["c"] = many * batch
        pace = IntervalQueue("pace", interval=0.2, store=self.world.pace) if dice.random() < 0.3 else None
        self.seat.is_paced = self.seat.is_paced or pace is not None
        self.tasks.worker(
            "c", batch=batch, within=dice.choice([0, 0.02, 0.5]), concurrency=many, queue=pace,
            max_attempts=dice.choice([None, 4]), backoff=0.2,
        )(partial(self._called_with_chunk, pace is not None))  # fmt: skip

    def start(self) -> None:
        if not self.world.over:
            self.process.context.run(self._start)

    def start_user(self) -> None:
        """Begin to claim tasks by hand, too, with the same handle."""
        user = User(self.world, f"user of {self.process.name}", self)
        self.world.users.append(user)
        self.process.context.run(asyncio.get_running_loop().create_task, user.work())

    def _start(self) -> None:
        self.seat.stopped, self.seat.started, self.ending = None, self.world.loop.time(), False
        self.connection.refused = -math.inf
        self.run_task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        world, self.is_on = self.world, True
        try:
            await self.tasks.run(grace=GRACE)
        except StoreError as error:
            self.seat.stopped = world.loop.time()
            if (
                not world.mix.refusals
                or self.seat.stopped > max(self.connection.refused, self.seat.back) + REFUSED
            ):
                world.network.broken(f"{self.process.name}: {error}")
        except SystemExit:
            if not self.ending:
                world.network.broken(f"{self.process.name} ends, and nobody wanted that")
            self.seat.stopped = world.loop.time()
        except asyncio.CancelledError:
            if self.seat.stopped is None:
                raise
        else:
            if self.ending:
                world.network.broken(f"{self.process.name} goes on, and was to end")
            if self.connection.refused > (self.seat.stopped or 0.0) + REFUSED:
                world.network.broken(f"{self.process.name} was refused, and ends without an error")
        self._ended()

    def _ended(self) -> None:
        """After its workers have ended, close the handle, and start others in their place."""
        world, now, self.is_on = self.world, self.world.loop.time(), False
        if self.seat.stopped is None:
            world.network.broken(f"{self.process.name} has ended, and was not stopped")
        elif world.judge.calm and now > self.seat.stopped + GRACE + 1:
            world.network.broken(f"{self.process.name} took {now - self.seat.stopped:.6f} s to stop")
        elif self._is_free() and now > self.seat.stopped + SOON:
            world.network.broken(f"{self.process.name} ran nothing, and took {now - self.seat.stopped:.6f} s")
        if world.judge.calm and not world.mix.beside and world.has_session(self.process):
            world.network.broken(f"{self.process.name} has ended and has a session")
        if not world.over:
            again = self.start if world.dice.random() < 0.5 else world.begin
            world.at(now + world.dice.uniform(0.1, 3), again)

    def _is_free(self) -> bool:
        """Whether nothing ran in this process since it was stopped, and nothing was in its way."""
        mix, seat = self.world.mix, self.seat
        runs = any(call.process is self.process for call in self.world.judge.running)
        is_far = bool(mix.lost or mix.slow)
        back = seat.back + BACK * bool(mix.cuts)
        return not (runs or is_far) and max(seat.idle, back) < (seat.stopped or 0.0)

    def stop(self, *, cancel: bool) -> None:
        """Stop in an orderly way, or at once."""
        if not self.is_on or self.seat.stopped is not None:
            return
        assert self.run_task is not None
        self.seat.stopped = self.world.loop.time()
        if cancel:
            self.run_task.cancel()
        else:
            self.process.context.run(self.tasks.stop)

    def close(self) -> None:
        """Close the handle, which ends its workers, too."""
        if self.is_on and self.seat.stopped is None:
            self.seat.stopped = self.world.loop.time()
            self.process.context.run(asyncio.get_running_loop().create_task, self.tasks.aclose())

    def judge_refused(self) -> None:
        """Check that workers end soon after the store has refused what they asked."""
        seat, refused = self.seat, self.connection.refused
        runs = any(call.process is self.process for call in self.world.judge.running)
        goes_on = self.is_on and seat.stopped is None and not runs and not self.process.dead
        if goes_on and refused > seat.started and self.world.loop.time() > max(refused, seat.back) + SOON:
            self.world.network.broken(f"{self.process.name} was refused at {refused:.6f}, and goes on")

    def judge_dead(self, process: Process, since: float) -> None:
        """Check that a process that has died has no claims, if this one has been running all the time."""
        seat, claims = self.seat, self.world.has_claims(process)
        watches = self.is_on and not self.process.dead and seat.stopped is None
        if watches and seat.started < since and claims:
            self.world.network.broken(f"{self.process.name} has not noticed that {process.name} is dead")

    async def _called(self, group: str, function: Callable[[Claim], Any], claim: Claim) -> Any:
        """Run a function under the judge's eyes. An error that it raises by itself is a failed attempt."""
        world = self.world
        world.runs += 1
        world.network.say(f"{self.process.name} runs {claim.value}")
        paced = world.is_paced and group == "k"
        call = world.judge.begins(self.process, group, claim, paced=paced)
        failed = False
        try:
            return await function(claim)
        except BaseException as error:
            failed = not isinstance(error, asyncio.CancelledError) or error.args == ("by itself",)
            failed = failed and not isinstance(error, Snooze)
            is_over = group == "m" and world.loop.time() >= call.began + OF_M - 1e-6
            failed = failed or is_over
            if isinstance(error, asyncio.CancelledError) and not (failed or is_over):
                self._judge_cancelled([claim])
            raise
        finally:
            world.judge.ends(call, failed=failed, over=world.over)

    def _judge_cancelled(self, claims: list[Claim]) -> None:
        """Check that a function is cancelled only if it has lost all its tasks, or somebody wanted that."""
        world = self.world
        wanted = world.over or self.ending or self.seat.stopped is not None
        wanted = wanted or self.connection.refused > self.seat.started
        left = [each.value for each in claims if each.open and each.value not in world.maybe_cancelled]
        if left and not wanted:
            world.network.broken(f"{self.process.name} cancels {left}, which it has not lost")

    async def _called_with_chunk(self, paced: bool, claims: list[Claim]) -> Any:
        """`_called` for a chunk: each of its tasks is one to the judge."""
        world = self.world
        world.runs += len(claims)
        world.network.say(f"{self.process.name} runs {[claim.value for claim in claims]}")
        if len({claim.key for claim in claims if claim.key}) < sum(claim.key is not None for claim in claims):
            world.network.broken(f"{self.process.name} has two tasks of a key in a chunk")
        calls = [world.judge.begins(self.process, "c", claim, paced=paced) for claim in claims]
        failed = False
        try:
            return await self.chunk(calls)
        except BaseException as error:
            failed = not isinstance(error, asyncio.CancelledError) or error.args == ("by itself",)
            failed = failed and not isinstance(error, Snooze | ClaimLost)
            if isinstance(error, asyncio.CancelledError) and not failed:
                self._judge_cancelled(claims)
            raise
        finally:
            for call in calls:
                world.judge.ends(call, failed=failed and call.claim.open, over=world.over)

    async def chunk(self, calls: list[Call]) -> Any:
        """A function that settles some of its claims itself."""
        dice = self.world.dice
        new = self.tasks.new
        await anyio.sleep(dice.choice([0.0, dice.expovariate(10), dice.uniform(0, 4)]))
        if self.world.mix.lost and dice.random() < 0.1:
            await anyio.sleep(dice.uniform(1, 25))
        for call in calls:
            claim, chance = call.claim, dice.random()
            call.settles = chance < 0.3
            try:
                if chance < 0.3:
                    with self.world.judge.settles(self.process, claim):
                        await self._settle(claim, chance)
            except ClaimLost:
                if dice.random() < 0.3:
                    raise
        self._fails(dice.random())
        if dice.random() < 0.1:
            return [new("ledger", -1), Depend("nobody", 0)]
        return [new("ledger", call.claim.value) for call in calls if call.claim.open]

    async def _settle(self, claim: Claim, chance: float) -> None:
        if chance < 0.2:
            await claim.ack(self.tasks.new("ledger", claim.value))
        elif chance < 0.25:
            await claim.snooze(self.world.dice.uniform(0, 1))
        else:
            await claim.release()

    async def work(self, claim: Claim) -> Any:
        dice = self.world.dice
        chance = dice.random()
        if self.world.mix.reports and dice.random() < 0.5:
            await self._reports(claim)
        try:
            if claim._row.alone and self.world.mix.patience < 10:
                await anyio.sleep(dice.uniform(0, 12 * self.world.mix.patience))
            elif chance < 0.7:
                await anyio.sleep(dice.expovariate(10))
            elif chance < 0.75:
                await anyio.sleep(dice.choice([dice.uniform(1, 8), dice.uniform(1, 25)]))
        except asyncio.CancelledError:
            if self.world.mix.cancels:  # it takes its time to end
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(dice.uniform(0, 0.9))
            raise
        self._fails(chance)
        changes = [self.tasks.new("ledger", claim.value)]
        if 0.75 < chance < 0.78:  # others were faster
            return [*changes, Depend("nobody", 0)]
        return changes

    async def _reports(self, claim: Claim) -> None:
        checkpoint = self.world.dice.randrange(1000)
        with self.world.judge.reports(claim, checkpoint):
            await claim.in_progress(progress=checkpoint / 1000, checkpoint=checkpoint)

    def _fails(self, chance: float) -> None:
        dice = self.world.dice
        if chance > 0.95:
            raise RuntimeError("it failed")
        if chance > 0.92:
            raise Retry(delay=dice.uniform(0, 1))
        if chance > 0.91:
            raise Reject
        if chance > 0.9:
            raise asyncio.CancelledError("by itself")
        if self.world.mix.cancels and 0.8 < chance < 0.9:
            raise Snooze(dice.uniform(0, 1))
        if dice.random() < self.world.mix.exits:
            self.ending = True
            raise SystemExit

    async def timed(self, claim: Claim) -> Any:
        """A function that fails often, and may take too long."""
        await anyio.sleep(self.world.dice.choice([0.0, 0.1, 2.0]))
        if self.world.dice.random() < 0.3:
            raise RuntimeError("it failed")
        return self.tasks.new("ledger", claim.value)

    async def quick(self, claim: Claim) -> Any:
        """A function that takes nearly no time, but sometimes long."""
        dice = self.world.dice
        if dice.random() < 0.05:
            await anyio.sleep(dice.uniform(0, 4))
        elif dice.random() < 0.5:
            await anyio.sleep(0.001)
        if dice.random() < 0.05:
            return [self.tasks.new("ledger", -claim.value), Depend("nobody", 0)]
        return self.tasks.new("ledger", claim.value)

    async def _refused(self, claim: Claim, error: DependencyError) -> Any:
        """Return other changes instead; or none, so that the task is repeated."""
        del error
        return self.tasks.new("ledger", claim.value) if self.world.dice.random() < 0.5 else None

    async def poisoned(self, claim: Claim) -> Any:
        await anyio.sleep(self.world.dice.uniform(0, 0.1))
        self.world.crash(self)
        await anyio.sleep(1)
        return self.tasks.new("ledger", claim.value)
