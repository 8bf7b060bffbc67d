"""The questions of busy.py about starts of jobs: pacing, half-loaded, high rates, near and far shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from _busy import Piece, Question, Row, beside, falling, settle
from _pacing import Case, measure
from _proxy import farther
from _run import Around
from _table import Column
from peers import PACING, Peer

RUN = Peer("run", "queue.run(f)", "ours:Run", "the defaults")
SLOT = Peer("slot", "async with queue.slot()", "ours:Ours", "the defaults")
ADD = Peer("add", "queue.add(f)", "ours:Add", "the defaults")
SLOTS = PACING["slots"]

_RATE = Column("rate", "rate", "{:.3f}")
_SHORT = (Column("<0.9 %", "short", "{:.2f}", 100), Column("frozen", "frozen", "{:.0f}"))
_INVERSIONS = Column("inv % tickets", "ticket_inversions", "{:.2f}", 100)
_CALLS = Column("calls/job", "store_calls", "{:.2f}")
_LOST = Column("given up %", "given_up", "{:.2f}", 100)
_CPU = Column("client us", "client_us", "{:.0f}")
_TIMER_SHORT = Column("timer <0.9 %", "timer_short", "{:.2f}", 100)

_AWAY = 0.02
"""Extra delay in seconds between far shards and the store, each way."""


def _piece(case: Case, peer: Peer, seconds: float, **more: Any) -> Piece:
    title = case.title if case.store == "redis" else f"{case.store}, {case.title}"
    return Piece(title, peer.name, peer.label, partial(_measured, case, peer, seconds, **more), case, seconds)


def _measured(case: Case, peer: Peer, seconds: float, around: Around, **more: Any) -> Row:
    row = measure(case, peer, seconds, settle=settle(seconds), around=around, **more)
    return {**row, "per_s": row["rate"] * case.rate}


def pacing(seconds: float) -> Question:
    """How exact the pacing is, and what it costs."""
    return Question(
        "pacing",
        f"several processes over one Redis; {seconds:g} s",
        (Column("", "label"), _RATE, *_SHORT, _INVERSIONS, _CALLS, _LOST, _CPU, _TIMER_SHORT),
        (
            *(
                _piece(Case(4, rate), peer, seconds)
                for rate in (100, 500)
                for peer in (RUN, SLOT, ADD, SLOTS)
            ),
            *(_piece(Case(64, 500, callers=1), peer, seconds) for peer in (RUN, SLOTS)),
        ),
    )


def half(seconds: float) -> Question:
    """How long callers wait that arrive at random instants, at half the rate."""
    return Question(
        "half",
        f"callers come at random at half the rate; {seconds:g} s",
        (
            Column("", "label"),
            Column("wait ms p50", "wait_p50", "{:.2f}"),
            Column("x hand-written", "wait_p50_ratio"),
            Column("wait ms p99", "wait_p99", "{:.2f}"),
            Column("x hand-written", "wait_p99_ratio"),
            _RATE, *_SHORT, _LOST,
        ),
        tuple(_piece(Case(4, 500, half=True), peer, seconds) for peer in (RUN, SLOTS)),
        beside("slots", "wait_p50", "wait_p99"),
    )  # fmt: skip


_RATES = (1_000, 2_000, 3_000, 5_000, 10_000)


def high(seconds: float) -> Question:
    """The share of a high rate that is reached."""
    settings = (
        (Case(1, 0, callers=64), (RUN, SLOTS)),
        (Case(4, 0, callers=16), (RUN, SLOTS)),
        (Case(1, 0, callers=64, store="memory"), (RUN,)),
    )
    return Question(
        "high",
        f"burst 1; {seconds:g} s",
        (
            Column("", "label"),
            Column("starts/s", "per_s", "{:,.0f}"),
            _RATE,
            Column("", "falls"),
            _LOST, _CALLS, _CPU,
        ),
        tuple(
            _piece(replace(case, rate=rate), peer, seconds) for case, peers in settings for peer in peers for rate in _RATES
        ),
        falling(lambda row: row["case"].rpartition(", limit ")[0]),
    )  # fmt: skip


@contextmanager
def _half_far(url: str) -> Iterator[Sequence[str]]:
    """The URLs of the processes: every other one is far from the store."""
    with farther(url, _AWAY) as far:
        yield [url, far]


def far(seconds: float) -> Question:
    """The combined figures of near and far shards."""
    case = Case(8, 50, callers=4)
    return Question(
        "far",
        f"every other process is {_AWAY * 1e3:g} ms farther from Redis, each way; {seconds:g} s",
        (
            Column("", "label"),
            _RATE,
            *_SHORT,
            _INVERSIONS,
            _LOST,
            _CALLS,
            Column("fair", "fairness"),
            _TIMER_SHORT,
        ),
        tuple(_piece(case, peer, seconds, ways=_half_far) for peer in (RUN, SLOTS)),
    )
