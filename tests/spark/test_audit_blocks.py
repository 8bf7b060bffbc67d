"""Audits hold few rows at a time, and find the same as with all of them; by arrays alone, without Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from intervalq.spark._audit.clocks import Line
from intervalq.spark._audit.facts import Facts, QueueFacts, set_blocks
from intervalq.spark._audit.kinds import BITS, KINDS
from intervalq.spark._audit.scan import order
from intervalq.spark._audit.scan.figures import Figures
from intervalq.spark._audit.scan.groups import places
from intervalq.spark._audit.scan.keys import Keys, dtype
from intervalq.spark._audit.scan.large import judge_rows_of_block
from intervalq.spark._audit.scan.places import Places

Array = npt.NDArray[Any]

FIGURES = Figures(
    interval=np.array([1.0]),
    block=np.array([1e9]),
    nameless=np.array([False]),
    earliest=0,
    latest=1e10,
    tolerance=None,
    burst=1,
    reach=3,
    bin=60,
    live=frozenset(kind.name for kind in KINDS),
    others=True,
    attempts=True,
    retries=True,
    parts=2,
    held=1 << 20,
    places=Places.known([], [], (0, 1)),
)
STARTS = [*(1 << BITS[kind] for kind in ("gap_short", "crowded", "order_inverted"))]


def counts(groups: list[Array]) -> Counter[Any]:
    """What groups say, whatever a row that is both a start and a slot is in."""
    found: Counter[Any] = Counter()
    for group in np.concatenate(groups):
        for bit in range(len(KINDS) + 4):
            if mark := int(group["flags"]) & 1 << bit:
                start = mark in STARTS or mark in (order.FIRST_START, order.LAST_START)
                found[mark, int(group["bin"])] += int(group["rows" if start else "slots"])
        found["rows", int(group["bucket"])] += int(group["rows"])
        found["slots"] += int(group["slots"])
        found["unused"] += int(group["unused"])
        if not np.isnan(group["restarted"]):
            found["restarted", float(group["restarted"])] += 1
    return +found


@pytest.mark.parametrize("seed", range(8))
def test_a_block_is_judged_the_same_in_ranges(seed: int) -> None:
    """Of rows with many ties and faults."""
    chance = np.random.default_rng(seed)
    number = int(chance.integers(1, 60))
    rows = np.zeros(number, order.entry(FIGURES))
    rows["due"] = chance.integers(0, number, number) * chance.choice([1.0, 0.5, 1e-3])
    rows["at"] = rows["due"] + chance.choice([0, 0, 0.3, -0.2], number)
    rows["ticket"] = chance.integers(0, number + 1, number)
    rows["role"] = role = chance.choice([1, 2, 3, 3, 3, 4], number)
    rows["at"][(role == order.SLOT) & (chance.random(number) < 0.3)] = np.nan
    rows["due"][(role == order.START) & (chance.random(number) < 0.3)] = np.nan
    rows["at"][role == order.HALO] -= number
    rows["hash"], rows["attempt"] = chance.integers(0, 5, number), chance.integers(1, 3, number)
    pieces = np.array_split(rows, max(1, number // 4))
    whole = counts(list(judge_rows_of_block(pieces, FIGURES, 0, 0)))
    for held in (1, 4, 9):
        parts = judge_rows_of_block(pieces, replace(FIGURES, held=held), 0, 0)
        assert counts(list(parts)) == whole


@pytest.mark.parametrize("attempts", [False, True])
@pytest.mark.parametrize("replays", [False, True])
def test_keys_are_judged_the_same_by_few_of_their_calls(attempts: bool, replays: bool) -> None:
    live = FIGURES.live if replays else FIGURES.live - {"replay_unknown"}
    figures = replace(FIGURES, attempts=attempts, live=live)
    for seed in range(20):
        chance = np.random.default_rng(seed)
        number = int(chance.integers(1, 60))
        rows = np.zeros(number, dtype(figures))
        rows["hash"] = chance.integers(0, 4, number)
        if replays:
            rows["call"] = chance.random(number) < 0.7
        if attempts:
            rows["number"], rows["ticket"] = chance.integers(1, 4, number), chance.integers(0, 9, number)
            rows["at"] = chance.integers(0, 20, number)
            rows["over"] = rows["at"] + chance.choice([np.nan, 3, 5], number)
        found = set()
        for held in (1, 5, 20, 1 << 20):
            keys = Keys(replace(figures, held=held))
            for piece in np.array_split(rows, max(1, number // 3)):
                keys.add(piece)
            found.add(keys.judge().tobytes())
        assert len(found) == 1


def test_a_key_of_many_calls_is_held_as_one_row() -> None:
    keys = Keys(replace(FIGURES, attempts=False, held=100))
    rows = np.zeros(50, dtype(replace(FIGURES, attempts=False)))
    rows["call"] = True
    for _ in range(1_000):
        keys.add(rows)
        assert keys._held <= 100
    assert keys.judge()["unused"].tolist() == [49_999]


@pytest.mark.parametrize(("rows", "block"), [(100_000, 524_288), (100_000_000, 524.288), (10**12, 4)])
def test_a_block_of_a_crowded_log_has_few_rows(rows: int, block: float) -> None:
    queue = QueueFacts(0, "q", rows=rows, first=0.0, last=100_000.0, interval=1.0)
    facts = Facts(set(), rows, {"q": queue}, [], 60, 1, 0, 0)
    set_blocks(facts, 1 << 19, least=4)
    assert queue.block == pytest.approx(block)


def test_each_row_has_its_queue_and_the_clock_of_its_host() -> None:
    lines = [Line(-np.inf, 100.0, 2.0, 0.5), Line(200.0, 200.0, -1.0)]
    known = Places.known([(7, 0, "a"), (-3, 1, "b"), (9, 1, "a"), (7, 0, "a")], [("a", lines)], (0.0, 300.0))
    who = np.array([7, 7, -3, 9, 9, 9, 9])
    due = np.array([100.0, 110.0, 110.0, 199.0, 200.0, 300.0, np.nan])
    queue, ahead = known.of(who, due)
    assert queue.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert ahead.tolist() == [2.0, 7.0, 0.0, 51.5, -1.0, 0.0, 0.0]
    for new in (8, 10):  # of a log to which rows are added meanwhile
        with pytest.raises(ValueError, match="audit a copy"):
            known.of(np.array([7, new]), due[:2])


def test_columns_of_very_different_numbers_are_told_apart() -> None:
    far = np.arange(16) << 57
    _, first = places([np.repeat(far, 16), np.tile(far, 16)])
    assert len(first) == 256
