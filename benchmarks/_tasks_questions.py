"""What is measured of durable tasks: each question gives rows, one for each run of each contender."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import psycopg

import task_peers
from _fleet import WorkerError
from _judge import Start, most_in, quantile
from _run import failed
from _store import servers
from _tasks_crash import crashes
from _tasks_run import drain, fill, install, latency, starts
from _tasks_server import Databases, files, old_snapshot, pooler
from task_peers import Contender

Row = dict[str, Any]

_EVERY = 0.05
"""Seconds between two inserts, of latency."""
_RATE = 100
"""Starts a second, of pace."""


@dataclass(frozen=True)
class Sizes:
    """How much of each."""

    jobs: int
    runs: int
    workers: tuple[int, ...]
    inserts: int
    kills: int
    seconds: float

    @classmethod
    def of(cls, options: argparse.Namespace) -> Sizes:
        """Of the command line."""
        if options.quick:
            return cls(min(options.jobs, 400), 1, (1,), 10, 1, 1.5)
        return cls(options.jobs, options.runs, (1, 2), 300, 10, 10.0)


class Progress:
    """Says on standard error what runs now, and since when."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._done = 0

    def step(self, what: str) -> None:
        """One more begins."""
        self._done += 1
        sys.stderr.write(f"[{self._done}, {time.monotonic() - self._begun:.0f} s] {what}\n")
        sys.stderr.flush()


class Questions:
    """All of them, over one server."""

    def __init__(self, options: argparse.Namespace, databases: Databases) -> None:
        self.sizes = Sizes.of(options)
        self._options = options
        self._databases = databases
        self._drains: dict[tuple[str, int, int], Row] = {}

    def contenders(self, all_: Sequence[Contender]) -> list[Contender]:
        """Those that were asked for; intervalq and the floors always."""
        peers = self._options.peers
        chosen = [
            each for each in all_ if each.name in ("intervalq", "floor") or not peers or each.name in peers
        ]
        return [replace(each, uvloop=each.uvloop or self._options.uvloop) for each in chosen]

    def _jobs(self, contender: Contender) -> int:
        return max(10, round(self.sizes.jobs * contender.share))

    def _turns(self, all_: Sequence[Contender]) -> Iterator[tuple[int, Contender]]:
        """Each contender in each round; another one begins each time."""
        some = self.contenders(all_)
        for number in range(self.sizes.runs):
            at = number * max(1, len(some) // 3) % len(some)
            yield from ((number, contender) for contender in (*some[at:], *some[:at]))

    # --- rates ------------------------------------------------------------------------------------------

    def enqueue(self, progress: Progress) -> Iterator[Row]:
        """Inserts a second, by one process."""
        for number, contender in self._turns(task_peers.ENQUEUE):
            jobs = self._jobs(contender)
            yield _row(
                progress, "enqueue", number, contender, jobs, 1, lambda: self._enqueued(contender, jobs)
            )  # noqa: B023 - called at once

    def _enqueued(self, contender: Contender, jobs: int) -> Row:
        with self._databases.database(contender) as url:
            return {"per_s": jobs / fill(contender, url, jobs)}

    def drain(self, progress: Progress) -> Iterator[Row]:
        """Tasks a second, until all are committed."""
        yield from self._drain("drain", task_peers.DRAIN, progress)

    def plain(self, progress: Progress) -> Iterator[Row]:
        """The same of plain tasks."""
        yield from self._drain("plain", task_peers.PLAIN, progress)

    def _drain(self, question: str, all_: Sequence[Contender], progress: Progress) -> Iterator[Row]:
        for number, contender in self._turns(all_):
            for workers in self.sizes.workers:
                jobs = self._jobs(contender)
                row = _row(
                    progress, question, number, contender, jobs, workers,
                    lambda: self._drained(contender, jobs, workers),  # noqa: B023 - called at once
                )  # fmt: skip
                self._drains[contender.label, workers, number] = row
                yield row

    def _drained(self, contender: Contender, jobs: int, workers: int, *, held: bool = False) -> Row:
        with self._databases.database(contender) as url, old_snapshot(url, held=held):
            return {"per_s": jobs / drain(contender, url, jobs, workers)}

    def snapshot(self, progress: Progress) -> Iterator[Row]:
        """Drains, while another session holds an old snapshot; the run without it is that of the same round."""
        for number, contender in self._turns(task_peers.SNAPSHOT):
            for workers in self.sizes.workers:
                jobs = self._jobs(contender)
                before = self._drains.get((contender.label, workers, number))
                if before is None:
                    before = _row(
                        progress, "snapshot", number, contender, jobs, workers,
                        lambda: self._drained(contender, jobs, workers),  # noqa: B023 - called at once
                    )  # fmt: skip
                row = _row(
                    progress, "snapshot", number, contender, jobs, workers,
                    lambda: self._drained(contender, jobs, workers, held=True),  # noqa: B023 - called at once
                )  # fmt: skip
                if "per_s" in row and "per_s" in before:
                    row |= {"without": before["per_s"], "kept": row["per_s"] / before["per_s"]}
                yield row

    def single(self, progress: Progress) -> Iterator[Row]:
        """Tasks a second, one by one, 20 at a time in one process."""
        for number, contender in self._turns(task_peers.SINGLE):
            jobs = self._jobs(contender)
            yield _row(
                progress, "single", number, contender, jobs, 1,
                lambda: self._drained(contender, jobs, 1),  # noqa: B023 - called at once
            )  # fmt: skip

    # --- times ------------------------------------------------------------------------------------------

    def latency(self, progress: Progress) -> Iterator[Row]:
        """Milliseconds from an insert to the start, in an idle worker."""
        count = max(1, self.sizes.inserts // self.sizes.runs)
        for number, contender in self._turns(task_peers.LATENCY):
            yield _row(
                progress, "latency", number, contender, count, 1, lambda: self._delays(contender, count)
            )  # noqa: B023 - called at once

    def _delays(self, contender: Contender, count: int) -> Row:
        with self._databases.database(contender) as url:
            return {"ms": latency(contender, url, count, _EVERY)}

    def crash(self, progress: Progress) -> Iterator[Row]:
        """Seconds until the task of a killed worker begins elsewhere."""
        for way, opened in (
            ("direct", contextlib.nullcontext(self._databases.url)),
            ("PgBouncer", self._pooled()),
        ):
            contender = replace(task_peers.CRASH, label=f"intervalq, {way}")
            yield _row(progress, "crash", 0, contender, self.sizes.kills, 2, lambda: self._crashed(opened))  # noqa: B023 - called at once

    @contextlib.contextmanager
    def _pooled(self) -> Iterator[str]:
        with pooler(self._databases.url) as url:
            yield url

    def _crashed(self, opened: contextlib.AbstractContextManager[str]) -> Row:
        with opened as server, self._databases.database(task_peers.CRASH) as url:
            name = url.rpartition("/")[2]
            return {"s": list(crashes(self._databases.of(name, server), times=self.sizes.kills))}

    def pace(self, progress: Progress) -> Iterator[Row]:
        """How even the starts of two workers are at 100 a second."""
        for contender in self.contenders(task_peers.PACE):
            yield _row(progress, "pace", 0, contender, 0, 2, lambda: self._paced(contender))  # noqa: B023 - called at once

    def _paced(self, contender: Contender) -> Row:
        seconds = self.sizes.seconds
        with self._databases.database(contender) as url:
            found = starts(contender, url, round(_RATE * seconds * 1.5), 2, seconds + 0.5)
        return pace_of(found, seconds)

    def sqlite(self, progress: Progress) -> Iterator[Row]:
        """Inserts and tasks a second, in files."""
        for number, contender in self._turns(task_peers.SQLITE):
            for workers in self.sizes.workers:
                jobs = self._jobs(contender)
                yield _row(
                    progress, "sqlite", number, contender, jobs, workers,
                    lambda: _in_file(contender, jobs, workers),  # noqa: B023 - called at once
                )  # fmt: skip


QUESTIONS: dict[str, Callable[[Questions, Progress], Iterator[Row]]] = {
    "enqueue": Questions.enqueue,
    "drain": Questions.drain,
    "plain": Questions.plain,
    "snapshot": Questions.snapshot,
    "single": Questions.single,
    "latency": Questions.latency,
    "crash": Questions.crash,
    "pace": Questions.pace,
    "sqlite": Questions.sqlite,
}


def _in_file(contender: Contender, jobs: int, workers: int) -> Row:
    with files(contender, install) as url:
        row = {"per_s": jobs / drain(contender, url, jobs, workers)}
        return {**row, "enqueue_per_s": jobs / fill(contender, url, jobs)}


def pace_of(found: Sequence[int], seconds: float) -> Row:
    """The figures of starts, from the first on, for so long."""
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


def _row(
    progress: Progress,
    question: str,
    number: int,
    contender: Contender,
    jobs: int,
    workers: int,
    measure: Callable[[], Row],
) -> Row:
    """One run; what can't run here is missing, and says why."""
    row: Row = {"question": question, "label": contender.label, "name": contender.name, "run": number + 1,
                "jobs": jobs, "workers": workers}  # fmt: skip
    if contender.missing:
        return {**row, "missing": f"{contender.missing} is not installed"}
    progress.step(f"{question}: {contender.label}, {workers} worker{'s' if workers > 1 else ''}")
    begun = time.monotonic()
    try:
        row |= measure()
    except (WorkerError, servers.NotInstalledError, psycopg.Error) as error:
        row["missing"] = failed(error)
    return {**row, "took": time.monotonic() - begun}
