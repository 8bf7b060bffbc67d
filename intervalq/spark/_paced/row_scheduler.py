"""The event loop's part of a task: claims rows, waits for slots, calls the function, records results."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio

from intervalq import IntervalQueue
from intervalq._queue.attempts import settle_by
from intervalq._queue.slot import Slot
from intervalq._timing.backoff import backoff
from intervalq._timing.retry_after import requested_wait
from intervalq.errors import (
    BadResult,
    QueueClosed,
    RowFailed,
    TooManyFailures,
    UnknownOutcome,
)
from intervalq.ledger.rules import Ended, Verdict
from intervalq.spark._paced.call import Caller
from intervalq.spark._paced.context import CallContext, client
from intervalq.spark._paced.handoff import Done, Exchange, Row, Stamp
from intervalq.spark._paced.job import Job
from intervalq.spark._paced.ledger_client import PARTING, Claims, Recorder, ledger_store
from intervalq.spark._paced.row_ends import End, Kept
from intervalq.spark._paced.trial import Trial

_ASK_AGAIN: Final = (0.1, 1.0)
"""Seconds between two requests for rows that another task holds: the first, doubled up to the second."""

_MAX_ERROR: Final = 1_000

_MINE: Final = Verdict("mine", 1)  # that on most rows


class Flow:
    """One task's rows. It belongs to the event loop; other threads use it only by `call_soon_threadsafe`."""

    def __init__(self, job: Job, queue: IntervalQueue | None, exchange: Exchange) -> None:
        self.loop = asyncio.get_running_loop()
        self._job = job
        self._queue = queue
        self._exchange = exchange
        self._caller = Caller(job)
        self._claims: Claims | None = None
        if job.has_ledger:
            self._claims = Claims(
                ledger_store(job.ledger_url),
                job,
                fits=self._caller.checked,
                fail=self.fail,
            )
            self._recorder = Recorder(self._claims, self._begin, self._recorded)
        self._trial = Trial(job)
        self._alone = anyio.Lock()
        self._here = (socket.gethostname(), os.getpid())
        self._ready: deque[Row] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._busy: list[Row] = []
        self._followers: dict[str, list[Row]] = {}
        """The keys in progress in this task, and further rows with the same key."""
        self._attempts: dict[str, int] = {}
        """How many times rows were claimed, if more than once."""
        self._cut: set[str] = set()
        """Rows whose call began and has no known end."""
        self._out: list[Done] = []
        self._left = 0
        self._fed = False
        self._error: BaseException | None = None
        self._stop = anyio.Event()
        self._calls = anyio.CancelScope()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- from other threads -------------------------------------------------------------------------

    def feed(self, rows: list[Row]) -> None:
        """Take rows from the reader."""
        self._left += len(rows)
        if self._error is not None:
            return
        if self._claims is None:
            self._put(rows)
        else:
            self._begin(self._claim, rows)

    def no_more(self) -> None:
        """Note that the input has ended."""
        self._fed = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Begin no more calls, let those in flight end, then fail the task. The first error counts."""
        if self._error is not None or (self._fed and not self._left):
            return
        self._error = error
        self._stop.set()
        self._calls.deadline = self.loop.time() + self._job.drain
        self._wake()
        if self._claims is not None and isinstance(error, TooManyFailures):
            self._begin(self._claims.stop_others)
        if self._queue is not None:  # waiting jobs get an error, and tickets are given back
            self._begin(partial(self._queue.close, drain=False))

    # --- the whole task -----------------------------------------------------------------------------

    async def run(self, began: Callable[[Flow], None]) -> None:
        """Work until all rows have ended or the task has failed. Errors go to the writer; none is raised."""
        try:
            self._client = await client(self._job.setup, self._job.setup_identity)
            began(self)
            if self._claims is not None:
                self._beating = self._begin(self._claims.beat)
                self._begin(self._ask_again)
            with self._calls:
                async with anyio.create_task_group() as workers:
                    for _ in range(self._job.concurrency):
                        workers.start_soon(self._guarded, self._work)
            if self._claims is not None:
                await self._part(self._claims)
            self._hand_on()
            if self._queue is not None and self._job.settle is not None and self._error is None:
                with anyio.move_on_after(PARTING):  # the Python worker may end with this task
                    await self._queue._shard().conversation.ended()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        except BaseException as error:  # noqa: BLE001 - the writer's thread raises it
            self._error = self._error or error
        self._exchange.end(self._error)

    def _begin(self, function: Callable[..., Awaitable[object]], *args: Any) -> asyncio.Task[None]:
        """Start a task besides the calls; not in an anyio task group, which callbacks can't use."""
        task = self.loop.create_task(self._guarded(function, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Let an error end the task cleanly."""
        try:
            await function(*args)
        except Exception as error:  # noqa: BLE001 - it is raised in the writer's thread
            self.fail(error)

    async def _part(self, claims: Claims) -> None:
        """Give back uncalled rows, and end the session; after a failure, once all answers have come.

        Otherwise a claim or an end that is still in flight would arrive after the release, and undo it.
        """
        coming = self._tasks - {self._beating}
        if self._error is not None and coming:
            await asyncio.wait(coming, timeout=PARTING)
        await claims.part(tuple(self._followers.keys() - self._cut), self._error)

    # --- rows ---------------------------------------------------------------------------------------

    def _put(self, rows: list[Row]) -> None:
        self._ready.extend(rows)
        for _ in range(min(len(rows), len(self._idle))):
            waker = self._idle.popleft()
            if not waker.done():
                waker.set_result(None)

    def _wake(self) -> None:
        if self._error is not None or (self._fed and not self._left):
            for waker in self._idle:
                if not waker.done():
                    waker.set_result(None)
            self._idle.clear()

    async def _claim(self, rows: list[Row]) -> None:
        """Claim rows in the ledger, except those that this task already has."""
        new: list[Row] = []
        for row in rows:
            if row.key in self._followers:
                self._followers[row.key].append(row)
            else:
                self._followers[row.key] = []
                new.append(row)
        await self._ask(new)

    async def _ask(self, rows: list[Row]) -> None:
        assert self._claims is not None
        while rows:
            most = self._claims.most
            some, rows = rows[:most], rows[most:]
            verdicts = await self._claims.claim(tuple(row.key for row in some))
            mine = [
                row
                for row, verdict in zip(some, verdicts, strict=True)
                if verdict == _MINE or not await self._settled(row, verdict)
            ]
            if self._error is None:
                self._put(mine)

    async def _settled(self, row: Row, verdict: Verdict) -> bool:
        """Act on a verdict; False: the row is to be called."""
        assert self._claims is not None
        if verdict.kind == "mine":
            if verdict.attempt > 1:
                self._attempts[row.key] = verdict.attempt
            return False
        if verdict.kind == "busy":
            self._busy.append(row)
        elif verdict.kind == "known":
            self._known(row, await self._claims.ends.read(row.key, verdict.value))
        elif self._job.raises:
            self.fail(UnknownOutcome(self._job.run, row.key))
        else:
            self._finish(row, None, Stamp(), str(UnknownOutcome(self._job.run, row.key)), replayed=True)
        return True

    def _known(self, row: Row, end: End) -> None:
        """Take the end of a row that has ended before, or in another task."""
        if end.error is not None and self._job.raises:
            self.fail(RowFailed(self._job.run, row.key, end.error))
        else:
            self._finish(row, *end, replayed=True)

    async def _ask_again(self) -> None:
        """Ask again for rows that others hold, until they have ended there or are free."""
        pause, most = _ASK_AGAIN
        while True:
            with anyio.move_on_after(pause):
                await self._stop.wait()
                return
            rows, self._busy = self._busy, []
            before = len(rows)
            await self._ask(rows)
            pause = _ASK_AGAIN[0] if len(self._busy) < before or not before else min(most, 2 * pause)

    def _finish(
        self, row: Row, value: dict[str, Any] | None, stamp: Stamp, error: str | None, *, replayed: bool
    ) -> None:
        if error is None:
            self._trial.fitted()  # also answers that were kept
        elif (stop := self._trial.failed(row.key, error)) is not None:
            self.fail(stop)
        if not self._out:
            self.loop.call_soon(self._hand_on)
        self._out.append(Done(row.batch, row.place, row.key, value, stamp, replayed, error))
        if self._claims is not None:
            for again in self._followers.pop(row.key, ()):
                self._out.append(Done(again.batch, again.place, row.key, value, stamp, True, error))

    def _hand_on(self) -> None:
        """Give the writer the rows that have ended since the last time."""
        if self._out:
            done, self._out = self._out, []
            self._left -= len(done)
            self._exchange.finish(done)
            self._wake()

    # --- calls --------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Call rows one after the other; `concurrency` of these run at the same time."""
        while self._error is None:
            if self._ready:
                await self._in_turn(self._ready.popleft())
            elif self._fed and not self._left:
                return
            else:
                waker = self.loop.create_future()
                self._idle.append(waker)
                await waker

    async def _in_turn(self, row: Row) -> None:
        """Call a row: beside others, or alone until the first answer has been seen to fit."""
        if not self._trial.is_open or self._trial.doubt is not None:
            async with self._alone:
                await self._heed_doubt()
                if not self._trial.is_open:
                    await self._row(row)
                    await self._heed_doubt()
                    return
        await self._row(row)

    async def _heed_doubt(self) -> None:
        """Stop the task if its answers don't fit, and no other answer of this run does."""
        if (stop := self._trial.doubt) is not None:
            if self._claims is not None and await self._claims.has_results():
                self._trial.fitted()
            else:
                self.fail(stop)

    async def _row(self, row: Row) -> None:
        job = self._job
        context = self._caller.context(job.run, row.key, self._queue, self._client)
        try:
            cost = self._caller.cost(row.data, self._queue)
        except Exception as wrong:  # noqa: BLE001 - the row's outcome
            await self._failed(row, wrong, Stamp(), {})
            return
        while self._error is None:
            context.attempt += 1
            try:
                slot: Slot | None = None
                if self._queue is None:
                    failure = await self._try(row, context)
                else:
                    async with self._queue.slot(cost=cost) as slot:
                        context.ticket, context.due = slot.ticket, slot.due
                        failure = await self._try(row, context, slot)
            except QueueClosed:
                if not self._stop.is_set():
                    raise
                return  # the task is failing, and this row is given back
            if failure is None:
                return
            error, stamp, kept = failure
            asked = requested_wait(error, bare=self._queue is not None and self._queue._usual.adapts)
            if asked is not None and slot is not None and self._queue is not None and not self._stop.is_set():
                await self._queue._refused(slot._grant, asked)
            is_final = isinstance(error, BadResult)  # another call would fail in the same way
            if is_final or context.attempt > job.retries:
                await self._failed(row, error, stamp, kept)
                return
            if not asked:  # a cool-down is pause enough
                with anyio.move_on_after(backoff(context.attempt, job.backoff)):
                    await self._stop.wait()

    async def _try(
        self, row: Row, context: CallContext, slot: Slot | None = None
    ) -> tuple[Exception, Stamp, Kept] | None:
        """Call a row's function in its slot; returns its error, if any, the log entry, and the answer."""
        claims = self._claims
        if claims is not None:
            if not claims.sure:
                (verdict,) = await claims.claim((row.key,))
                if await self._settled(row, verdict):
                    return None
            if claims.marks and context.attempt == 1:
                verdict = await claims.start(row.key)
                if await self._settled(row, verdict):
                    return None
            self._cut.add(row.key)
        started = time.time()
        kept: Kept = {}
        text = ""
        try:
            result = await self._caller.call(row.data, context)
            if slot is not None and self._queue is not None:
                settle_by(self._job.settle, result, slot._settle, self._queue.name)
            stamp = self._stamp(context, started)
            if claims is not None:
                found = claims.ends.kept(row.key, result)
                text = await claims.ends.written(row.key, stamp, found)
                kept = found  # it can be kept
            end = End(self._caller.checked(row.key, result), stamp, None)
            self._trial.fitted()  # others needn't wait until it is recorded
            if claims is None:
                self._finish(row, *end, replayed=False)
            else:
                self._recorder.add(row, end, text)
        except Exception as error:  # noqa: BLE001 - the row's outcome
            self._cut.discard(row.key)
            return error, self._stamp(context, started), kept
        return None

    def _stamp(self, context: CallContext, started: float) -> Stamp:
        attempt = self._attempts.get(context.row_key, 1)
        return Stamp(context.ticket, context.due, started, time.time(), *self._here, attempt, context.attempt)

    async def _failed(self, row: Row, error: Exception, stamp: Stamp, kept: Kept) -> None:
        """Handle a row whose last call failed, or gave an answer that doesn't fit."""
        end = End(None, stamp, f"{type(error).__name__}: {error}"[:_MAX_ERROR])
        if self._job.raises:
            error.add_note(f"(row {row.key!r}, call {stamp.calls} of this task)")
            self.fail(error)
        if self._claims is None:
            if not self._job.raises:
                self._finish(row, *end, replayed=False)
            return
        # If a task fails, another one calls the row, except with at most once, and if there is an answer.
        if not self._job.raises or self._claims.marks or kept:
            text = await self._claims.ends.failed(row.key, stamp, kept, end.error or "")
            if self._job.raises:
                # In a task of its own: the end of `drain` cuts calls, not their records.
                await asyncio.wait([self._begin(self._claims.record, [Ended(row.key, text, failed=True)])])
            else:
                self._recorder.add(row, end, text)
                await self._recorder.until_done()  # this failure decides whether another row is called

    def _recorded(self, row: Row, end: End, *, known: bool) -> None:
        """Hand a row over once its end is recorded: none leaves this task that another would call again."""
        self._cut.discard(row.key)
        if known:
            self._known(row, end)
        else:
            self._finish(row, *end, replayed=False)
