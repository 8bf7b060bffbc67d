"""The questions about durable tasks: each yields one row per run and contender."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg

import _store  # noqa: F401 - it makes `servers` importable
import servers
import task_peers
from _fleet import WorkerError
from _judge import Start, most_in, quantile
from _run import failed
from _tasks_crash import crashes
from _tasks_run import drain, fill, install, latency, starts, turns
from _tasks_server import Databases, files, old_snapshot, pooler
from intervalq.errors import IntervalqError
from task_peers import Contender
from task_peers.base import EACH, SMALL

Row = dict[str, Any]

_EVERY = 0.05
"""Seconds between two inserts of the latency question."""
_RATE = 100
"""Starts per second of the pace question."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the questions."""

    jobs: int
    runs: int
    workers: tuple[int, ...]
    inserts: int
    kills: int
    seconds: float

    @classmethod
    def of(cls, options: argparse.Namespace) -> Sizes:
        """From the options of the command line."""
        if options.quick:
            return cls(min(options.jobs, 400), 1, (1,), 10, 1, 1.5)
        return cls(options.jobs, options.runs, (1, 2), 300, 10, 10.0)


@dataclass(frozen=True)
class Case:
    """One run of one contender."""

    question: str
    contender: Contender
    number: int
    """The number of the round, from 0."""
    jobs: int
    workers: int


class Progress:
    """Prints progress on standard error, with the time since the beginning."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._done = 0

    def step(self, what: str) -> None:
        """Report that one more run begins."""
        self._done += 1
        sys.stderr.write(f"[{self._done}, {time.monotonic() - self._begun:.0f} s] {what}\n")
        sys.stderr.flush()


class Questions:
    """All questions, over one server."""

    def __init__(self, options: argparse.Namespace, databases: Databases) -> None:
        self.sizes = Sizes.of(options)
        self._options = options
        self._databases = databases
        self._drains: dict[tuple[str, int, int], Row] = {}

    def contenders(self, all_: Sequence[Contender]) -> list[Contender]:
        """The contenders that were asked for, intervalq, and the floors unless none at all are wanted."""
        peers = self._options.peers
        names = {"intervalq", *peers, *(() if "none" in peers else ("floor",))}
        chosen = [each for each in all_ if not peers or each.name in names]
        return [replace(each, uvloop=each.uvloop or self._options.uvloop) for each in chosen]

    def _cases(self, question: str, all_: Sequence[Contender], *, alone: bool = False) -> Iterator[Case]:
        """Each contender in each round, in rotating order; with one worker, or also with two."""
        some = self.contenders(all_)
        for number in range(self.sizes.runs if some else 0):
            at = number * max(1, len(some) // 3) % len(some)
            for each in (*some[at:], *some[:at]):
                jobs = max(10, round(self.sizes.jobs * each.share))
                for workers in (1,) if alone else self.sizes.workers:
                    yield Case(question, each, number, jobs, workers)

    # --- rates ------------------------------------------------------------------------------------------

    def enqueue(self, progress: Progress) -> Iterator[Row]:
        """Inserts per second, by one process."""
        for case in self._cases("enqueue", task_peers.ENQUEUE, alone=True):
            yield _row(progress, case, self._enqueued)

    def _enqueued(self, case: Case) -> Row:
        with self._databases.database(case.contender) as url:
            return {"per_s": case.jobs / fill(case.contender, url, case.jobs)}

    def drain(self, progress: Progress) -> Iterator[Row]:
        """Tasks per second, until all are committed."""
        for case in self._cases("drain", task_peers.DRAIN):
            yield self._keep(case, _row(progress, case, self._drained))

    def plain(self, progress: Progress) -> Iterator[Row]:
        """The same for plain tasks."""
        for case in self._cases("plain", task_peers.PLAIN):
            yield self._keep(case, _row(progress, case, self._drained))

    def _keep(self, case: Case, row: Row) -> Row:
        """The question `snapshot`, which compares with a run of the same round."""
        self._drains[case.contender.label, case.workers, case.number] = row
        return row

    def _drained(self, case: Case, *, held: bool = False) -> Row:
        with self._databases.database(case.contender) as url, old_snapshot(url, held=held):
            return dict(drain(case.contender, url, case.jobs, case.workers).per(case.jobs))

    def snapshot(self, progress: Progress) -> Iterator[Row]:
        """Drains while another session holds an old snapshot."""
        for case in self._cases("snapshot", task_peers.SNAPSHOT):
            before = self._drains.get((case.contender.label, case.workers, case.number))
            if before is None:
                before = _row(progress, case, self._drained)
            row = _row(progress, case, partial(self._drained, held=True))
            if "per_s" in row and "per_s" in before:
                row |= {"without": before["per_s"], "kept": row["per_s"] / before["per_s"]}
            yield row

    def single(self, progress: Progress) -> Iterator[Row]:
        """Tasks per second, inserted one by one, 20 at a time in one process."""
        for case in self._cases("single", task_peers.SINGLE, alone=True):
            yield _row(progress, case, self._drained)

    def outcomes(self, progress: Progress) -> Iterator[Row]:
        """Tasks per second if what became of them is kept, and their results."""
        for case in self._cases("outcomes", task_peers.OUTCOMES, alone=True):
            yield _row(progress, case, self._drained)

    def keys(self, progress: Progress) -> Iterator[Row]:
        """Starts until nine keys with few tasks are done, beside one that has many."""
        for case in self._cases("keys", task_peers.KEYS, alone=True):
            yield _row(progress, replace(case, jobs=max(case.jobs, 2 * SMALL * EACH)), self._turns)

    def _turns(self, case: Case) -> Row:
        with self._databases.database(case.contender) as url:
            count = turns(case.contender, url, case.jobs, SMALL * EACH)
        return {"starts": count, "share": count / (SMALL + 1) / EACH}

    # --- times ------------------------------------------------------------------------------------------

    def latency(self, progress: Progress) -> Iterator[Row]:
        """Milliseconds from an insert to the start, in an idle worker."""
        count = max(1, self.sizes.inserts // self.sizes.runs)
        for case in self._cases("latency", task_peers.LATENCY, alone=True):
            yield _row(progress, replace(case, jobs=count), self._delays)

    def cancel(self, progress: Progress) -> Iterator[Row]:
        """Milliseconds from the cancel of a running task to the end of its function."""
        count = max(1, self.sizes.inserts // self.sizes.runs // 3)
        for case in self._cases("cancel", task_peers.CANCELS, alone=True):
            yield _row(progress, replace(case, jobs=count), partial(self._delays, role="cancel"))

    def _delays(self, case: Case, role: str = "insert") -> Row:
        with self._databases.database(case.contender) as url:
            return {"ms": latency(case.contender, url, case.jobs, _EVERY, role)}

    def crash(self, progress: Progress) -> Iterator[Row]:
        """Seconds until a killed worker's task begins elsewhere."""
        for way, opened in (("direct", nullcontext(self._databases.url)), ("PgBouncer", self._pooled())):
            contender = replace(task_peers.CRASH, label=f"intervalq, {way}")
            case = Case("crash", contender, 0, self.sizes.kills, 2)
            yield _row(progress, case, partial(self._crashed, opened))

    @contextmanager
    def _pooled(self) -> Iterator[str]:
        with pooler(self._databases.url) as url:
            yield url

    def _crashed(self, opened: AbstractContextManager[str], case: Case) -> Row:
        with opened as server, self._databases.database(case.contender) as url:
            name = url.rpartition("/")[2]
            return {"s": list(crashes(self._databases.of(name, server), times=case.jobs))}

    def pace(self, progress: Progress) -> Iterator[Row]:
        """How even the starts of two workers are at 100 per second."""
        jobs = round(_RATE * self.sizes.seconds * 1.5)
        for contender in self.contenders(task_peers.PACE):
            yield _row(progress, Case("pace", contender, 0, jobs, 2), self._paced)

    def _paced(self, case: Case) -> Row:
        seconds = self.sizes.seconds
        with self._databases.database(case.contender) as url:
            return pace_of(starts(case.contender, url, case.jobs, case.workers, seconds + 0.5), seconds)

    def sqlite(self, progress: Progress) -> Iterator[Row]:
        """Inserts and tasks per second, in files."""
        for case in self._cases("sqlite", task_peers.SQLITE):
            yield _row(progress, case, _in_file)


QUESTIONS: dict[str, Callable[[Questions, Progress], Iterator[Row]]] = {
    "enqueue": Questions.enqueue,
    "drain": Questions.drain,
    "plain": Questions.plain,
    "snapshot": Questions.snapshot,
    "single": Questions.single,
    "latency": Questions.latency,
    "crash": Questions.crash,
    "pace": Questions.pace,
    "outcomes": Questions.outcomes,
    "cancel": Questions.cancel,
    "keys": Questions.keys,
    "sqlite": Questions.sqlite,
}


def _in_file(case: Case) -> Row:
    with files(case.contender, install) as url:
        row = drain(case.contender, url, case.jobs, case.workers).per(case.jobs)
        return {**row, "enqueue_per_s": case.jobs / fill(case.contender, url, case.jobs)}


def pace_of(found: Sequence[int], seconds: float) -> Row:
    """The figures of starts within this many seconds of the first."""
    inside = [Start(at, 0) for at in found if at - found[0] < seconds * 1e9]
    gaps = [(after.at - before.at) / 1e6 for before, after in pairwise(inside)]
    return {
        "mean": (len(inside) - 1) / max(1e-9, (inside[-1].at - inside[0].at) / 1e9),
        "most_1s": most_in(inside, 1.0),
        "most_100ms": most_in(inside, 0.1),
        "gap_p1": quantile(gaps, 0.01),
        "gap_p50": quantile(gaps, 0.5),
        "gap_p99": quantile(gaps, 0.99),
    }


def _row(progress: Progress, case: Case, measure: Callable[[Case], Row]) -> Row:
    """Run one case; one that can't run here is reported as missing, with the reason."""
    contender = case.contender
    row: Row = {
        "question": case.question, "label": contender.label, "name": contender.name, "run": case.number + 1,
        "jobs": case.jobs, "workers": case.workers,
    }  # fmt: skip
    if contender.missing:
        return {**row, "missing": contender.missing}
    progress.step(f"{case.question}: {contender.label}, {case.workers} worker{'s' * (case.workers > 1)}")
    begun = time.monotonic()
    try:
        row |= measure(case)
    except (WorkerError, IntervalqError, servers.NotInstalledError, psycopg.Error) as error:
        row["missing"] = failed(error)
    return {**row, "took": time.monotonic() - begun}
