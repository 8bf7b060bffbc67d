"""What `inspect` and `status` say of limits: which of them binds, and how much of each is left."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from intervalq import IntervalQueue, QueueState
from intervalq._watch.words import condition, each_key, facts
from intervalq.cli._admin.states import table
from intervalq.errors import InvalidOption
from intervalq.testing import virtual_time
from keyed_world import FarPairs
from test_limits import queue_on
from virtual_store import FarStore, in_virtual_time


async def looks(
    limits: list[str], interval: float | None, *, jobs: int, tokens: int, after: float
) -> QueueState:
    """The queue's limits at an instant while this number of jobs arrive at once."""
    queue = queue_on(FarStore(), *limits, interval=interval)
    found = list[QueueState]()

    async def job() -> None:
        async with queue.slot(cost={"tokens": tokens} if tokens else 1):
            pass

    async def look() -> None:
        await anyio.sleep(after)
        found.append(await queue.inspect())
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        for _ in range(jobs):
            group.start_soon(job)
    return found[0]


BOTH = ["600/min", "30_000 tokens/min"]


@pytest.mark.parametrize(
    ("limits", "interval", "jobs", "tokens", "after", "binds"),
    [
        ([], 0.05, 100, 0, 1, "pace"),
        ([], 0.05, 1, 0, 1, None),
        (BOTH, 0.05, 100, 100, 2, "pace"),  # 4,000 tokens so far
        (BOTH, 0.05, 1_000, 40, 45, "600/m"),
        (BOTH, 0.05, 1_000, 1_200, 45, "30000 tokens/m"),  # 25 jobs at once: none fits into what is left
        (BOTH, 0.05, 25, 1_200, 45, "30000 tokens/m"),  # nobody waits, but there is no room for a token
        (BOTH, 0.05, 20, 1_200, 45, None),
        (BOTH, None, 1_000, 1_300, 30, "30000 tokens/m"),
        (BOTH, None, 10, 0, 30, None),
        (["10/s", "200/min"], None, 1_000, 0, 5, "10/s"),
        (["10/s", "200/min"], None, 1_000, 0, 40, "200/m"),
        (["10/min"], 10, 30, 0, 100, "pace"),  # tickets lie beyond the window
        (["5/min"], 10, 30, 0, 100, "5/m"),
    ],
)  # fmt: skip
def test_it_says_what_binds(
    limits: list[str], interval: float | None, jobs: int, tokens: int, after: float, binds: str | None
) -> None:
    state = virtual_time(partial(looks, limits, interval, jobs=jobs, tokens=tokens, after=after))
    assert state.binds == binds
    assert all(each.left == max(0, each.most - each.taken) for each in state.limits)
    assert state.to_dict()["binds"] == binds
    shown = dict(facts(state))
    if limits:
        assert shown["waits for"] == {None: "nothing", "pace": "the pace"}.get(binds, f"the limit {binds}")
        if jobs > 100:
            assert condition(state) == ("paced" if binds == "pace" else f"at its limit {binds}")
        left = table([state]).columns[5]
        assert [str(cell) for cell in left.cells] == [
            "\n".join(f"{each.left} of {each.limit}" for each in state.limits)
        ]
    else:
        assert "waits for" not in shown


@in_virtual_time
async def test_a_held_queue_waits_for_nothing_else() -> None:
    queue = queue_on(FarStore(), "2/min")
    for _ in range(2):
        async with queue.slot():
            pass
    assert (await queue.inspect()).binds == "2/m"
    await queue.pause()
    assert (await queue.inspect()).binds is None


@pytest.mark.parametrize(
    ("each", "says"),
    [
        (["5/s", "5_000 tokens/min"], "5/s, 5000 tokens/m"),
        (["shared", "500/min", "5000/day"], "shared, 500/m, 5000/d"),
        ("2/min", "0.0333333/s"),
    ],
)
@in_virtual_time
async def test_it_says_what_each_key_has(each: str | list[str], says: str) -> None:
    queue = IntervalQueue("api", rate="20/s", each=each, store=FarPairs())
    async with queue["ada"].slot():
        pass
    state = await queue.inspect()
    assert state.each == says
    assert dict(facts(state))["each key"] == says
    assert (await queue["ada"].inspect()).each is None
    assert each_key(await queue.keys()) == says.replace("shared", "20/s")
    assert each_key([]) is None


@pytest.mark.parametrize(
    ("each", "says"),
    [
        (
            ["500/min", "5000/day"],
            r"each=\['shared', '500/min', '5000/day'\];.* each=\[8.333333, '5000/day'\]",
        ),
        (["100/15m", "5 tokens/d"], "may be meant as a limit"),
    ],
)
def test_a_list_of_limits_is_not_taken_for_a_pace(each: list[str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        IntervalQueue("api", rate="20/s", each=each)
    assert IntervalQueue("api", rate="20/s", each=["shared", *each])


@pytest.mark.parametrize("limit", ["1e3/min", "10e3 tokens/min"])
def test_a_number_with_an_exponent_is_no_unit(limit: str) -> None:
    with pytest.raises(InvalidOption, match="is not a limit"):
        IntervalQueue("api", limits=[limit])
