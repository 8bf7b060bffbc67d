"""Runs the questions of busy.py under each condition, and prints a table for each pair of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

import _store  # noqa: F401 - it makes `servers` importable
import servers
from _conditions import Condition
from _fleet import WorkerError
from _judge import medians, ratio
from _pacing import Case, measure
from _run import Around, MissingError, Progress, failed
from _table import Column, table
from intervalq.errors import IntervalqError
from peers import TIMER, TIMER_HALF

Row = dict[str, Any]

_TIMER = (
    Column("timer late us p50", "timer_p50", "{:.0f}"),
    Column("p99", "timer_p99", "{:.0f}"),
)
"""The columns about the machine's own lateness, at the end of each table."""


@dataclass(frozen=True)
class Piece:
    """One row: what one contender does in one case."""

    case: str
    peer: str
    label: str
    measure: Callable[[Around], Row]
    timer: Case
    """The arguments of the "timer only" run right before it."""
    seconds: float
    """Its duration in seconds."""

    @property
    def name(self) -> str:
        """The text shown to people."""
        return f"{self.case}: {self.label}"


@dataclass(frozen=True)
class Question:
    """One question: its rows, its columns, and what is added to rows."""

    name: str
    title: str
    columns: tuple[Column, ...]
    pieces: tuple[Piece, ...]
    beside: Callable[[list[Row]], None] = lambda _: None
    """Adds figures that follow from several lines of a table."""


def ask(question: Question, condition: Condition, runs: int, progress: Progress) -> Iterator[Row]:
    """Run all rows of a question under a condition, in turns, and print the table."""
    found: list[Row] = []
    for number in range(runs):
        for piece in question.pieces:
            progress.step(f"{question.name}: {condition.name}: {piece.name}")
            head = {
                "question": question.name, "condition": condition.name, "case": piece.case, "peer": piece.peer,
                "label": piece.name, "run": number,
            }  # fmt: skip
            try:
                row = {**head, **_timers(piece, condition), **piece.measure(condition.around)}
            except (
                MissingError,
                WorkerError,
                IntervalqError,
                psycopg.Error,
                servers.NotInstalledError,
            ) as error:
                row = {**head, "missing": failed(error)}
            found.append(row)
            yield row
    print(f"\n== {question.name}, {condition.name} ({condition.means}): {question.title}; {runs} run(s)\n")
    print(table((*question.columns, *_TIMER), lines(question, found)), flush=True)
    for name, why in sorted({(row["label"], row["missing"]) for row in found if "missing" in row}):
        print(f"{name}: missing: {why}", flush=True)


def _timers(piece: Piece, condition: Condition) -> Row:
    """Measure the machine itself, right before a row."""
    peer = TIMER_HALF if piece.timer.half else TIMER
    seconds = max(1.0, piece.seconds / 3)
    row = measure(piece.timer, peer, seconds, settle=settle(seconds), around=condition.around)
    return {"timer_p50": row["late_p50"], "timer_p99": row["late_p99"], "timer_short": row["short"]}


def settle(seconds: float) -> float:
    """Seconds of warm-up before the measured seconds; more under a quota, where processes start slowly."""
    return min(2.0, seconds / 2)


def lines(question: Question, found: Sequence[Row]) -> list[Row]:
    """One line per measured row, with the medians of its runs."""
    shown = []
    for piece in question.pieces:
        mine = [
            row
            for row in found
            if (row["case"], row["peer"]) == (piece.case, piece.peer) and "missing" not in row
        ]
        if mine:
            shown.append(medians(mine))
    question.beside(shown)
    return shown


def beside(base: str, *names: str) -> Callable[[list[Row]], None]:
    """Adds `NAME_ratio`: the figure divided by that of the contender `base` in the same case."""

    def add(shown: list[Row]) -> None:
        bases = {row["case"]: row for row in shown if row["peer"] == base}
        for row in shown:
            for name in names:
                other = bases.get(row["case"], {}).get(name, math.nan)
                row[f"{name}_ratio"] = math.nan if row["peer"] == base else ratio(row[name], other)

    return add


_LESS = 0.95
"""A rate below this share of a previous one counts as lower; smaller differences are noise between runs."""


def falling(setting: Callable[[Row], str]) -> Callable[[list[Row]], None]:
    """Adds `falls` to rows whose starts a second are under those of a lower rate of the same setting and contender.

    Rows are in the order of the requested rates.
    """

    def add(shown: list[Row]) -> None:
        most: dict[tuple[str, str], float] = {}
        for row in shown:
            key = setting(row), row["peer"]
            row["falls"] = "FALLS" if row["per_s"] < _LESS * most.get(key, 0.0) else ""
            most[key] = max(row["per_s"], most.get(key, 0.0))

    return add
