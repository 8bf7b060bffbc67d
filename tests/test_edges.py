"""Limits with fixed windows: their options, what a server with such windows would count, and holds."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TypeAlias

import anyio
import pytest

from intervalq import ConfigMismatch, IntervalQueue, Limit
from intervalq._spec import edges, windows
from intervalq._spec.limits import rules_of, text
from intervalq.errors import InvalidInterval, InvalidOption
from intervalq.rules import FOREVER, Advance, BadRecord, Command, Hold, Resume, Settings, State, apply
from intervalq.rules import Limit as Rule
from intervalq.testing import virtual_time
from test_limits import Server, callers, queue_on
from virtual_store import FarStore, gather
from window_oracle import run

MINUTE, HOUR, DAY = 60, 3_600, 86_400
SECOND = 1_000_000
Expiry: TypeAlias = Callable[[Rule, State], Callable[[int], int]]


# --- what users give --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "edge", "shown"),
    [
        ("5000/day from utc", 0, "5000/d from utc"),
        ("30_000 tokens per hour  from UTC ", 0, "30000 tokens/h from utc"),
        ("5/d from +02:00", 22 * HOUR, "5/d from +02:00"),
        ("5/d from -08:00", 8 * HOUR, "5/d from -08:00"),
        ("5/d from +13:00", 11 * HOUR, "5/d from -11:00"),  # the same midnight
        ("60/h from +05:30", HOUR // 2, "60/h from +00:30"),
        ("9/10s from -09:30", 0, "9/10s from utc"),
        (Limit(5, "6h", edge="+04:00"), 2 * HOUR, "5/6h from -02:00"),
    ],
)
def test_edges_are_understood_as_people_write_them(given: str | Limit, edge: int, shown: str) -> None:
    (rule,) = rules_of([given])
    assert (rule.edge, text(rule)) == (edge * SECOND, shown)
    assert rules_of([shown]) == (rule,)
    queue = IntervalQueue("q", limits=[given], store="memory://")
    assert pickle.loads(pickle.dumps(queue))._options.limits == (rule,)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("5/day from America/Los_Angeles", "give its present offset"),
        ("5/day from +2", "'utc' or an offset"),
        ("5/day from +24:00", "'utc' or an offset"),
        ("5/day from +02:60", "'utc' or an offset"),
        ("5/day from", "is not a limit"),
        ("5/day utc", "is not a limit"),
        ("5/day since utc", "is not a limit"),
        *((f"5/{window} from utc", "evenly") for window in ("2d", "7h", "7m", "7s", "90s", "100ms", "25s")),
    ],
)
def test_bad_edges_are_refused(given: str, says: str) -> None:
    with pytest.raises((InvalidOption, InvalidInterval), match=says):
        IntervalQueue("q", limits=[given], store="memory://")


def test_an_edge_must_be_text() -> None:
    with pytest.raises(InvalidOption, match="'utc' or an offset"):
        Limit(5, "1d", edge=0)  # type: ignore[arg-type] # on purpose


def test_handles_with_other_edges_are_told_both() -> None:
    async def scenario() -> None:
        far = FarStore()
        async with queue_on(far, "5/min from utc", interval=1).slot():
            pass
        with pytest.raises(ConfigMismatch, match=r"5/m from utc.*5/m'"):
            async with queue_on(far, "5/min", interval=1).slot():
                pass

    virtual_time(scenario)


# --- what a server sees -----------------------------------------------------------------------------


def until_edge(window: int, offset: int = 0) -> float:
    """The time until the next edge, in seconds on the store's clock of these tests."""
    return -(1_000_000_000 + anyio.current_time() + offset) % window


@pytest.mark.parametrize("pace", [None, 0.05])
def test_a_backlog_uses_each_window_from_its_edge_on_and_never_before(pace: float | None) -> None:
    """Four processes with four callers each keep a backlog."""
    server, far, first = Server(), FarStore(delay=0.002), 0.0

    async def scenario() -> None:
        nonlocal first
        first = until_edge(MINUTE) + anyio.current_time()
        stores = [FarStore(far.behind, delay=0.002, seed=seed) for seed in range(4)]
        queues = [queue_on(store, "100/min from utc", interval=pace) for store in stores]
        await gather(*(partial(callers, server, queue, 3 * MINUTE) for queue in queues))
        for queue in queues:
            await queue.close()

    virtual_time(scenario)
    counted = Counter((at - first) // MINUTE for at, _ in server.seen)
    assert counted[-1] == counted[0] == counted[1] == 100
    assert max(counted.values()) == 100
    for number in range(2):
        after = [at - first - number * MINUTE for at, _ in server.seen]
        assert 0 <= min(each for each in after if each >= 0) < 0.1


@pytest.mark.parametrize(("pause", "resumes"), [(30, -15.0), (60, 15.0)])
def test_jobs_that_wait_for_an_edge_begin_right_after_it_or_the_pause(pause: int, resumes: float) -> None:
    """The end of the pause is before the edge, or after it."""

    async def scenario() -> None:
        queue, server = queue_on(FarStore(), "3/min from utc"), Server()
        await anyio.sleep(until_edge(MINUTE) + 5)
        edge = anyio.current_time() + 55

        async def job() -> None:
            async with queue.slot():
                server.sees()

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(job)
            await anyio.sleep(10)
            assert len(server.seen) == 3
            await queue.pause()
            await anyio.sleep(pause)
            await queue.resume()
        begun = [at - edge for at, _ in server.seen[3:]]
        assert all(max(0, resumes) <= at < max(0, resumes) + 1.5 for at in begun), begun

    virtual_time(scenario)


def test_what_is_left_and_when_there_is_more() -> None:
    async def scenario() -> None:
        queue = queue_on(FarStore(), "3/h from +00:30")
        for _ in range(3):
            async with queue.slot():
                pass
        state = await queue.inspect()
        (limit,) = state.limits
        edge = until_edge(HOUR, HOUR // 2)
        assert (limit.limit, limit.taken, limit.left) == ("3/h from +00:30", 3, 0)
        assert limit.free - state.now == pytest.approx(edge, abs=0.01)
        assert state.binds == limit.limit
        assert await queue.quote() == pytest.approx(edge, rel=0.001)  # on the process's own clock
        await queue.configure(limits=["4/h from +00:30"])
        async with queue.try_slot():
            pass
        assert await queue._known_limits() == (Limit(4, 3_600.0, edge="+00:30"),)

    virtual_time(scenario)


# --- the rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_random_shards_never_pass_a_limit_with_edges(seed: int) -> None:
    """The starts are judged by brute force; `window_oracle` does many more runs."""
    assert run(seed, fixed=True).over() == []


def without_jitter(limit: Rule, state: State, real: Expiry = windows.expiry) -> Callable[[int], int]:
    return real(limit if limit.edge is None else limit._replace(jitter=0), state)


@pytest.mark.parametrize(
    ("module", "name", "bug", "seed"),
    [
        (edges, "moved", lambda state, _: state, 147),
        (edges, "are_passed", lambda *_: False, 1),
        (windows, "expiry", without_jitter, 28),
    ],
    ids=["slots move across edges", "late grants pass edges", "no jitter"],
)
def test_the_judge_sees_what_breaks_a_limit_with_edges(
    module: ModuleType, name: str, bug: object, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, bug)
    assert run(seed, fixed=True).over()


T0 = 1_000_000_000 * SECOND + 40 * SECOND  # there is no edge of a minute, hour or day here
MINUTELY = Settings(1_000, limits=(Rule(5, MINUTE * SECOND, edge=0),))


def take(state: State | None, now: int, count: int, settings: Settings = MINUTELY) -> tuple[State, list[int]]:
    """The tickets that are granted if their slots come within a second, and their slots."""
    known = None if state is None else state.generation
    command = Advance(settings=settings, nonce="g", generation=known, take=count, reach=SECOND)
    after, answer = apply(state, command, now)
    assert after is not None
    return after, [slot.due for slot in answer.taken]


def do(state: State, command: Command, now: int) -> State:
    after, _ = apply(state, command, now)
    assert after is not None
    return after


def edge_after(now: int) -> int:
    return now - now % (MINUTE * SECOND) + MINUTE * SECOND


def test_slots_that_have_no_room_come_at_the_edge() -> None:
    edge = edge_after(T0)
    state, dues = take(None, T0, 12)
    assert dues == [
        *(T0 + n * 1_000 for n in range(5)),
        *(edge + n * 1_000 for n in range(5)),
        *(edge + MINUTE * SECOND + n * 1_000 for n in range(2)),
    ]
    assert state.current == 5


def test_granted_slots_keep_their_window_when_a_hold_passes_its_edge() -> None:
    """Other tickets in the same cell are revoked, and nothing of the new window is used."""
    now = edge_after(T0) - 3 * SECOND
    settings = Settings(600_000, limits=MINUTELY.limits)
    state, dues = take(None, now, 3, settings)
    assert state.current == 2
    state = do(state, Hold(length=FOREVER), now + 700_000)
    later = now + 10 * SECOND
    state = do(state, Resume(), later)
    assert state.revoked_through == 3
    assert [units for _, units in state.usage[0].ahead] == []
    state, dues = take(state, later, 5, settings)
    assert [due + state.held_total < later + 5 * SECOND for due in dues] == [True] * 5


def test_a_hold_within_a_window_revokes_nothing() -> None:
    state, _ = take(None, T0, 3, Settings(SECOND, limits=MINUTELY.limits))
    state = do(do(state, Hold(length=FOREVER), T0 + 1), Resume(), T0 + 5 * SECOND)
    assert state.revoked_through < state.ticket


def test_a_clock_that_is_set_back_across_an_edge_leaves_no_room_before_it() -> None:
    """The starts in that window have been forgotten, so nothing may start before the edge."""
    edge = edge_after(T0)
    state, _ = take(None, edge - 40 * SECOND, 5)
    state, _ = take(state, edge + SECOND, 1)
    state, dues = take(state, edge - 2 * SECOND, 1)
    assert dues[0] + state.held_total == edge
    again, dues = take(state, edge - SECOND, 1)  # the minute of the clock's present reading stays
    assert dues[0] + again.held_total == edge + 1_000


def test_a_record_has_an_edge_only_if_its_windows_are_fixed() -> None:
    state, _ = take(None, T0, 1, Settings(1_000, limits=(Rule(5, MINUTE * SECOND),)))
    stored = state.to_dict()
    assert [*stored["limits"][0]] == ["most", "window", "unit", "jitter", "used", "ahead"]
    state, _ = take(None, T0, 1)
    stored = state.to_dict()
    assert stored["limits"][0]["edge"] == 0
    assert State.from_dict(stored) == state
    for edge in (-1, MINUTE * SECOND, True, "0"):
        with pytest.raises(BadRecord, match="edge"):
            State.from_dict({**stored, "limits": [{**stored["limits"][0], "edge": edge}]})
