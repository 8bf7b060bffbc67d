"""How exact is the pacing of several processes over one Redis, and what does it cost?"""

from __future__ import annotations

import math
import random
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from _fleet import WorkerError
from _judge import Start, judge, medians, ratio
from _run import Around, Found, MissingError, Progress, failed, run, undisturbed
from _store import store_of
from _table import Column, table
from peers import PACING, TIMER, TIMER_HALF, Peer
from peers.base import Work

_VARIANTS = ("intervalq-turns", "intervalq-all")


@dataclass(frozen=True)
class Case:
    """A case that all contenders run."""

    processes: int
    rate: float
    callers: int = 8
    half: bool = False
    """Whether callers arrive at random instants, at half the rate in total."""
    store: str = "redis"
    only: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The text shown to people."""
        load = (
            "half-loaded, at random"
            if self.half
            else f"{self.callers} caller{'s' if self.callers > 1 else ''} each"
        )
        return f"{self.processes} process{'es' if self.processes > 1 else ''}, {load}, limit {self.rate:g}/s"


CASES = (
    *(Case(processes, rate) for processes in (4, 8) for rate in (100, 500, 1_000)),
    Case(4, 100, half=True),
    Case(4, 500, half=True),
    Case(4, 300),
    Case(4, 1_500),
    Case(4, 100, callers=128, also=_VARIANTS),
    Case(1, 500, callers=128, only=("intervalq", *_VARIANTS, "slots")),
)

# The published design, which npm no longer has: figures from a run side by side with the others.
_ANCESTOR = "sharded-interval-queue [2026-11, another run]"
_STATIC: dict[Case, dict[str, Any]] = {
    Case(4, 100): {"rate": 0.43, "short": 0.161, "gap_p1": 0.17, "gap_p99": 5.78, "ask_inversions": 0.15,
                   "store_calls": 28, "store_commands": 102, "store_us": 686},
    Case(4, 500): {"rate": 0.40, "short": 0.199, "ask_inversions": 0.39, "store_calls": 28, "store_commands": 100},
    Case(4, 100, callers=128, also=_VARIANTS): {"rate": 0.08, "short": 0.04, "ask_inversions": 0.24,
                                                "store_calls": 131},
}  # fmt: skip

EXACT = (
    Column("", "label"),
    Column("rate", "rate", "{:.3f}"),
    Column("first-last", "pace", "{:.4f}"),
    Column("<0.9 %", "short", "{:.2f}", 100),
    Column("x timer", "short_ratio", "{:.1f}"),
    Column("frozen", "frozen", "{:.0f}"),
    Column("<0.5 %", "very_short", "{:.2f}", 100),
    Column("gap min", "gap_min", "{:.3f}"),
    Column("p1", "gap_p1", "{:.3f}"),
    Column("p50", "gap_p50", "{:.3f}"),
    Column("p99", "gap_p99", "{:.2f}"),
    Column("late us p50", "late_p50", "{:.0f}"),
    Column("p99", "late_p99", "{:.0f}"),
    Column("max", "late_max", "{:.0f}"),
    Column("x timer p99", "late_ratio", "{:.1f}"),
)
COST = (
    Column("", "label"),
    Column("inv % tickets", "ticket_inversions", "{:.2f}", 100),
    Column("asked", "ask_inversions", "{:.2f}", 100),
    Column("calls/job", "store_calls", "{:.2f}"),
    Column("commands", "store_commands", "{:.1f}"),
    Column("Redis us", "store_us", "{:.0f}"),
    Column("client us", "client_us", "{:.0f}"),
    Column("given up %", "given_up", "{:.2f}", 100),
    Column("fair", "fairness", "{:.2f}"),
    Column("most in 100 ms", "most_100ms", "{:.0f}"),
    Column("wait ms p50", "wait_p50", "{:.2f}"),
    Column("p99", "wait_p99", "{:.1f}"),
)


class Pacing:
    """All the rows of the question."""

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._seconds = 1.0 if options.quick else 10.0
        self.cases = [
            case
            for case in CASES
            if (not options.rates or case.rate in options.rates)
            and (not options.processes or case.processes in options.processes)
        ]

    def _peers(self, case: Case) -> list[Peer]:
        if self._options.peers:
            names = [name for name in PACING if name in self._options.peers]
        else:
            names = [name for name in PACING if name not in _VARIANTS or name in case.also + case.only]
        return [PACING[name] for name in names if not case.only or name in case.only]

    @property
    def steps(self) -> int:
        """The number of rows that will be run."""
        return self._options.runs * sum(len(self._peers(case)) for case in self.cases)

    def rows(self, progress: Progress) -> Iterator[dict[str, Any]]:
        """Run everything, the rows of one case beside each other, in turns; and print each case's table."""
        for case in self.cases:
            peers = self._peers(case)
            runs: list[dict[str, Any]] = []
            for number in range(self._options.runs):
                for peer in peers:
                    progress.step(f"pacing: {case.title}: {peer.label}")
                    runs += [{**row, "run": number} for row in self._row(case, peer)]
            yield from runs
            self._print(case, peers, runs)

    def _row(self, case: Case, peer: Peer) -> list[dict[str, Any]]:
        """The row of the baseline, which runs right before, and that of the contender."""
        found = []
        timer = TIMER_HALF if case.half else TIMER
        for each, seconds in ((timer, max(1.0, self._seconds / 3)), (peer, self._seconds)):
            head = {"question": "pacing", "case": case.title, "peer": each.name, "label": each.label,
                    "settings": each.settings}  # fmt: skip
            try:
                found.append({**head, **measure(case, each, seconds)})
            except (MissingError, WorkerError) as error:
                found.append({**head, "missing": failed(error)})
        return found

    def _print(self, case: Case, peers: list[Peer], runs: list[dict[str, Any]]) -> None:
        base = pooled([row for row in runs if row["peer"] == "timer"])
        shown = [base] if base else []
        for peer in peers:
            mine = [row for row in runs if row["peer"] == peer.name and "missing" not in row]
            if not mine:
                continue
            row = medians(mine)
            row["short_ratio"] = ratio(row["short"], base.get("short", math.nan))
            row["late_ratio"] = ratio(row["late_p99"], base.get("late_p99", math.nan))
            shown.append(row)
        if (old := _STATIC.get(case)) is not None:
            shown.append({"label": _ANCESTOR, **old})
        print(f"\n== pacing: {case.title}; {self._seconds:g} s, {self._options.runs} run(s)\n")
        print(table(EXACT, shown), table(COST, shown), sep="\n\n")
        for name, why in {(row["label"], row["missing"]) for row in runs if "missing" in row}:
            print(f"{name}: missing: {why}")


def measure(
    case: Case,
    peer: Peer,
    seconds: float,
    *,
    settle: float = 0.5,
    around: Around = undisturbed,
    ways: Callable[[str], AbstractContextManager[Sequence[str]]] = lambda url: nullcontext([url]),
) -> dict[str, Any]:
    """The figures of one contender. `ways` gives the URLs by which the processes reach the store, in turns."""
    alone = peer.place.startswith(("timer:", "leaky:")) or case.store == "memory"
    bare = peer.name == "timer"
    with store_of("memory" if alone else case.store) as url, ways(url) as urls:
        works = [
            Work(
                task="pace", place=peer.place, url=urls[index % len(urls)], interval=1 / case.rate,
                processes=case.processes, index=index, callers=1 if bare else case.callers, settle=settle,
                seconds=seconds, arrivals=arrivals(case, index, settle + seconds) if case.half and not bare else (),
            )
            for index in range(case.processes)
        ]  # fmt: skip
        found = run(peer, works, meter_url=None if alone else url, around=around)
    row = figures(found, 1 / case.rate, case.processes)
    if bare:  # nobody asks it for anything
        row |= dict.fromkeys(("ask_inversions", "ticket_inversions", "wait_p50", "wait_p99"), math.nan)
    elif row["very_short"] > 0.5:  # starts in bursts, for which the time from first to last says nothing
        row["pace"] = math.nan
    return row


def arrivals(case: Case, index: int, seconds: float) -> tuple[float, ...]:
    """When callers arrive at one process, in total at half the rate: the same for every contender."""
    draw = random.Random(index)
    found: list[float] = []
    at = 0.0
    while (at := at + draw.expovariate(case.rate / 2 / case.processes)) < seconds:
        found.append(round(at, 6))
    return tuple(found)


def figures(found: Found, interval: float, processes: int) -> dict[str, Any]:
    """A row, from what the processes and the meter found."""
    starts = [
        Start(*start, process=index)
        for index, result in enumerate(found.results)
        for start in result["starts"]
    ]
    row = judge(starts, found.window, interval, processes)
    jobs = max(1, row["jobs"])
    row["client_us"] = sum(result["cpu"] for result in found.results) / jobs * 1e6
    begun = sum(result.get("begun", 0) for result in found.results)
    if begun:
        row["given_up"] = sum(result["given_up"] for result in found.results) / begun
    trouble = [result["trouble"] for result in found.results if "trouble" in result]
    if trouble:
        row["trouble"] = trouble
    if found.store:
        meter = found.store["meter"]
        row.update(meter.between(found.store["before"], found.store["after"], jobs))
        row["server"] = meter.server
    return row


def pooled(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The combined baseline of all runs between the contenders: means of shares, medians of other figures."""
    known = [row for row in rows if "missing" not in row]
    if not known:
        return {}
    one = medians(known)
    for name in ("short", "very_short"):
        one[name] = sum(row[name] * row["jobs"] for row in known) / sum(row["jobs"] for row in known)
    return one
