"""A task's client of the ledger: claims, starts and records rows, many per call, and sends heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final, Generic, TypeVar
from uuid import uuid4

import anyio

from intervalq._timing.backends import Waker, spawn, wakers
from intervalq._timing.heartbeat import Heartbeat
from intervalq._timing.outage import LoopOutage
from intervalq.errors import IntervalqError, RunCancelled, StoreUnavailable, TooManyFailures
from intervalq.ledger.rules import (
    MAX_ROWS,
    Answer,
    Beat,
    Claim,
    Command,
    Count,
    Ended,
    Forget,
    Leave,
    Record,
    Release,
    Start,
    Verdict,
)
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.spark._paced.handoff import Row
from intervalq.spark._paced.job import Job
from intervalq.spark._paced.row_ends import End, Ends

A = TypeVar("A")

_EXPIRY: Final = 5.0
"""Seconds after which the rows of a dead process are free. It must be longer than pauses of a live one:
garbage collection, a slow disk, a function that blocks its event loop."""

_LOOK_AGAIN: Final = (0.05, 1.0)
"""Seconds between two checks for rows that others call: the first, doubled up to the second."""

_MAX_AT_ONCE: Final = 1 << 22
"""The maximum number of characters of results in one command, which must not block the store for others."""


PARTING: Final = 10.0
"""Seconds that giving rows back may take; otherwise their claims expire."""

_LAST: Final = 3.0
"""Seconds after which a task fails that another one has stopped, unless Spark kills it before."""

_STOP: Final = "intervalq: a task stops this run"
"""The key of a row that a task holds while it stops the run: nobody calls it. It is held by a session of its
own, so that the run goes on once that has ended or expired, whatever becomes of the task."""

_MAX_ANSWER: Final = 16 << 20
"""The size of an answer to a claim, in characters of rows' ends, for which the number of keys is chosen: the
store makes an answer in one step, in which it does nothing else."""

_FIRST_CLAIM, _MOST_KNOWN, _MOST_NEW = 16, 64, 256
"""The number of keys in a task's first claim; the most after rows that had ended, because such ones tend to
follow, and may be larger; and the most."""


class Claims:
    """The rows that one task has claimed in one ledger."""

    def __init__(
        self,
        store: LedgerStore,
        job: Job,
        *,
        fits: Callable[[str, object], dict[str, Any]],
        fail: Callable[[RunCancelled], None],
    ) -> None:
        """`fits`: see `Caller.checked`. `fail`: called when the run is cancelled, or stopped by a task."""
        self._store = store
        self._drain = job.drain
        self._run = job.run
        self._again = job.again
        self._fail = fail
        self._stopper = ""
        """The session that stops the run; empty: this task doesn't."""
        self.most = _FIRST_CLAIM
        """How many keys to claim next."""
        self.ends = Ends(store.url, job, fits)
        self._session = uuid4().hex
        self._expiry = int(_EXPIRY * 1e6)
        self._heartbeat = Heartbeat(self._renew, _EXPIRY, always=True)
        self.start = Batch[str](self._start).ask
        """Mark a row as started; it may be called only if the verdict is `mine`."""

    @property
    def marks(self) -> bool:
        """Whether a row must be marked as started before its call; else it counts as started once claimed.

        The difference matters only if rows of unknown outcome are not called again; it costs one call per
        row.
        """
        return not self._again

    @property
    def sure(self) -> bool:
        """Whether this task's session can't have expired for others; if it may have, claim the rows again."""
        return self._heartbeat.is_sure

    async def claim(self, keys: tuple[str, ...]) -> tuple[Verdict, ...]:
        """Claim rows; the verdicts also tell about those that others have or had.

        Rows that failed with another version of the function are claimed as if they hadn't been called; not
        with at most once, because another task may be calling them with this version.
        """
        command = Claim(self._session, self._expiry, keys, started=self._again, again=self._again)
        verdicts = (await self._apply(command)).verdicts
        self._heed(verdicts)
        outdated = [
            key
            for key, verdict in zip(keys, verdicts, strict=True)
            if self._again and verdict.failed and await self.ends.is_outdated(key, verdict.value)
        ]
        if not outdated:
            return verdicts
        await self._apply(Forget(tuple(outdated), ("failed",)))
        return (await self._apply(command)).verdicts

    def _heed(self, verdicts: tuple[Verdict, ...]) -> None:
        """Choose how many keys to claim next, as if all values were as large as the largest of these."""
        largest = max((len(verdict.value) for verdict in verdicts), default=0)
        if largest:
            self.most = max(1, min(2 * self.most, _MOST_KNOWN, _MAX_ANSWER // largest))
        else:
            self.most = min(2 * self.most, _MOST_NEW)

    async def record(self, ends: list[Ended]) -> list[Verdict]:
        """Record how rows ended; the verdicts have the ends that count: earlier ones, if there are any."""
        verdicts: list[Verdict] = []
        while len(verdicts) < len(ends):
            size, some = 0, list[Ended]()
            for end in ends[len(verdicts) : len(verdicts) + MAX_ROWS]:
                size += len(end.value)
                if some and size > _MAX_AT_ONCE:
                    break
                some.append(end)
            verdicts += (await self._apply(Record(self._session, self._expiry, tuple(some)))).verdicts
        return verdicts

    async def release(self, keys: tuple[str, ...]) -> None:
        """Give back rows that were not called, or whose call failed and is to be repeated."""
        for first in range(0, len(keys), MAX_ROWS):
            await self._apply(Release(self._session, keys[first : first + MAX_ROWS]))

    async def beat(self) -> None:
        """Send heartbeats until `leave`."""
        await self._heartbeat.run()

    async def _renew(self) -> bool:
        if self._stopper:
            await self._apply(Beat(self._session, self._expiry))
            await self._apply(Beat(self._stopper, self._expiry))
        elif await self._is_stopped(self._session, self._expiry):
            self._fail(RunCancelled(self._run, by_task=True))
        return True  # if it had expired, it began anew, and asks about its rows again

    async def _is_stopped(self, session: str, expiry: int) -> bool:
        """Whether a task stops the run. The session is renewed."""
        (verdict,) = (await self._apply(Start(session, expiry, (_STOP,)))).verdicts
        return verdict.kind == "busy" and verdict.attempt > 0  # somebody holds that row

    async def part(self, uncalled: tuple[str, ...], error: BaseException | None) -> None:
        """Give rows back, and end the session. If the run is stopped, wait for the other tasks.

        A task that stops the run waits before it lets go; the others wait until it does, and a little longer:
        as soon as a task has failed for good, Spark kills the others, and answers of calls in flight would be
        lost. `error`: why this task fails; None: it doesn't.
        """
        with anyio.move_on_after(PARTING), suppress(IntervalqError):
            await self.release(uncalled)
        self._heartbeat.stop()
        if self._heartbeat.has_begun:  # rows whose calls were cut have an unknown outcome from now on
            with anyio.move_on_after(PARTING), suppress(IntervalqError):
                await self._apply(Leave(self._session))
        if isinstance(error, TooManyFailures | RunCancelled):
            by_user = isinstance(error, RunCancelled) and not error.by_task
            longest = self._drain + PARTING
            # Others outlast the task that stops the run: its own calls, its wait, and its other steps.
            await self._until_idle(longest if by_user or self._stopper else 2 * self._drain + 5 * PARTING)
        if self._stopper:
            with anyio.move_on_after(PARTING), suppress(IntervalqError):
                await self._apply(Release(self._stopper, (_STOP,)))
                await self._apply(Leave(self._stopper))
        if isinstance(error, RunCancelled) and error.by_task:
            await anyio.sleep(_LAST)  # the error to see is that of the task that stopped the run

    async def _until_idle(self, longest: float) -> None:
        """Wait, while the run is cancelled or stopped, for calls of other tasks to end.

        Sessions without rows don't count: a pipeline's driver has one from beginning to end. The row that is
        held by a task which stops the run does, for the others.
        """
        pause = _LOOK_AGAIN[0]
        with anyio.move_on_after(longest), suppress(IntervalqError):
            while True:
                if self._stopper:
                    await self._apply(Beat(self._stopper, self._expiry))
                answer = await self._apply(Count())
                if answer.summary is None:
                    return
                if answer.summary.claimed + answer.summary.started <= bool(self._stopper):
                    return
                if not self._stopper and not answer.cancelled and not await self._is_stopped(uuid4().hex, 1):
                    return
                await anyio.sleep(pause)
                pause = min(2 * pause, _LOOK_AGAIN[1])

    async def stop_others(self) -> None:
        """Stop the run: from their next heartbeat on, other tasks begin no more calls; `part` ends that.

        Nothing is done if another task does this already, or the run is cancelled.
        """
        stopper = uuid4().hex
        (verdict,) = (await self._apply(Claim(stopper, self._expiry, (_STOP,)))).verdicts
        if verdict.kind == "mine":
            self._stopper = stopper

    async def has_results(self) -> bool:
        """Whether a row of this run has a result."""
        summary = (await self._apply(Count())).summary
        return summary is not None and summary.done > 0

    async def _start(self, keys: tuple[str, ...]) -> tuple[Verdict, ...]:
        return (await self._apply(Start(self._session, self._expiry, keys))).verdicts

    async def _apply(self, command: Command) -> Answer:
        """Send a command until it is answered: every command is safe to repeat."""
        outage = LoopOutage(longest=2.0)
        while True:
            asked = time.monotonic()
            try:
                answer = await self._store.apply(self._run, command)
                break
            except StoreUnavailable:
                if outage.failed():
                    raise
            await outage.pause()
        if isinstance(command, Claim | Start | Record | Beat) and command.session == self._session:
            self._heartbeat.renewed(asked)  # the lease runs from the time of the request, at the latest
        if answer.cancelled:
            self._fail(RunCancelled(self._run))
        return answer


class Recorder:
    """Records how rows of a task ended, many with each command: those that end while one is in flight."""

    def __init__(
        self, claims: Claims, begin: Callable[..., asyncio.Task[None]], recorded: Callable[..., None]
    ) -> None:
        """Create one for a task.

        Args:
            claims: the task's.
            begin: starts a function as a task.
            recorded: called with a row, the end that counts, and `known`: whether that was recorded before.
        """
        self._claims = claims
        self._begin = begin
        self._recorded = recorded
        self._waiting: list[tuple[Row, End, str]] = []
        self._recording: asyncio.Task[None] | None = None

    def add(self, row: Row, end: End, text: str) -> None:
        """Record the end of a row, soon."""
        self._waiting.append((row, end, text))
        if self._recording is None or self._recording.done():
            self._recording = self._begin(self._record)

    async def until_done(self) -> None:
        """Wait until everything is recorded, or that has failed."""
        if self._recording is not None:
            await asyncio.wait([self._recording])

    async def _record(self) -> None:
        while some := self._waiting[:MAX_ROWS]:
            ends = [Ended(row.key, text, end.error is not None) for row, end, text in some]
            verdicts = await self._claims.record(ends)
            del self._waiting[: len(some)]  # not before: after an error, the next end brings them again
            for (row, end, text), verdict in zip(some, verdicts, strict=True):
                if verdict.value == text:
                    self._recorded(row, end, known=False)
                else:
                    self._recorded(row, await self._claims.ends.read(row.key, verdict.value), known=True)


class Batch(Generic[A]):
    """Batches requests: those that come while one is in flight are sent together in the next call."""

    def __init__(self, send: Callable[[tuple[A, ...]], Awaitable[tuple[Verdict, ...]]]) -> None:
        self._send = send
        self._waiting: list[_Question[A]] = []
        self._busy = False

    async def ask(self, item: A) -> Verdict:
        """The verdict on one item."""
        question = _Question(item)
        self._waiting.append(question)
        if not self._busy:
            self._busy = True
            spawn(self._work)
        await question.waker
        if question.error is not None:
            raise question.error
        assert question.verdict is not None
        return question.verdict

    async def _work(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting[:MAX_ROWS], self._waiting[MAX_ROWS:]
            try:
                verdicts = await self._send(tuple(question.item for question in some))
                for question, verdict in zip(some, verdicts, strict=True):
                    question.verdict = verdict
            except BaseException as error:  # noqa: BLE001 - it is raised in the waiting callers
                for question in some:
                    question.error = error
            for question in some:
                if not question.waker.done():
                    question.waker.set_result(None)
        self._busy = False


class _Question(Generic[A]):
    __slots__ = ("error", "item", "verdict", "waker")

    def __init__(self, item: A) -> None:
        self.item = item
        self.waker: Waker = wakers()()
        self.verdict: Verdict | None = None
        self.error: BaseException | None = None


@cache
def ledger_store(url: str | None) -> LedgerStore:
    """The store at a URL: one for each process, whose connection is kept from task to task."""
    return open_ledger_store(url)
