"""Limits that all keys under one rate share: no window is over, a backlog uses them, and shares stay fair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from intervalq import ConfigMismatch, IntervalQueue, SlotTimeout
from intervalq.errors import InvalidOption
from intervalq.testing import virtual_time
from intervalq.testing.virtual import virtual_micros
from intervalq_stores.memory.queues import MemoryStore
from keyed_world import FarPairs
from virtual_store import gather

SECOND = 1_000_000


class Server:
    """Counts what arrives of each unit, and from which key."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, int]] = []

    def sees(self, key: str, units: int = 1) -> None:
        self.seen.append((virtual_micros(), key, units))

    def most(self, window: int) -> int:
        """The largest number of units in any window that ends with an arrival."""
        return max(
            sum(units for other, _, units in self.seen if at - window < other <= at) for at, *_ in self.seen
        )

    def used(self, most: int, window: int) -> float:
        """The share of a limit that a backlog used."""
        spanned = self.seen[-1][0] - self.seen[0][0]
        return sum(units for *_, units in self.seen) / (most * spanned / window)


def run(
    main: Callable[[Callable[..., IntervalQueue]], Coroutine[Any, Any, None]], delay: float = 0.0005
) -> None:
    async def runs() -> None:
        behind = MemoryStore(clock=virtual_micros)

        def process(**options: Any) -> IntervalQueue:
            made: dict[str, Any] = {"rate": 100, "each": "shared"} | options
            return IntervalQueue("api", store=FarPairs(behind, delay=delay), **made)

        await main(process)

    virtual_time(runs)


async def backlog(
    server: Server, queue: IntervalQueue, key: str, cost: int = 0, took: int = 0, **named: Any
) -> None:
    """Keep some callers of a key busy for ever; each call has a cost in tokens, unless it is 0."""
    mine = queue.key(key, **named)

    async def caller() -> None:
        while True:
            async with mine.slot(cost={"tokens": cost} if cost else 1) as slot:
                server.sees(key, took or cost or 1)
                if took:
                    slot.settle(tokens=took)

    await gather(*[caller] * 12)


@pytest.mark.parametrize(
    ("options", "limits", "windows"),
    [
        ({}, ["200/10s"], [(200, 10)]),
        ({"each": "10/s"}, ["30/s", "200/10s"], [(30, 1), (200, 10)]),
        ({"rate": 1_000}, ["200/10s"], [(200, 10)]),
    ],
)
def test_no_window_has_more_starts_than_the_common_limit_and_a_backlog_uses_it(
    options: dict[str, Any], limits: list[str], windows: list[tuple[int, int]]
) -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        keys = "abcd"
        queues = [process(limits=limits, **options) for _ in keys]
        with anyio.move_on_after(40):
            await gather(*(partial(backlog, server, *each) for each in zip(queues, keys, strict=True)))

    run(main)
    for most, window in windows:
        assert server.most(window * SECOND) <= most
    most, window = windows[-1]
    assert server.used(most, window * SECOND) >= 0.97
    counted = Counter(key for _, key, _ in server.seen)
    assert max(counted.values()) - min(counted.values()) <= 24, counted


def test_tokens_of_all_keys_count_together_and_what_is_settled_counts() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queues = [process(limits=["500/min", "30_000 tokens/min"]) for _ in range(2)]
        with anyio.move_on_after(300):
            await gather(
                partial(backlog, server, queues[0], "large", 1_000, 300),
                partial(backlog, server, queues[1], "small", 200),
            )

    run(main)
    assert server.most(60 * SECOND) <= 30_000
    assert server.used(30_000, 60 * SECOND) >= 0.9  # a cell of 469 holds only one large job


def test_weights_are_shares_where_every_start_waits_for_the_window() -> None:
    """Each job takes more than a cell of the limit, so no two slots directly follow each other."""
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        with anyio.move_on_after(400):
            await gather(
                *(
                    partial(backlog, server, process(limits=["1_000 tokens/10s"]), key, 100, weight=weight)
                    for key, weight in (("a", 1), ("b", 2), ("c", 5), ("d", 2))
                )
            )

    run(main)
    assert server.most(10 * SECOND) <= 1_000
    counted = Counter(key for _, key, _ in server.seen[40:340])
    for key, weight in (("a", 1), ("b", 2), ("c", 5), ("d", 2)):
        assert abs(counted[key] - 30 * weight) <= 10, counted


def test_a_key_waits_at_most_for_the_turns_of_the_others() -> None:
    server, began = Server(), list[int]()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        async def late() -> None:
            await anyio.sleep(25)
            queue = process(limits=["100/5s"])
            for _ in range(5):
                async with queue["late"].slot():
                    began.append(len(server.seen))
                    server.sees("late")

        with anyio.move_on_after(40):
            await gather(
                *(partial(backlog, server, process(limits=["100/5s"]), key) for key in "ab"),
                late,
            )

    run(main)
    waited = [after - before for before, after in pairwise(began)]
    assert len(waited) == 4
    assert max(waited) <= 8, waited


def test_a_dead_process_leaves_its_units_counted_and_delays_nobody() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        dead = process(limits=["50/5s"])
        async with anyio.create_task_group() as group:
            group.start_soon(partial(backlog, server, dead, "dead"))
            await anyio.sleep(12)
            dead._open().cut = True  # type: ignore[attr-defined] # from now on it never answers
            group.cancel_scope.cancel()
        began = len(server.seen)
        with anyio.move_on_after(20):
            await backlog(server, process(limits=["50/5s"]), "b")
        assert len(server.seen) - began >= 0.9 * 50 * 20 / 5

    run(main)
    assert server.most(5 * SECOND) <= 50


def test_a_cost_that_no_window_allows_is_refused_by_name() -> None:
    queue = IntervalQueue("api", rate=10, each="shared", limits=["500 tokens/min"], store="memory://")

    async def main() -> None:
        with pytest.raises(InvalidOption, match="more than the limit of 500 tokens/m"):
            await queue["a"].run(anyio.sleep_forever, cost={"tokens": 501})
        with pytest.raises(InvalidOption, match="no limit of 'words'"):
            await queue["a"].run(anyio.sleep_forever, cost={"words": 1})

    virtual_time(main)


def test_what_is_left_is_shown_and_quoted() -> None:
    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(limits=["2/min", "10 tokens/min"])
        for _ in range(2):
            async with queue["a"].slot(cost={"tokens": 4}):
                pass
        for shown in (await queue.inspect(), await queue["a"].inspect(), *await queue.keys()):
            assert [(each.limit, each.taken) for each in shown.limits] == [("2/m", 2), ("10 tokens/m", 8)]
            assert shown.binds == "2/m"
        wait = await queue["b"].quote()
        assert wait is not None
        assert 59 < wait < 62
        with pytest.raises(SlotTimeout):
            async with queue["b"].try_slot(within="30s"):
                pass
        began = virtual_micros()
        async with queue["b"].slot():
            assert abs((virtual_micros() - began) / SECOND - wait) < 1

    run(main)


def test_limits_change_while_keys_wait() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        first, second = process(limits=["10/s", "900 tokens/s"]), process(limits=["900 tokens/s", "10/s"])
        with anyio.move_on_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(partial(backlog, server, first, "a", 10))
                group.start_soon(partial(backlog, server, second, "b", 10))
                await anyio.sleep(5)
                assert server.most(SECOND) == 100
                await first.configure(limits=["300 tokens/s"])
                await anyio.sleep(2)
                server.seen.clear()
                await anyio.sleep(5)
                assert 290 <= server.most(SECOND) <= 300
                assert first["a"]._options.counted == ("starts", "tokens")
                await first.configure(limits=["50 tokens/s"])
                await anyio.sleep(2)
                server.seen.clear()
        assert server.most(SECOND) == 50

    run(main)


def test_handles_with_other_limits_are_told() -> None:
    async def main(process: Callable[..., IntervalQueue]) -> None:
        async with process(limits=["5/s"])["a"].slot():
            pass
        with pytest.raises(ConfigMismatch, match="limits="):
            async with process(limits=["6/s"])["a"].slot():
                pass
        async with process(limits=["6/s"], on_mismatch="adopt")["a"].slot():
            pass
        updating = process(limits=["6/s"], on_mismatch="update")
        async with updating["a"].slot():
            pass
        assert [each.limit for each in (await updating.inspect()).limits] == ["6/s"]
        own = process(limits=["6/s"], each=None)
        async with own["own"].slot():
            pass
        with pytest.raises(ConfigMismatch, match="each="):
            async with process(limits=["6/s"])["own"].slot():
                pass
        fixed = own["fixed"]
        await fixed.configure(limits=["6/day from utc"])
        async with fixed.slot():
            pass
        with pytest.raises(InvalidOption, match="'api:fixed' now has a burst, fixed windows"):
            async with process(limits=["6/s"], on_mismatch="adopt")["fixed"].slot():
                pass

    run(main)


def test_a_key_alone_takes_no_places_beyond_the_next_window() -> None:
    """Its backlog is within reach of one request, but a key that comes later waits for one window only."""
    began = list[float]()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        async def late() -> None:
            await anyio.sleep(1)
            async with process(rate=1_000, limits=["4/10s"])["late"].slot():
                began.append(anyio.current_time())

        with anyio.move_on_after(45):
            alone = process(rate=1_000, limits=["4/10s"])
            await gather(partial(backlog, Server(), alone, "a"), late)

    run(main)
    assert began
    assert began[0] < 22


def test_the_units_of_a_job_that_began_stay_counted_when_the_next_one_is_cancelled() -> None:
    """The slot that is given back is the next one of its key, whose place was not taken yet."""
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(rate=1_000, each="1/s", limits=["1/10s"])

        async def job(key: str, at: float) -> None:
            await anyio.sleep(at)
            async with queue[key].slot():
                server.sees(key)

        async with anyio.create_task_group() as group:
            group.start_soon(job, "b", 0)
            group.start_soon(job, "a", 1)
            group.start_soon(job, "c", 10.2)
            with anyio.move_on_after(10.17):
                await job("a", 1.1)

    run(main)
    assert [key for _, key, _ in server.seen] == ["b", "a", "c"]
    assert server.most(10 * SECOND) == 1


def test_a_place_that_was_revoked_is_replaced_by_one_that_takes_as_much() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(limits=["10 tokens/10s"])

        async def job(key: str, at: float) -> None:
            await anyio.sleep(at)
            async with queue[key].slot(cost={"tokens": 10}):
                server.sees(key, 10)

        async def reclaimed() -> None:
            await anyio.sleep(5)
            await queue.reclaim()

        await gather(partial(job, "a", 0), partial(job, "b", 1), partial(job, "c", 6), reclaimed)

    run(main)
    assert {key for _, key, _ in server.seen} == {*"abc"}
    assert server.most(10 * SECOND) == 10
