"""The arrays of an audit's scan, without Spark: groups and buckets are those of plain Python."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

from intervalq.spark._audit.scan.buckets import GAP_BUCKETS, LATE_BUCKETS, NONE, bucket_of, buckets
from intervalq.spark._audit.scan.groups import ROWS, grouped

SEED = 20_261_128


@pytest.mark.parametrize("each", [GAP_BUCKETS, LATE_BUCKETS])
def test_a_value_is_in_the_same_bucket_alone_and_among_others(each: int) -> None:
    chance = np.random.default_rng(SEED)
    values = np.concatenate(
        [chance.uniform(-1, 6, 1_000), np.exp(chance.uniform(-25, 12, 1_000)), [0.0, 4.0]]
    )
    assert buckets(values, each=each).tolist() == [bucket_of(float(value), each=each) for value in values]
    assert buckets(np.array([np.nan]), each=each).tolist() == [NONE]


@pytest.mark.parametrize("widest", [3, 1 << 61])
def test_groups_are_those_of_plain_python(widest: int) -> None:
    """Also if all combinations of what they have in common are more than 64 bits can number."""
    chance, rows = np.random.default_rng(SEED), 2_000
    flags = chance.choice([0, 5, widest], rows)
    bins = chance.choice([NONE, 28_000_000, 28_000_001], rows)
    value = np.where(chance.random(rows) < 0.1, np.nan, chance.uniform(-1, 1, rows))
    at, ticket = chance.permutation(rows).astype(float), chance.integers(0, 50, rows)
    found = grouped(ROWS, {"bin": bins, "flags": flags, "q": flags}, value=value, at=at, ticket=ticket)

    wanted = defaultdict[tuple[int, int], list[int]](list)
    for row in range(rows):
        wanted[int(bins[row]), int(flags[row])].append(row)
    assert {(int(group["bin"]), int(group["flags"])) for group in found} == set(wanted)
    assert len(found) == len(wanted)
    for group in found:
        mine = wanted[int(group["bin"]), int(group["flags"])]
        values = [float(value[row]) for row in mine if not math.isnan(value[row])]
        first = min(mine, key=lambda row: at[row])
        assert group["rows"] == len(mine)
        assert group["total"] == pytest.approx(sum(values))
        assert (group["least"], group["most"]) == (min(values), max(values))
        if group["flags"]:  # only there is a place told
            assert (group["at"], group["ticket"]) == (at[first], ticket[first] or NONE)
