"""The parent of a run: hands jobs to shards as they have room, collects results, and ends the run cleanly."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, Final

import anyio

from intervalq._show import warn
from intervalq._timing.backoff import backoff
from intervalq.cli._run.children import Running, Shard, Task
from intervalq.cli._run.jobs import BadLine, Job
from intervalq.cli._run.program import GRACE
from intervalq.cli._run.results import Result
from intervalq.cli._run.tally import Tally
from intervalq.rules import Slot

_AHEAD: Final = 64
"""The maximum number of jobs that are read before a shard has room for them."""

_MAX_UNWRITTEN: Final = 256
"""While there are more unwritten results than this, no job is begun."""

_FIRST_PAUSE: Final = 1.0
"""The first pause before another attempt, in seconds: see `backoff`."""


class Runner:
    """One run of `intervalq run`."""

    def __init__(
        self,
        jobs: AsyncIterable[tuple[Job, int]],
        *,
        options: dict[str, Any],
        shards: int,
        window: float,
        retries: int,
        tally: Tally,
        write: Callable[[Result], Awaitable[None]],
        give_back: Callable[[Runner], Coroutine[Any, Any, None]],
    ) -> None:
        """`give_back` is called once all shards of a stopped run have reported their unused slots."""
        self.tally = tally
        self.bad_line: BadLine | None = None
        self.output_error: OSError | None = None
        self.shard_errors: list[str] = []
        self.stopped_by: int | None = None
        """The first signal, if one came."""
        self.killed = False
        """Whether a second signal ended the running jobs."""
        self.read_all = False
        self.calls = 0
        self._jobs = jobs
        self._window = window
        self._retries = retries
        self._write = write
        self._give_back = give_back
        self._has_given_back = False
        self._shards = [Shard(number, options, self._heard) for number in range(1, shards + 1)]
        self._backlog: deque[Task] = deque()
        self._retrying: dict[int, Result] = {}
        self._results: deque[Result] = deque()
        self._reading_over = self._stopping = self._over = False
        self._changed = anyio.Event()
        self._reading = anyio.CancelScope()

    async def run(self) -> None:
        """Run until every job has its result, or the run was stopped and its running jobs have ended."""
        async with anyio.create_task_group() as background:
            self._background = background
            background.start_soon(self._heed_signals)
            background.start_soon(self._read)
            background.start_soon(self._feed)
            async with anyio.create_task_group() as self._endings:
                self._endings.start_soon(self._write_results)
                async with anyio.create_task_group() as shards:
                    for shard in self._shards:
                        shards.start_soon(self._serve, shard)
                self._over = True
                self._wake()
            background.cancel_scope.cancel()
        self.calls = sum(shard.calls for shard in self._shards)

    def unused(self, generation: str) -> tuple[Slot, ...]:
        """The slots of a record that no shard used, because the run was stopped."""
        shards = [shard for shard in self._shards if shard.generation == generation]
        return tuple(sorted({slot for shard in shards for slot in shard.unused}))

    def _give_back_if_all_stopped(self) -> None:
        stopped = self._stopping and all(shard.has_stopped for shard in self._shards)
        if stopped and not self._has_given_back and any(shard.unused for shard in self._shards):
            self._has_given_back = True
            self._endings.start_soon(self._give_back, self)

    # --- jobs ---------------------------------------------------------------------------------------

    async def _read(self) -> None:
        numbers = count(1)
        with self._reading:
            try:
                async for job, attempt in self._jobs:
                    self._backlog.append(Task(next(numbers), job, attempt, attempt + self._retries))
                    self.tally.read += 1
                    self._wake()
                    while len(self._backlog) >= _AHEAD:
                        await self._change()
                self.read_all = True
            except BadLine as error:
                self.bad_line = error
        self._reading_over = True
        self._end_if_done()

    async def _feed(self) -> None:
        while True:
            shard = self._emptiest()
            if shard is not None and self._backlog:
                shard.give(self._backlog.popleft())
                self._wake()
            else:
                await self._change()

    def _emptiest(self) -> Shard | None:
        """The shard to give the next job to; None: there is no room for one now."""
        if self._stopping or len(self._results) > _MAX_UNWRITTEN:
            return None
        able = [shard for shard in self._shards if shard.open and len(shard.waiting) < self._window]
        return min(able, key=lambda shard: (len(shard.waiting), shard.number), default=None)

    def _end_if_done(self) -> None:
        if self._reading_over and self.tally.done == self.tally.read and not self._stopping:
            self._stopping = True
            for shard in self._shards:
                shard.send(end=True)

    # --- messages of the shards ---------------------------------------------------------------------

    async def _serve(self, shard: Shard) -> None:
        how = await shard.live()
        if not shard.ended_well:
            warn(f"shard {shard.number} {how}")
        self._take_back(shard)
        for running in shard.running.values():
            self._died(shard, running, how)
        shard.running.clear()
        shard.has_stopped = True
        self._give_back_if_all_stopped()
        self._wake()

    def _heard(self, shard: Shard, message: dict[str, Any]) -> None:
        if (number := message.get("begins")) is not None:
            self.tally.begins(message["started"], message["ticket"], message["due"])
            self._wake()
        elif (number := message.get("ended")) is not None:
            self._ended(shard, shard.running.pop(number), message)
        elif "ready" in message:
            self._wake()
        elif "unused" in message:
            self._give_back_if_all_stopped()
        elif "failed" in message:
            if message["failed"] not in self.shard_errors:
                self.shard_errors.append(message["failed"])
                warn(f"shard {shard.number}: {message['failed']}")
            self._take_back(shard)
        elif "log" in message:
            warn(f"shard {shard.number}: {message['log']}")

    def _take_back(self, shard: Shard) -> None:
        """Give the jobs that a shard won't begin any more to the others, in their order."""
        self._backlog.extendleft(reversed(shard.waiting.values()))
        shard.waiting.clear()
        self._wake()

    def _ended(self, shard: Shard, running: Running, message: dict[str, Any]) -> None:
        result = _result(shard, running, message)
        task = running.task
        if result.exit_code != 0 and task.attempt < task.last_attempt and not self._stopping:
            self._retrying[task.number] = result
            self._background.start_soon(self._try_again, task)
        else:
            self._record(result)

    def _died(self, shard: Shard, running: Running, how: str) -> None:
        ended = running.started + anyio.current_time() - running.since
        why = f"intervalq: shard {shard.number} {how} while this job ran; how the job ended is not known\n"
        outcome = {"at": round(ended, 6), "exit_code": None, "stdout": "", "stderr": why}
        self._record(_result(shard, running, outcome))

    async def _try_again(self, task: Task) -> None:
        await anyio.sleep(backoff(task.attempt, _FIRST_PAUSE))
        if self._retrying.pop(task.number, None) is not None:
            task.attempt += 1
            self._backlog.appendleft(task)
            self._wake()

    # --- results ------------------------------------------------------------------------------------

    def _record(self, result: Result) -> None:
        self.tally.done += 1
        self.tally.failed += result.exit_code != 0
        self._results.append(result)
        self._wake()
        self._end_if_done()

    async def _write_results(self) -> None:
        while True:
            while self._results:
                if self.output_error is None:
                    try:
                        await self._write(self._results[0])
                    except OSError as error:
                        self.output_error = error
                        self._stop()
                self._results.popleft()
                self._wake()
            if self._over:
                return
            await self._change()

    # --- the end ------------------------------------------------------------------------------------

    async def _heed_signals(self) -> None:
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # under nohup, SIGHUP is ignored
            wanted.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*wanted) as signals:
            async for received in signals:
                self._signalled(received)

    def _signalled(self, received: signal.Signals) -> None:
        if self.stopped_by is None:
            self.stopped_by = received
            running = sum(len(shard.running) for shard in self._shards)
            if running:
                again = f"a second {received.name} kills them"
                warn(f"no more jobs start; waiting for {running} to end; {again}")
            self._stop()
        elif not self.killed:
            self.killed = True
            for shard in self._shards:
                shard.send(kill=True)
            self._background.start_soon(self._kill_later)
        else:
            for shard in self._shards:
                shard.kill()
            os._exit(128 + self.stopped_by)  # even if something hangs, for example the reader of the output

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._reading.cancel()
            for result in self._retrying.values():
                self._record(result)
            self._retrying.clear()
            for shard in self._shards:
                shard.send(stop=True)

    async def _kill_later(self) -> None:
        await anyio.sleep(2 * GRACE)
        for shard in self._shards:
            shard.kill()

    # --- waiting ------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _change(self) -> None:
        """Wait until something has changed."""
        await self._changed.wait()


def _result(shard: Shard, running: Running, outcome: dict[str, Any]) -> Result:
    return Result(
        job=running.task.job.shown,
        shard=shard.number,
        ticket=running.ticket,
        due=running.due,
        started=running.started,
        ended=outcome["at"],
        exit_code=outcome["exit_code"],
        stdout=outcome["stdout"],
        stderr=outcome["stderr"],
        attempt=running.task.attempt,
    )
