"""What those who look at a store see: rates from one look to the next, words, rows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from anyio.lowlevel import checkpoint
from rich.console import Console

from intervalq import IntervalQueue, QueueState
from intervalq._watch.follow import Logs
from intervalq._watch.rates import Rates
from intervalq._watch.reader import Looked, inspect_all
from intervalq._watch.rows import QUEUES, queue_rows
from intervalq._watch.words import facts, possible
from intervalq.cli._admin.states import table
from intervalq.store import open_store


@pytest.fixture
async def state() -> QueueState:
    queue = IntervalQueue("api", rate="10/s", limits=["120/min", "9000 tokens/min"], store="memory://")
    await queue.run(checkpoint)
    return await queue.inspect()


def later(state: QueueState, seconds: float, starts: int) -> QueueState:
    return replace(state, now=state.now + seconds, current=state.current + starts)


async def test_rates_are_starts_between_looks(state: QueueState) -> None:
    rates = Rates()
    rates.take([state])
    assert rates.now("api") is None
    assert rates.points("api") == []
    looks = [state := later(state, 2, starts) for starts in (20, 0, 4)]
    for look in looks:
        rates.take([look])
    assert [point.reached for point in rates.points("api")] == pytest.approx([10, 0, 2])
    assert {point.possible for point in rates.points("api")} == {2.0}
    assert rates.now("api") == pytest.approx(24 / 6)
    rates.take([later(state, 60, 60)])  # the looks before are too long ago
    assert rates.now("api") == pytest.approx(1)


async def test_a_record_that_was_created_again_begins_anew(state: QueueState) -> None:
    rates = Rates()
    for look in (state, later(state, 1, 5)):
        rates.take([look])
    rates.take([replace(later(state, 2, 6), generation="other")])
    assert rates.points("api") == []
    rates.take([later(state, 3, -1)])  # an earlier one was restored
    assert rates.points("api") == []
    rates.take([])
    assert rates.now("api") is None


async def test_looks_at_the_same_instant_count_once(state: QueueState) -> None:
    rates = Rates()
    for _ in range(3):
        rates.take([state])
    assert rates.points("api") == []


async def test_what_is_possible(state: QueueState) -> None:
    assert possible(state) == 2.0  # 120/min; tokens say nothing of starts
    assert possible(replace(state, limits=())) == pytest.approx(10)
    assert possible(replace(state, is_held=True)) == 0
    only = IntervalQueue("only", limits=["9000 tokens/min"], store="memory://")
    await only.run(checkpoint, cost={"tokens": 1})
    assert possible(await only.inspect()) is None
    far = IntervalQueue("far", limits=["600/min from utc"], store="memory://")
    await far.run(checkpoint)
    assert possible(await far.inspect()) == 10


async def test_when_the_job_of_the_last_ticket_begins(state: QueueState) -> None:
    waits = replace(state, limits=(), outstanding=3, next_slot=state.now + 0.3)
    assert ("next slot", "in 300ms") in facts(waits)
    assert ("last ticket", "in 200ms") in facts(waits)
    assert "last ticket" not in dict(facts(replace(waits, outstanding=0)))


async def test_the_share_of_a_key() -> None:
    queue = IntervalQueue("api", rate="1000/s", store="memory://")
    for key in ("ann", "bob"):
        await queue[key].run(checkpoint)
    rates, store = Rates(), open_store("memory://")
    looked = await inspect_all(store)
    rates.take(looked.states)
    assert not any("share" in dict(row.facts) for row in queue_rows(looked, rates, Logs([])))
    starts = {"api:ann": 3, "api:bob": 1}
    states = [later(state, 1, starts.get(state.name, 0)) for state in looked.states]
    rates.take(states)
    shares = {row.key: dict(row.facts).get("share") for row in queue_rows(Looked(states, 0), rates, Logs([]))}
    assert shares == {
        f"api:{key}": f"{part} of the starts of all keys" for key, part in (("ann", "75%"), ("bob", "25%"))
    }


async def test_many_keys_are_counted_and_not_all_are_read() -> None:
    queue = IntervalQueue("api", rate="1000/s", store="memory://")
    for number in range(30):
        await queue[f"k{number}"].run(checkpoint)
    looked = await inspect_all(open_store("memory://"), None, 25)
    assert (len(looked.states), looked.left_out) == (25, 5)
    cells = [row.cells for row in queue_rows(looked, Rates(), Logs([]))]
    assert cells[-2][0] == "api: 5 keys more"
    assert cells[-1][0] == "5 keys weren't read"
    assert {len(row) for row in cells} == {len(QUEUES)}


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (100, ["queue", "interval", "issued", "waiting", "running", "left", "state"]),
        (40, ["queue", "waiting", "state"]),
        (26, ["queue", "state"]),
    ],
)
async def test_a_narrow_table_keeps_names_and_states(
    state: QueueState, monkeypatch: pytest.MonkeyPatch, width: int, columns: list[str]
) -> None:
    console = Console(width=width)
    monkeypatch.setattr("intervalq._show.console", lambda: console)
    with console.capture() as captured:
        console.print(table([replace(state, name="a-long-name-of-a-queue")]))
    text = captured.get()
    assert text.split("\n")[0].split() == columns
    assert "a-long-name-of-a-queue" in "".join(re.findall(r"(?m)^[a-z-]+", text))
