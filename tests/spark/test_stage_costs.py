"""The estimated costs of a stage's calls, and the real ones."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from intervalq import IntervalQueue
from intervalq.errors import InvalidOption
from intervalq.spark import CallContext
from intervalq.sync import IntervalQueue as BlockingQueue
from spark.stages import Calls, batches, paced_here, staged

LIMITED: dict[str, Any] = {
    "interval": 1e-3,
    "burst": 100,
    "limits": ["1000 tokens/hour"],
    "store": "memory://",
}


async def answer(row: dict[str, Any], ctx: CallContext) -> dict[str, Any]:
    """Each call takes as many tokens as its id says."""
    return {"out": str(row["id"])}


def taken(name: str) -> int:
    """How many tokens the window counts."""
    with BlockingQueue(name, **LIMITED) as queue:
        (limit,) = queue.inspect().limits
        return 1000 - limit.left


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({"cost": {"tokens": 50}}, 500),
        ({"cost": lambda row: {"tokens": 2 * row["id"]}}, 90),
        ({"cost": {"tokens": 50}, "settle": lambda result: {"tokens": int(result["out"])}}, 45),
        ({"cost": lambda row: {"tokens": row["id"] + 9}, "settle": lambda _: {"tokens": 3}}, 30),
        ({"cost": {"tokens": 50}, "settle": lambda _: None}, 500),
        ({"cost": {"tokens": 50}, "settle": lambda result: result["no such column"]}, 500),
    ],
)
def test_calls_take_what_they_cost(options: dict[str, Any], counted: int) -> None:
    name = f"tokens-{uuid4().hex}"
    rows = list(paced_here(answer, range(10), IntervalQueue(name, **LIMITED), **options))
    assert len(rows) == 10
    assert all(row["_iq"]["error"] is None for row in rows)
    assert taken(name) == counted


def test_a_row_whose_cost_is_not_allowed_has_failed_without_a_call() -> None:
    queue = IntervalQueue("dear", **LIMITED)
    calls = Calls()

    def cost(row: dict[str, Any]) -> Any:
        return {"tokens": 1001} if row["id"] == 3 else row["estimate"] if row["id"] == 4 else 1

    rows = {row["id"]: row for row in paced_here(calls, range(6), queue, cost=cost, errors="column")}
    assert set(calls.of) == {0, 1, 2, 5}
    assert "more than the limit" in rows[3]["_iq"]["error"]
    assert rows[4]["_iq"]["error"] == "KeyError: 'estimate'"
    assert rows[3]["out"] is None
    with pytest.raises(InvalidOption, match="more than the limit"):
        list(paced_here(calls, range(6), queue, cost=cost))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cost": {"tokens": 1001}}, "more than the limit"),
        ({"cost": {"requests": 1}}, "no limit of 'requests'"),
        ({"cost": 0}, "cost=0"),
        ({"cost": {"tokens": 1}, "settle": 5}, "settle=5"),
        ({"cost": lambda _: 1, "settle": 5}, "settle=5"),
        ({"settle": lambda _: {"tokens": 1}}, "estimate"),
    ],
)
def test_costs_are_checked_on_the_driver(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        paced_here(Calls(), range(1), IntervalQueue("checked", **LIMITED), **options).__next__()


@pytest.mark.parametrize("options", [{"cost": 2}, {"cost": lambda _: 1}, {"settle": lambda _: None}])
def test_without_a_queue_nothing_is_counted(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="give queue="):
        list(staged(Calls(), batches([1]), **options))
