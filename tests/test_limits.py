"""Limits in addition to the interval, judged as a server would that counts every window."""

from __future__ import annotations

import pickle
from functools import partial
from random import Random
from types import ModuleType

import anyio
import pytest

from intervalq import ConfigMismatch, IntervalQueue, Limit, SlotTimeout
from intervalq._spec import configure, standing, windows
from intervalq._spec.limits import rules_of, text
from intervalq.errors import InvalidInterval, InvalidOption
from intervalq.rules import STARTS, Usage
from intervalq.rules import Limit as Rule
from intervalq.testing import virtual_time
from virtual_store import FarStore, gather
from window_oracle import run

MINUTE = 60


class Server:
    """Counts arrivals in windows, each of which ends with an arrival."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    def sees(self, units: int = 1) -> None:
        self.seen.append((anyio.current_time(), units))

    def most(self, window: float) -> int:
        """The largest number of units in any window."""
        return max(
            sum(units for other, units in self.seen if at - window < other <= at) for at, _ in self.seen
        )


def queue_on(store: FarStore, *limits: str | Limit, **options: object) -> IntervalQueue:
    return IntervalQueue("q", store=store, limits=limits, **options)  # type: ignore[arg-type] # of any kind


async def callers(server: Server, queue: IntervalQueue, seconds: float, count: int = 4) -> None:
    """Run callers that call again and again."""
    until = anyio.current_time() + seconds

    async def caller() -> None:
        while anyio.current_time() < until:
            async with queue.slot():
                server.sees()

    await gather(*[caller] * count)


@pytest.mark.parametrize(
    ("pace", "limits", "windows"),
    [
        (0.05, ["600/min"], [(600, 60)]),
        (None, ["600/min"], [(600, 60)]),
        (None, ["10/s", "200/min"], [(10, 1), (200, 60)]),
        (0.01, ["5/200ms", "40/10s"], [(5, 0.2), (40, 10)]),
    ],
)
def test_no_window_has_more_starts_than_its_limit_and_a_backlog_uses_it(
    pace: float | None, limits: list[str], windows: list[tuple[int, float]]
) -> None:
    """Four processes have four callers each, for three of the longest windows."""
    server, far = Server(), FarStore(delay=0.002)
    seconds = 3 * windows[-1][1]

    async def scenario() -> None:
        stores = [FarStore(far.behind, delay=0.002, seed=seed) for seed in range(4)]
        queues = [queue_on(store, *limits, interval=pace) for store in stores]
        await gather(*(partial(callers, server, queue, seconds) for queue in queues))
        for queue in queues:
            await queue.close()

    virtual_time(scenario)
    for most, window in windows:
        assert server.most(window) <= most
    most, window = windows[-1]
    spanned = server.seen[-1][0] - server.seen[0][0]
    assert len(server.seen) >= 0.97 * most * spanned / window


def test_units_are_counted_whatever_jobs_take() -> None:
    """Costs are heavy-tailed numbers of tokens, with starts counted beside them."""
    server, random = Server(), Random(7)

    async def scenario() -> None:
        queue = queue_on(FarStore(), "30_000 tokens/min", "300/min", interval=0.05)
        jobs = [min(20_000, int(30 * random.paretovariate(1.2))) for _ in range(600)]

        async def job(tokens: int) -> None:
            async with queue.slot(cost={"tokens": tokens}):
                server.sees(tokens)

        await gather(*(partial(job, tokens) for tokens in jobs))
        starts = Server()
        starts.seen = [(at, 1) for at, _ in server.seen]
        assert len(starts.seen) == len(jobs)
        assert starts.most(MINUTE) <= 300
        assert server.most(MINUTE) <= 30_000
        state = await queue.inspect()
        assert [each.limit for each in state.limits] == ["30000 tokens/m", "300/m"]
        assert all(0 < each.taken <= each.most for each in state.limits)

    virtual_time(scenario)


def test_a_cost_in_slots_counts_as_so_many_starts() -> None:
    server = Server()

    async def scenario() -> None:
        queue = queue_on(FarStore(), "10/min", interval=0.1)
        for cost in (4, 3, 3, 1):
            async with queue.slot(cost=cost):
                server.sees(cost)

    virtual_time(scenario)
    assert server.most(MINUTE) == 10


def test_units_age_while_the_queue_is_held() -> None:
    """A cool-down counts as time like any other: a window is empty once it is over."""

    async def scenario() -> None:
        queue = queue_on(FarStore(), "5/min")
        began: list[float] = []
        for _ in range(5):
            async with queue.slot():
                began.append(anyio.current_time())
        await queue.cool_down(2 * MINUTE)
        for _ in range(5):
            async with queue.slot():
                began.append(anyio.current_time())
        assert began[9] - began[4] < 2 * MINUTE + 1

    virtual_time(scenario)


def test_what_is_given_back_is_free_again() -> None:
    """A job that leaves the queue takes nothing."""

    async def scenario() -> None:
        queue = queue_on(FarStore(), "2/min")
        for _ in range(2):
            async with queue.slot():
                pass
        with anyio.move_on_after(5):
            async with queue.slot():
                raise AssertionError
        await anyio.sleep(1)
        (limit,) = (await queue.inspect()).limits
        assert limit.taken == 2

    virtual_time(scenario)


def test_a_large_job_that_gives_up_leaves_the_room_to_small_ones() -> None:
    async def scenario() -> None:
        queue = queue_on(FarStore(), "1000 tokens/h")
        async with queue.slot(cost={"tokens": 700}):
            pass
        with anyio.move_on_after(5):
            async with queue.slot(cost={"tokens": 301}):
                raise AssertionError
        await anyio.sleep(1)
        async with queue.try_slot(cost={"tokens": 300}):
            pass

    virtual_time(scenario)


def test_a_job_is_refused_at_once_where_a_window_is_full() -> None:
    async def scenario() -> None:
        queue = queue_on(FarStore(), "2/min")
        for _ in range(2):
            async with queue.slot():
                pass
        before = anyio.current_time()
        with pytest.raises(SlotTimeout) as refused:
            async with queue.try_slot(within="1s"):
                raise AssertionError
        assert anyio.current_time() - before < 1
        assert refused.value.retry_after is not None
        assert 50 < refused.value.retry_after < 70

    virtual_time(scenario)


@pytest.mark.parametrize("seed", range(80))
def test_random_shards_never_pass_a_limit(seed: int) -> None:
    """The starts are judged by brute force; `window_oracle` does many more runs."""
    assert run(seed).over() == []


@pytest.mark.parametrize("seed", range(0, 2_000, 25))
def test_random_shards_never_pass_a_limit_while_their_queue_is_full(seed: int) -> None:
    """They come late for slots that were granted before the queue was full again."""
    assert run(seed, full=True).over() == []


@pytest.mark.parametrize(
    ("module", "name", "bug", "seed"),
    [
        (standing, "_counts_in_place", lambda *_: True, 1_139),
        (configure, "prolong", lambda state, _: state, 398),
    ],
    ids=["slots between which the queue had room", "jobs that may begin later after a configuration"],
)
def test_the_judge_sees_what_breaks_a_limit_while_a_queue_is_full(
    module: ModuleType, name: str, bug: object, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, bug)
    assert run(seed, full=True).over()


@pytest.mark.parametrize(("bug", "first"), [("no lateness", 0), ("not set back", 590), ("forgets early", 0)])
def test_the_judge_sees_what_breaks_a_limit(bug: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only few runs show the second bug, so the runs begin near one that does."""
    if bug == "no lateness":
        monkeypatch.setattr(windows, "_span", lambda limit, _: limit.window)
        monkeypatch.setattr(windows, "end_of_cell", lambda limit, due: due // limit.block * limit.block)
    elif bug == "not set back":
        monkeypatch.setattr(windows, "set_back", lambda state, *_: state)
    else:
        monkeypatch.setattr(windows, "age", lambda state: windows.changed(state, lambda *_: Usage()))
    assert any(run(seed).over() for seed in range(first, first + 400))


# --- what users give --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("500/min", Rule(500, 60_000_000)),
        ("10/s", Rule(10, 1_000_000)),
        ("100 / 15m", Rule(100, 900_000_000)),
        ("5 per hour", Rule(5, 3_600_000_000)),
        ("5000/day", Rule(5_000, 86_400_000_000)),
        ("30_000 tokens/min", Rule(30_000, 60_000_000, "tokens")),
        ("30,000 tokens/min", Rule(30_000, 60_000_000, "tokens")),
        ("1,000,000/day", Rule(1_000_000, 86_400_000_000)),
        (Limit(7, "90s", "bytes", jitter="50ms"), Rule(7, 90_000_000, "bytes", 50_000)),
    ],
)
def test_limits_are_understood_as_people_write_them(text: str | Limit, rule: Rule) -> None:
    queue = IntervalQueue("q", rate="1/s", limits=[text], store="memory://")
    assert queue._options.limits == (rule,)
    assert pickle.loads(pickle.dumps(queue))._options.limits == (rule,)


@pytest.mark.parametrize(
    "limits",
    [
        "500/min", ["500"], ["0/min"], ["/min"], ["5/fortnight"], [5], [None], ["5/min", "6/min"],
        ["1/63us"], ["1/65d"], ["5 2tokens/min"], ["30,00/min"], ["1,5/min"],
        [f"{n}/s" for n in range(1, 19)], {"500/min": 1},
    ],
)  # fmt: skip
def test_bad_limits_are_refused(limits: list[str]) -> None:
    with pytest.raises((InvalidOption, InvalidInterval)):
        IntervalQueue("q", limits=limits, store="memory://")


@pytest.mark.parametrize("limit", ["1/63us", "1/65d", "5 tokens/0s"])
def test_a_window_out_of_range_is_named_as_it_was_given(limit: str) -> None:
    with pytest.raises(InvalidInterval, match=f"'{limit}' is out of range.* from 64us to 64d"):
        IntervalQueue("q", limits=[limit], store="memory://")
    assert text(rules_of(["7/64us"])[0]) == "7/64us"


@pytest.mark.parametrize(
    "arguments",
    [(0, 1), (True, 1), (1.5, 1), (10**13, 1), (1, 0), (1, "65d"), (1, 1, "2x"), (1, 1, ""), (1, 1, "a", -1)],
)
def test_bad_values_of_a_limit_are_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((InvalidOption, InvalidInterval)):
        Limit(*arguments)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        ({"tokens": 1_001}, "1000 tokens/m"),
        ({"tokens": -1}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"bytes": 1}, "bytes"),
        (11, "10/m"),
        ({STARTS: 11}, "10/m"),
        ({STARTS: 0}, STARTS),
    ],
)
def test_a_cost_that_can_never_fit_is_refused_at_once_by_name(cost: dict[str, int], says: str) -> None:
    queue = IntervalQueue("q", limits=["10/min", "1000 tokens/min"], store="memory://")
    with pytest.raises(InvalidOption, match=says):
        queue.slot(cost=cost)


def test_a_function_as_cost_is_refused_with_what_to_write_instead() -> None:
    queue = IntervalQueue("q", limits=["1000 tokens/min"], store="memory://")
    for more in ({}, {"settle": dict[str, int]}):
        with pytest.raises(InvalidOption, match=r"^cost=<function .*queue\.slot\(cost="):
            queue(cost=lambda text: {"tokens": len(text)}, **more)  # type: ignore[call-overload] # that is it


def test_a_cost_in_starts_is_refused_where_nothing_limits_starts() -> None:
    limits = ["1000 tokens/min"]
    for cost in (2, {STARTS: 2, "tokens": 1}):
        with pytest.raises(InvalidOption, match=r"doesn't limit: .*1000 tokens/m"):
            IntervalQueue("q", limits=limits, store="memory://").slot(cost=cost)
        IntervalQueue("q", rate=10, limits=limits, store="memory://").slot(cost=cost)
    IntervalQueue("q", limits=limits, store="memory://").slot()


def test_handles_with_other_limits_are_told_both() -> None:
    async def scenario() -> None:
        far = FarStore()
        async with queue_on(far, "5/min", interval=1).slot():
            pass
        other = queue_on(far, "6/min", interval=1)
        with pytest.raises(ConfigMismatch, match=r"5/m.*6/m"):
            async with other.slot():
                pass
        unaware = IntervalQueue("q", store=far)
        async with unaware.slot():  # it uses those of the queue
            assert (await unaware.inspect()).limits[0].taken == 2

    virtual_time(scenario)


def test_an_interval_beside_limits_without_one_is_refused() -> None:
    async def scenario() -> None:
        queue = queue_on(FarStore(), "5/min")
        async with queue.slot():
            pass
        with pytest.raises(InvalidOption, match="no interval"):
            await queue.configure(interval=1)

    virtual_time(scenario)
