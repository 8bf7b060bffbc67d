"""The driver's side of the ledger: allows one run at a time, cancels it, and forgets published rows."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

import pyarrow as pa
from anyio import to_thread

from intervalq._timing.background_loop import BACKGROUND
from intervalq._timing.heartbeat import Heartbeat
from intervalq.errors import InvalidOption, StoreUnavailable
from intervalq.ledger import Ledger, LedgerRow
from intervalq.ledger._large import LargeAnswers, beside
from intervalq.ledger.rules import Answer, Beat, Cancel, Command, Count, Drop, Leave
from intervalq.ledger.store import LedgerStore, open_ledger_store
from intervalq.pipeline._layout import Layout, answers_of
from intervalq.pipeline._spec import Spec
from intervalq.pipeline._watch import Watch
from intervalq.spark._answers.fit import Unfit, fitter
from intervalq.spark._answers.kept import IN_FILE, file_of, read_answer
from intervalq.spark._compat import arrow_schema, struct_of

R = TypeVar("R")

_EXPIRY: Final = 5_000_000
"""In microseconds, as for tasks, so that a dead driver blocks others no longer than a dead task does."""

_PATIENCE: Final = 20.0
"""Seconds to wait for sessions of a killed run to expire: its workers notice late that the driver is gone."""


class Guard:
    """Keeps other runs out of a pipeline while the context is open, by a session in its ledger."""

    def __init__(self, spec: Spec, layout: Layout, watch: Watch) -> None:
        self._name = spec.name
        self._url = spec.store
        beside_it = beside(spec.store) if answers_of(spec.output) is None else None  # as executors do
        folder, files = layout.answers() if beside_it is None else (beside_it, None)
        self._large = LargeAnswers(folder, spec.name, files)
        self._watch = watch
        self._session = uuid4().hex
        self._beating: Future[Any] | None = None

    def __enter__(self) -> Self:
        """Wait for the sessions of a killed run to expire, then enter.

        Raises:
            InvalidOption: another run of this pipeline is active.
            StoreError: the store can't be used.
        """
        self._store = self._call(self._opened)
        try:
            self._wait()
            self._apply(Beat(self._session, _EXPIRY))
            self._only()
            self._apply(Cancel(on=False))
        except BaseException:
            self._call(self._store.aclose)
            raise
        self._beating = BACKGROUND.start(self._heartbeat.run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._beating is not None
        self._call(self._no_more_beats)
        try:
            self._beating.result()  # a heartbeat after the end would create the ledger again
            with suppress(StoreUnavailable):  # otherwise the session expires by itself
                summary = self._apply(Count()).summary
                # Rows that were called and not published stay for the next run.
                empty = summary is None or not (summary.done + summary.failed + sum(summary[5:8]))
                if empty:
                    self._drop()
                else:
                    self._apply(Leave(self._session))
        finally:
            self._call(self._store.aclose)

    def cancel(self) -> None:
        """Cancel the run, so that no further call begins."""
        self._apply(Cancel())

    def results(self) -> int:
        """How many results the ledger has."""
        summary = self._apply(Count()).summary
        return 0 if summary is None else summary.done

    def forget(self, *, has_unfit: bool) -> None:
        """Remove the rows of the ledger, because their results are published.

        Answers that didn't fit stay, because another schema may take them without a call. `has_unfit`:
        whether there may be some; otherwise rows needn't be read.
        """
        summary = self._apply(Count()).summary
        if has_unfit and summary is not None and summary.failed:
            self._call(self._removed, lambda row: row.state != "failed" or "answer" not in row.value)
        else:
            self._drop()
            self._apply(Beat(self._session, _EXPIRY))

    def forget_errors(self) -> None:
        """Remove rows that failed without an answer, so that the next run calls them."""
        self._call(self._removed, lambda row: row.state == "failed" and "answer" not in row.value)

    def forget_unfit(self, schema: str) -> None:
        """Remove rows whose answer doesn't fit this schema, as DDL, so that this run calls them."""
        fit = fitter(pa.struct(list(arrow_schema(struct_of(schema)))))

        def is_unfit(row: LedgerRow) -> bool:
            if row.state != "failed" or "answer" not in row.value:
                return False
            answer = row.value["answer"]
            try:
                if (name := file_of(answer)) is not None:
                    answer = json.loads(self._large.read(name))
                fit(read_answer(answer))
            except (Unfit, FileNotFoundError):
                return True
            return False

        self._call(self._removed, is_unfit)

    async def _removed(self, is_gone: Callable[[LedgerRow], bool]) -> None:
        """Remove such rows; the function is called in a thread if it may read a file."""
        keys = []
        files = await to_thread.run_sync(self._large.names)
        async with Ledger(self._name, self._url) as ledger:
            async for row in ledger.rows():
                has_file = row.state == "failed" and IN_FILE in row.json
                if await to_thread.run_sync(is_gone, row) if has_file else is_gone(row):
                    keys.append(row.key)
            await ledger.forget(keys)
        await to_thread.run_sync(self._large.remove, files, tuple(keys))

    def _drop(self) -> None:
        files = self._large.names()  # before the rows are gone: after that, another run may write some
        self._apply(Drop())
        self._large.drop(files)

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        noted = False
        while alive := self._sessions():
            if not noted:
                noted = True
                self._watch.note(
                    f"{alive} processes of a run of {self._name} were alive a moment ago: waiting up to "
                    f"{_PATIENCE:g} s for them to expire"
                )
            if time.monotonic() > deadline:
                raise self._taken()
            time.sleep(0.25)

    def _only(self) -> None:
        if self._sessions() > 1:  # two runs started at the same moment: both give up
            self._apply(Leave(self._session))
            raise self._taken()

    def _taken(self) -> InvalidOption:
        return InvalidOption(
            f"another run of pipeline {self._name} is active: wait for its end, or stop it with `intervalq "
            f"ledger cancel {self._name}`"
        )

    def _sessions(self) -> int:
        summary = self._apply(Count()).summary
        return 0 if summary is None else summary.sessions

    def _apply(self, command: Command) -> Answer:
        return self._call(self._store.apply, self._name, command)

    async def _opened(self) -> LedgerStore:
        self._heartbeat = Heartbeat(self._beat, _EXPIRY / 1e6)
        return open_ledger_store(self._url)

    async def _beat(self) -> bool:
        with suppress(StoreUnavailable):
            await self._store.apply(self._name, Beat(self._session, _EXPIRY))
        return True

    async def _no_more_beats(self) -> None:
        self._heartbeat.stop()

    @staticmethod
    def _call(function: Callable[..., Awaitable[R]], *args: Any) -> R:
        return BACKGROUND.call(function, *args)
