"""A run as a whole: the request, the run itself, the report and the exit code."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from intervalq import IntervalqError, IntervalQueue, QueueState
from intervalq._show import as_json, can_redraw, warn
from intervalq._watch.words import condition
from intervalq.cli._options import shared_store
from intervalq.cli._run import report as _report
from intervalq.cli._run.input import Input
from intervalq.cli._run.jobs import Job, Lines
from intervalq.cli._run.parent import Runner
from intervalq.cli._run.progress import Bar, show_lines
from intervalq.cli._run.results import Done, Result, open_output, read_results, write_all
from intervalq.cli._run.tally import Tally
from intervalq.rules import Advance, Finish

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

_COVER: Final = 0.5
"""Seconds of starts for which jobs wait in the shards: more than the round trips of a slow store."""

_MIN_WAITING, _MAX_WAITING = 2, 16
"""The minimum and maximum number of jobs that wait in one shard by default: few, so that all finish
together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The user's request; see the options of `run`."""

    name: str
    interval: str | None
    rate: str | None
    limits: tuple[str, ...]
    costs: tuple[str, ...]
    store: str | None
    shards: int
    lookahead: int | None
    """0: all; None: a number that suits the pace."""
    tolerance: str | None
    burst: int | None
    max_running: int | None
    retries: int
    jobs: str | None
    command: tuple[str, ...]
    output: Path | None
    resume: Path | None
    plain: bool
    progress: bool | None
    """None: where it disturbs nothing."""
    as_json: bool

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `IntervalQueue`, as JSON values."""
        return {
            "name": self.name,
            "interval": self.interval,
            "rate": self.rate,
            "limits": list(self.limits) or None,
            "store": self.store,
            "burst": self.burst or 1,
            "max_running": self.max_running,
            "lookahead": _MAX_WAITING if self.lookahead is None else self.lookahead or None,
            "tolerance": self.tolerance,
        }

    @property
    def results(self) -> Path | None:
        """The file to which results are appended; None: they are printed, or, if `plain`, not kept."""
        return self.output or self.resume


def run_session(request: Request) -> int:
    """Run the request, and return the exit code.

    Raises:
        IntervalqError: nothing was started.
    """
    queue = IntervalQueue(**request.options)  # checks them
    shared_store(request.store)
    done, whole = Done(), None
    if request.resume is not None:
        done, whole = read_results(request.resume)
        if whole < (size := request.resume.stat().st_size):
            warn(f"{request.resume}: its last line was cut off while it was written ({size - whole} bytes)")
    source = Input(request.jobs)
    try:
        lines = Lines(source.name, request.command, request.costs, lambda cost: queue._plan(cost=cost))
        tally = Tally()
        if source.regular:
            tally.total = _checked(source, lines, done)
        elif request.jobs is None and sys.stdin.isatty():
            warn("reading jobs from the terminal, one per line; end with Ctrl-D")
        session = _Session(request, source, lines, done, tally)
        if request.results is not None:
            same = request.resume is not None and request.results.resolve() == request.resume.resolve()
            session.output = open_output(request.results, whole if same else None)
        return anyio.run(session.run)
    finally:
        source.close()


def _checked(source: Input, lines: Lines, done: Done) -> int:
    """Count the jobs of a regular file that are to be run; this finds lines that are not jobs."""
    choose = done.chooser()
    jobs = (lines.job(line, number) for number, line in source.scan())
    return sum(job is not None and choose(job) is not None for job in jobs)


class _Session:
    def __init__(self, request: Request, source: Input, lines: Lines, done: Done, tally: Tally) -> None:
        self._request = request
        self._source, self._lines, self._done = source, lines, done
        self._tally = tally
        self._bar: Bar | None = None
        self.output = 1

    async def run(self) -> int:
        request = self._request
        before = await self._attached()
        if before.is_held:
            warn(f"queue {before.name} is held ({condition(before)}): jobs start when that ends")
        runner = Runner(
            self._jobs(),
            options=request.options,
            shards=request.shards,
            window=_window(request, before.interval),
            retries=request.retries,
            tally=self._tally,
            write=self._write,
            give_back=self._give_back,
        )
        async with anyio.create_task_group() as progress:
            self._show_progress(progress)
            await runner.run()
            progress.cancel_scope.cancel()
        issued = _issued(before, await self._inspected())
        self._report(before.interval if before.has_pace else None, issued, runner)
        return self._exit_code(runner)

    def _show_progress(self, group: TaskGroup) -> None:
        wanted = self._request.progress
        if wanted is False or (wanted is None and self._request.as_json):
            return
        prints = os.isatty(self.output) or (self._request.plain and os.isatty(1))
        if can_redraw(sys.stderr) and (wanted or not prints):
            self._bar = Bar(self._tally)
            group.start_soon(self._bar.show)
        else:
            group.start_soon(show_lines, self._tally)

    async def _attached(self) -> QueueState:
        """The queue's state, created if needed; raises an error if it runs with other settings."""
        async with IntervalQueue(**self._request.options) as queue:
            # Inspecting compares no settings; this command does, and changes nothing.
            await queue._shard().command(Finish())
            return await queue.inspect()

    async def _inspected(self) -> QueueState | None:
        with suppress(IntervalqError):  # the run is over; only a figure of its report depends on this
            async with IntervalQueue(**self._request.options) as queue:
                return await queue.inspect()
        return None

    async def _give_back(self, runner: Runner) -> None:
        """Give back, in one step, the unused slots of all shards of a stopped run.

        Only the last slots can become free again: if each shard gave back its own, those of the others would
        stay empty. The handle has no settings, because these may have been changed in the meantime.
        """
        with suppress(IntervalqError):  # slots that are not given back stay empty
            async with IntervalQueue(self._request.name, store=self._request.store) as queue:
                if unused := runner.unused((await queue.inspect()).generation):
                    await queue._shard().command(Advance(release=unused))

    async def _jobs(self) -> AsyncIterator[tuple[Job, int]]:
        choose = self._done.chooser()
        async for number, line in self._source.lines():
            job = self._lines.job(line, number)
            if job is None:
                continue
            attempt = choose(job)
            if attempt is None:
                self._tally.skipped += 1
            else:
                yield job, attempt

    async def _write(self, result: Result) -> None:
        if self._request.results is not None or not self._request.plain:
            await self._put(self.output, result.to_json() + "\n")
        if self._request.plain:
            for file, text in ((1, result.stdout), (2, result.stderr)):
                if text:
                    await self._put(file, text)

    async def _put(self, file: int, text: str) -> None:
        with nullcontext() if self._bar is None or not os.isatty(file) else self._bar.away():
            data = text.encode()
            if stat.S_ISREG(os.fstat(file).st_mode):
                write_all(file, data)
            else:  # the reader of a pipe may be slow
                await anyio.to_thread.run_sync(partial(write_all, file, data))

    # --- the report ---------------------------------------------------------------------------------

    def _report(self, interval: float | None, issued: int | None, runner: Runner) -> None:
        tally = self._tally
        if interval is not None:
            spanned = round((tally.due_last - tally.due_first) / interval) + 1
        else:
            spanned = max(tally.tickets, default=0) - min(tally.tickets, default=0) + 1
        figures = _report.Figures(
            interval=interval,
            shards=self._request.shards,
            jobs=tally.done,
            failed=tally.failed,
            skipped=tally.skipped,
            not_run=tally.left if tally.total is not None or runner.read_all else None,
            issued=issued,
            spanned=spanned,
            calls=runner.calls,
        )
        report = _report.report(tally.started, tally.tickets, figures)
        if self._request.as_json:
            sys.stderr.write(as_json(report.to_dict()) + "\n")
        else:
            for name, value in _report.lines(report):
                sys.stderr.write(f"{name:>12}  {value}\n")
        if runner.bad_line is not None:
            warn(str(runner.bad_line))
        if runner.output_error is not None and not isinstance(runner.output_error, BrokenPipeError):
            where = "standard output" if self._request.results is None else self._request.results
            warn(f"{where}: {runner.output_error.strerror}; results since then are lost")
        elif figures.not_run != 0:
            left = [f"{tally.left} job{'s' if tally.left > 1 else ''}"] if tally.left else []
            rest = [f"the rest of {self._source.name}"] if figures.not_run is None else []
            printed = "--resume FILE (what was printed here)"
            results = printed if self._request.results is None else f"--resume {self._request.results}"
            if self._request.plain and self._request.results is None:
                results = "--output FILE from the start, which --resume FILE continues"
            warn(f"not run: {' and '.join(left + rest)}; to continue, run the same command with {results}")
        sys.stderr.flush()

    def _exit_code(self, runner: Runner) -> int:
        complete = runner.read_all and not self._tally.left
        if runner.stopped_by is not None and (runner.killed or not complete):
            return 128 + runner.stopped_by
        if runner.bad_line is not None:
            return 2
        return 0 if complete and not self._tally.failed and runner.output_error is None else 1


def _window(request: Request, interval: float) -> float:
    """The number of jobs that may wait in one shard."""
    if request.lookahead is not None:
        return request.lookahead or math.inf
    return max(_MIN_WAITING, min(_MAX_WAITING, math.ceil(_COVER / (interval * request.shards))))


def _issued(before: QueueState, after: QueueState | None) -> int | None:
    """How many tickets the queue issued in between; None: unknown, or its record was recreated."""
    if after is None or before.generation != after.generation:
        return None
    return after.ticket - before.ticket
