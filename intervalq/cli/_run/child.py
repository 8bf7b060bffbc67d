"""A shard of a run, in a process of its own: begins each job in a slot, and reports it to the parent.

The parent writes JSON lines to its standard input: first the queue's options, then `job`s, then `end` (no
more jobs), `stop` (begin no more) or `kill` (also end the running ones). If the input closes without such a
message, the parent is dead, and the shard ends whatever it runs. It answers on standard output: `ready` for
jobs; `begins` before a job's program is started, so that a job is known to have begun even if its shard dies;
`runs` with its process; `ended`; `failed` when it can't begin jobs any more; after `stop`, `unused` slots,
which the parent gives back together with those of the other shards; and `bye` at its end.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from intervalq import IntervalqError, IntervalQueue, QueueClosed, QueueNotFound
from intervalq._observe.starts import observe
from intervalq._queue.options import Cost
from intervalq._shard.grants import Grant
from intervalq._shard.shard import Shard
from intervalq.cli._run.program import GRACE, end_program, run_program
from intervalq.cli._run.protocol import Forward, Pipes

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

_LOOKS: Final = 3
"""Round trips before the first job."""

_FAREWELL: Final = 10.0
"""Seconds allowed for giving unused tickets back to the store; otherwise each leaves an empty slot."""


class ShardProcess:
    """One shard of `intervalq run`, in a process of its own."""

    def __init__(self, pipes: Pipes, options: dict[str, Any]) -> None:
        self._pipes = pipes
        self._queue = IntervalQueue(**options)
        self._running: set[int] = set()
        self._began: dict[int, float] = {}  # when, on the store's clock, by ticket
        self._no_more = anyio.Event()
        self._closing = self._killing = False
        # Each program needs some descriptors in this process, and running out of them would fail jobs.
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = anyio.Semaphore(max(1, (min(soft, 1 << 20) - 64) // 4))

    async def serve(self) -> None:
        """Run until the parent has no more jobs and all started ones have ended."""
        shard = self._queue._shard()
        observe(shard, self)
        async with anyio.create_task_group() as background:
            background.start_soon(self._heed_signals)
            async with anyio.create_task_group() as jobs:
                background.start_soon(self._obey, jobs)
                background.start_soon(self._get_ready)
                await self._no_more.wait()
            with anyio.move_on_after(_FAREWELL):
                await self._queue.close()
            self._tell_unused(shard)
            self._pipes.send(bye=True, calls=shard.calls)
            self._pipes.flush()
            background.cancel_scope.cancel()

    def began(self, grant: Grant, started: float, waited: float) -> None:
        """See `Observer.began`: a job began with its slot, however long its program takes to start."""
        del waited
        self._began[grant.ticket] = started

    def undone(self, grant: Grant) -> None:
        """See `Observer.undone`, which is for threads."""

    async def _get_ready(self) -> None:
        """Learn the store's clock before the first job: the first round trips are slow, and inexact."""
        try:
            for _ in range(_LOOKS):
                with suppress(QueueNotFound):
                    await self._queue.inspect()
        except QueueClosed:
            return
        except IntervalqError as error:
            await self._fail(str(error))
        else:
            self._pipes.send(ready=True)

    async def _obey(self, jobs: TaskGroup) -> None:
        while (message := await self._pipes.receive()) is not None:
            if "job" in message:
                if not self._closing:
                    jobs.start_soon(self._run, message["job"], message["argv"], message["cost"])
            elif "kill" in message:
                self._kill(jobs)
                await self._stop(keeps=True)
            elif "stop" in message:
                await self._stop(keeps=True)
            else:
                self._no_more.set()
        self._kill(jobs)
        await self._stop()

    async def _run(self, number: int, argv: list[str], cost: Cost) -> None:
        try:
            shard = self._queue._shard()
        except QueueClosed:
            return  # a request to end came before this job's turn
        ids: set[int] = set()

        def runs(pid: int) -> None:
            ids.add(pid)
            self._running.add(pid)
            self._pipes.send(runs=number, pid=pid)
            self._pipes.flush()
            if self._killing:
                end_program(pid, kill=True)

        try:
            async with self._room, self._queue.slot(cost=cost) as slot:
                started = round(self._began.pop(slot.ticket), 6)
                self._pipes.send(begins=number, ticket=slot.ticket, due=slot.due, started=started)
                self._pipes.flush()
                ended = await run_program(argv, lambda: _time(shard), runs)
        except QueueClosed:
            return  # the parent knows which jobs did not begin
        except IntervalqError as error:
            await self._fail(str(error))
            return
        finally:
            self._running -= ids
        self._pipes.send(
            ended=number, at=ended.at, exit_code=ended.exit_code, stdout=ended.stdout, stderr=ended.stderr,
            calls=shard.calls,
        )  # fmt: skip

    async def _fail(self, why: str) -> None:
        """Begin no more jobs in this shard; other shards may be able to."""
        if not self._closing:
            self._pipes.send(failed=why)
            await self._stop()

    async def _stop(self, *, keeps: bool = False) -> None:
        """Begin no more jobs. `keeps`: keep unused slots; the parent gives back those of all shards."""
        shard = self._queue._shard() if keeps and not self._closing else None
        if shard is not None:
            shard.conversation.kept = []
        self._closing = True
        self._no_more.set()
        with anyio.move_on_after(_FAREWELL):
            await self._queue.close(drain=False)
        if shard is not None:
            self._tell_unused(shard)

    def _tell_unused(self, shard: Shard) -> None:
        """Tell the parent, once, which slots to give back; don't wait for running jobs, which may be long."""
        kept, shard.conversation.kept = shard.conversation.kept, None
        if kept is not None:
            generation = "" if shard.state is None else shard.state.generation
            self._pipes.send(unused=kept, generation=generation)
            self._pipes.flush()

    def _kill(self, jobs: TaskGroup) -> None:
        self._killing = True
        if asked := frozenset(self._running):
            for pid in asked:
                end_program(pid, kill=False)
            jobs.start_soon(_kill_later, asked)

    async def _heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for received in signals:
                await self._fail(f"it received {received.name}")


async def _kill_later(asked: frozenset[int]) -> None:
    """Kill what is left of these process groups after a grace period; return as soon as nothing is left."""
    with anyio.move_on_after(GRACE):
        while any(_has_members(pid) for pid in asked):  # noqa: ASYNC110 - the end of a group can't be awaited
            await anyio.sleep(0.02)
    for pid in asked:
        end_program(pid, kill=True)


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _time(shard: Shard) -> float:
    return round(shard.store_time(), 6)


async def _main() -> None:
    pipes = Pipes()
    logging.getLogger("intervalq").addHandler(Forward(pipes))
    options = await pipes.receive()
    if options is not None:
        await ShardProcess(pipes, options).serve()


if __name__ == "__main__":
    anyio.run(_main)
