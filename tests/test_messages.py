"""Errors that say what to do next: the command, the store, the kind of function."""

from __future__ import annotations

from typing import Any

import pytest

from intervalq import ConfigMismatch, IntervalQueue
from intervalq.errors import QueueNotFound
from virtual_store import FarStore, in_virtual_time


async def nothing() -> None:
    """A job."""


@pytest.mark.parametrize(
    ("made", "mine", "says"),
    [
        ({"rate": 10}, {"rate": 20}, "`intervalq configure api --interval 50ms`"),
        ({"rate": 10}, {"rate": 10, "burst": 3}, "`intervalq configure api --burst 3`"),
        ({"rate": 10, "limits": ["5/m"]}, {"rate": 10}, "`intervalq configure api --no-limits`"),
        ({"rate": 10}, {"rate": 10, "limits": ["5 x/m"]}, "`intervalq configure api --limit '5 x/m'`"),
    ],
)
@in_virtual_time
async def test_settings_that_disagree_come_with_the_command_that_changes_them(
    made: dict[str, Any], mine: dict[str, Any], says: str
) -> None:
    store = FarStore()
    await IntervalQueue("api", store=store, **made).run(nothing)
    with pytest.raises(ConfigMismatch) as caught:
        await IntervalQueue("api", store=store, **mine).run(nothing)
    assert says in str(caught.value)


@in_virtual_time
async def test_a_queue_that_is_not_found_is_told_with_its_store() -> None:
    store = FarStore()
    with pytest.raises(QueueNotFound) as caught:
        await IntervalQueue("api", store=store).inspect()
    assert f"the store has no queue 'api' ({store.url})" in str(caught.value)


@in_virtual_time
async def test_run_says_that_it_takes_async_functions() -> None:
    with pytest.raises(TypeError, match=r"returned 5, which can't be awaited: give an async function"):
        await IntervalQueue("api", rate=10, store=FarStore()).run(lambda: 5)  # type: ignore[arg-type, return-value]


@in_virtual_time
async def test_the_json_of_a_queue_without_a_pace_has_no_interval() -> None:
    for options, interval in (({"limits": ["5/m"]}, None), ({"rate": 10, "limits": ["5/m"]}, 0.1)):
        queue = IntervalQueue("api", store=FarStore(), **options)
        await queue.run(nothing)
        assert (await queue.inspect()).to_dict()["interval"] == interval


@in_virtual_time
async def test_a_call_that_was_made_already_is_refused() -> None:
    """It did not wait for its slot; nothing warns of a coroutine that was never awaited."""
    queue = IntervalQueue("api", rate=10, store=FarStore())
    made: Any = nothing()
    with pytest.raises(TypeError, match=r"nothing.* is a call that was made already: hand over the function"):
        await queue.run(made)
    made = nothing()
    with pytest.raises(TypeError, match="hand over the function"):
        await queue.add(made)
    await queue.run(nothing)
