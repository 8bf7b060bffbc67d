"""The workers of one function: they claim tasks, wait for a slot of a queue, run the function, and settle."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from intervalq.tasks._session.session import WorkSession
from intervalq.tasks._worker.chunks import Chunks
from intervalq.tasks._worker.intake import STALE, Intake
from intervalq.tasks._worker.job import Job
from intervalq.tasks._worker.one_by_one import OneByOne
from intervalq.tasks._worker.outcomes import Outcomes


class WorkerPool:
    """Several runners of one function, and the intake that feeds them."""

    def __init__(self, job: Job, session: WorkSession, concurrency: int) -> None:
        self._outcomes = Outcomes(job, session.batcher, self._end_with)
        self.counts = self._outcomes.counts
        self.intake = Intake(job, session, concurrency, self.counts)
        self.intake.end = self._end_with
        self.error: BaseException | None = None
        """The error that ended it."""
        self.on_error: Callable[[], None] | None = None
        self._session = session
        self._concurrency = concurrency
        runners = OneByOne if job.batch is None else Chunks
        self._runners: OneByOne | Chunks = runners(session, self.intake, self._outcomes)

    @property
    def running(self) -> int:
        """How many functions run."""
        return self.intake.running

    async def run(self) -> None:
        """Work until `stop`, and until all begun tasks have ended; or until `error`."""
        self._session.add(self.intake)
        self._session.run_alone.on_open.append(self.intake.wake_all)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._keep_fresh)
                async with anyio.create_task_group() as runners:
                    for _ in range(self._concurrency):
                        runners.start_soon(self._runners.run)
                group.cancel_scope.cancel()
        finally:
            self._session.batcher.drop(self.intake)
            self._session.run_alone.on_open.remove(self.intake.wake_all)
            self.stop()

    def stop(self) -> None:
        """Begin no more tasks; give back those that were claimed ahead."""
        self.intake.stop()
        self._runners.stop()

    def _end_with(self, error: BaseException | None) -> None:
        self.error = self.error or error
        self.stop()
        if error is not None and self.on_error is not None:
            self.on_error()

    async def _keep_fresh(self) -> None:
        """Give back tasks that were claimed ahead if the function turns out to be slow."""
        while True:
            await anyio.sleep(STALE / 4)
            self._session.run_alone.tire()
            if self.intake.refresh():
                self._runners.time_next()
