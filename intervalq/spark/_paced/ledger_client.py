"""A task's client of the ledger: claims, starts and records rows, many per call, and sends heartbeats."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

import anyio
import pyarrow as pa
from anyio import to_thread

from intervalq._spec.codec import encoded, read
from intervalq._timing.backends import Waker, spawn, wakers
from intervalq._timing.heartbeat import Heartbeat
from intervalq._timing.outage import LoopOutage
from intervalq.errors import BadResult, RunChanged, StoreUnavailable, UnreadableValue, short
from intervalq.ledger._large import LargeAnswers, beside
from intervalq.ledger.rules import (
    MAX_ROWS,
    MAX_VALUE,
    Answer,
    Beat,
    Cancel,
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
from intervalq.spark._answers.earlier import reader
from intervalq.spark._answers.kept import IN_FILE, read_answer, written_answer
from intervalq.spark._paced.handoff import Stamp
from intervalq.spark._paced.job import Job
from intervalq.spark._paced.trial import UNFIT

A = TypeVar("A")

_EXPIRY: Final = 5.0
"""Seconds after which the rows of a dead process are free. It must be longer than pauses of a live one:
garbage collection, a slow disk, a function that blocks its event loop."""

_LOOK_AGAIN: Final = (0.05, 1.0)
"""Seconds between two checks for rows that others call: the first, doubled up to the second."""

_MAX_AT_ONCE: Final = 1 << 22
"""The most characters of results in one command: large ones must not block the store for others."""


_STOP: Final = "intervalq: a task stops this run"
"""The key of a row that a task holds while it stops the run: nobody calls it."""

Kept: TypeAlias = dict[str, Any]
"""An answer as it is kept, and its schema; empty if a call failed."""


_WRITER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class End(NamedTuple):
    """The end of a row: the columns of its result, or an error."""

    value: dict[str, Any] | None
    stamp: Stamp
    error: str | None


class Claims:
    """The rows that one task has claimed in one ledger."""

    def __init__(
        self,
        store: LedgerStore,
        job: Job,
        *,
        fits: Callable[[str, object], dict[str, Any]],
        cancelled: Callable[[], None],
    ) -> None:
        """`fits`: see `Caller.checked`. `cancelled`: called when the run is cancelled."""
        self._store = store
        self._job = job
        self._run = job.run
        self._again = job.again
        self._fits = fits
        self._cancelled = cancelled
        self._stops = False
        self._version = {} if job.version is None else {"version": job.version}
        self._earlier = reader(pa.struct(list(job.columns)))
        folder = job.large_answers or beside(store.url)
        self._large = None if folder is None else LargeAnswers(folder, job.run)
        self._session = uuid4().hex
        self._expiry = int(_EXPIRY * 1e6)
        self._heartbeat = Heartbeat(self._renew, _EXPIRY)
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
        outdated = [
            key
            for key, verdict in zip(keys, verdicts, strict=True)
            if self._again and verdict.failed and await self._is_outdated(key, verdict.value)
        ]
        if not outdated:
            return verdicts
        await self._apply(Forget(tuple(outdated), ("failed",)))
        return (await self._apply(command)).verdicts

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
        await self._apply(Beat(self._session, self._expiry))
        return True  # if it had expired, it began anew, and asks about its rows again

    async def leave(self) -> None:
        """End the session."""
        self._heartbeat.stop()
        if self._heartbeat.has_begun:
            await self._apply(Leave(self._session))

    async def until_idle(self) -> bool:
        """Wait until no other session has a row of this run; returns False once it is no longer cancelled.

        Sessions without rows don't count: a pipeline's driver has one from beginning to end.
        """
        pause = _LOOK_AGAIN[0]
        while True:
            answer = await self._apply(Count())
            if not answer.cancelled or answer.summary is None:
                return False
            if answer.summary.claimed + answer.summary.started <= self._stops:
                return True
            await anyio.sleep(pause)
            pause = min(2 * pause, _LOOK_AGAIN[1])

    async def stop_others(self) -> None:
        """Cancel the run for a moment, so that other tasks begin no more calls; `let_go` ends that.

        This task holds a row until then, by which the others know that the run isn't cancelled for good.
        Nothing is done if another task does this already, or the run is cancelled.
        """
        (verdict,) = (await self._apply(Claim(self._session, self._expiry, (_STOP,)))).verdicts
        if verdict.kind == "mine":
            self._stops = True
            await self._apply(Cancel())

    async def let_go(self) -> None:
        """Undo `stop_others`."""
        if self._stops:
            await self._apply(Cancel(on=False))
            await self._apply(Release(self._session, (_STOP,)))
            self._stops = False

    async def has_results(self) -> bool:
        """Whether a row of this run has a result."""
        summary = (await self._apply(Count())).summary
        return summary is not None and summary.done > 0

    def kept(self, key: str, answer: object) -> Kept:
        """An answer in the form in which it is kept.

        Raises:
            BadResult: it has a value of a type that can't be kept.
        """
        try:
            return {"answer": written_answer(answer), "schema": self._job.schema}
        except (TypeError, RecursionError) as error:
            raise BadResult(key, f"{error}: return values of JSON, dates, decimals or bytes") from None

    async def failed(self, key: str, stamp: Stamp, kept: Kept, error: str) -> str:
        """The text of a row that failed; without its answer, if that can't be kept together with the error."""
        try:
            return await self.written(key, stamp, kept, error)
        except BadResult:
            return await self.written(key, stamp, {}, error)

    async def written(self, key: str, stamp: Stamp, kept: Kept, error: str | None = None) -> str:
        """The text of a row's end: its answer, or its error, or both if the answer doesn't fit.

        A large answer is written into a file, and `kept` has the name of that file from then on.

        Raises:
            BadResult: the answer is too large to be kept.
        """
        data = {**kept, **self._version, "log": stamp}
        if error is not None:
            data["error"] = error
        text = self._text(data)
        if _is_large(text) and kept:
            data["answer"] = kept["answer"] = {IN_FILE: await self._in_file(key, kept["answer"])}
            text = self._text(data)
        return text

    def _text(self, data: object) -> str:
        try:
            plain = _WRITER.encode(data)
            if not plain.isascii():
                plain.encode()
        except UnicodeEncodeError:  # half of a pair of surrogates, as of a text that was cut off
            plain = json.dumps(data, separators=(",", ":"))
        return encoded(self._job.codec, plain)

    async def _in_file(self, key: str, answer: object) -> str:
        """Write a large answer into a file; returns its name."""
        too_long = f"its JSON is longer than the {MAX_VALUE} bytes that a row of a ledger keeps"
        if self._large is None:
            raise BadResult(
                key,
                f"{too_long}: give large_answers= a folder that all executors share, return a reference to "
                "it instead, or use ledger=None",
            )
        try:
            return await to_thread.run_sync(self._large.write, key, self._text(answer))
        except OSError as error:
            raise BadResult(
                key, f"{too_long}, and it can't be written into {self._large.place}: {error}"
            ) from error

    async def read(self, key: str, text: str) -> End:
        """The end that a text describes.

        An answer that didn't fit is fitted to the present schema.

        Raises:
            UnreadableValue: it was written with another codec, or damaged, or its file is gone.
            RunChanged: it was kept for another schema or version, and is not to be replayed.
        """
        data = await self._whole(key, self._data(key, text))
        stamp, error = Stamp(*data["log"]), data.get("error")
        if "answer" not in data:
            return End(self._of_earlier_version(key, data.get("value")), stamp, error)
        if error is None and not self._job.replay:
            if data.get("version") != self._job.version:
                there = short(data["version"]) if "version" in data else "an unnamed one"
                raise RunChanged(self._run, key, f"from another version of the function, {there}")
            if data["schema"] != self._job.schema:
                raise RunChanged(self._run, key, f"for another schema, of {', '.join(self._names(data))}")
        return self._fitted(key, stamp, data["answer"])

    def _fitted(self, key: str, stamp: Stamp, answer: object) -> End:
        try:
            return End(self._fits(key, read_answer(answer)), stamp, None)
        except BadResult as unfit:
            return End(None, stamp, f"{UNFIT}{unfit}")

    def _data(self, key: str, text: str) -> dict[str, Any]:
        found: dict[str, Any] = read(self._job.codec, text, "row %s of ledger %r", short(key), self._run)
        return found

    async def _whole(self, key: str, data: dict[str, Any]) -> dict[str, Any]:
        """The same with the answer, if that is in a file."""
        answer = data.get("answer")
        if not isinstance(answer, dict) or IN_FILE not in answer:
            return data
        what = f"row {short(key)} of ledger {self._run!r}"
        if self._large is None:
            raise UnreadableValue(what, "its answer is in a file: give large_answers= the folder")
        try:
            text = await to_thread.run_sync(self._large.read, answer[IN_FILE])
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableValue(what, f"its answer's file can't be read: {error}") from error
        return {**data, "answer": await to_thread.run_sync(read, self._job.codec, text, what)}

    async def _is_outdated(self, key: str, text: str) -> bool:
        data = self._data(key, text)
        if data.get("version") == self._job.version:
            return False
        if self._job.replay and "answer" in data:
            whole = await self._whole(key, data)
            return self._fitted(key, Stamp(), whole["answer"]).error is not None
        return True

    def _of_earlier_version(self, key: str, value: object) -> dict[str, Any] | None:
        """The columns of a result that was kept before answers were."""
        if value is None:
            return None
        try:
            return self._fits(key, self._earlier(value))
        except (BadResult, KeyError, TypeError, ValueError):
            raise RunChanged(self._run, key, "for another schema") from None

    @staticmethod
    def _names(data: dict[str, Any]) -> list[str]:
        answer = data["answer"]
        return sorted(map(str, answer)) if isinstance(answer, dict) else ["no columns"]

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
        if not isinstance(command, Leave | Release):
            self._heartbeat.renewed(asked)  # the lease runs from the time of the request, at the latest
        if answer.cancelled:
            self._cancelled()
        return answer


def _is_large(text: str) -> bool:
    return len(text) > MAX_VALUE // 4 and len(text.encode()) > MAX_VALUE


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
