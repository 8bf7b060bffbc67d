"""Limits that each key has for itself, beside the common pace and limits: handles in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import pytest

from intervalq import ConfigMismatch, IntervalQueue, Limit, SlotTimeout
from intervalq.errors import InvalidOption
from intervalq.testing.virtual import virtual_micros, virtual_time
from intervalq_stores.memory.queues import MemoryStore
from keyed_world import FarPairs, Unsteady
from test_keyed_limits import SECOND, Server, backlog
from virtual_store import gather


async def nothing() -> None:
    """A job."""


def run(
    main: Callable[[Callable[..., IntervalQueue]], Coroutine[Any, Any, None]], delay: float = 0.0005
) -> MemoryStore:
    behind = MemoryStore(clock=virtual_micros)

    async def runs() -> None:
        def process(**options: Any) -> IntervalQueue:
            made: dict[str, Any] = {"rate": 100, "each": ["shared", "20/10s"]} | options
            return IntervalQueue("api", store=FarPairs(behind, delay=delay), **made)

        await main(process)

    virtual_time(runs)
    return behind


def of(server: Server, key: str) -> Server:
    """What the server saw from one key."""
    mine = Server()
    mine.seen = [each for each in server.seen if each[1] == key]
    return mine


@pytest.mark.parametrize(
    ("each", "own", "common", "busy"),
    [
        (["shared", "20/10s"], (20, 10), ["50/10s"], "ab"),
        (["5/s", "20/10s"], (20, 10), [], "abc"),
        (["shared", "20/10s"], (20, 10), ["50/10s"], "abcd"),
    ],
)
def test_no_key_exceeds_its_window_and_a_backlog_uses_it(
    each: list[str], own: tuple[int, int], common: list[str], busy: str
) -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queues = [process(each=each, limits=common) for _ in busy]
        with anyio.move_on_after(60):
            await gather(*(partial(backlog, server, *each) for each in zip(queues, busy, strict=True)))

    run(main)
    most, window = own
    for key in busy:
        assert of(server, key).most(window * SECOND) <= most
    if common:
        assert server.most(10 * SECOND) <= 50
    if len(busy) * most <= 50 or not common:
        for key in busy:
            assert of(server, key).used(most, window * SECOND) >= 0.95
    else:
        assert server.used(50, 10 * SECOND) >= 0.97


def test_two_processes_of_one_key_share_its_window() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        with anyio.move_on_after(60):
            await gather(*(partial(backlog, server, process(limits=["30/10s"]), key) for key in "aab"))

    run(main)
    assert of(server, "a").most(10 * SECOND) <= 20
    assert server.most(10 * SECOND) <= 30
    assert server.used(30, 10 * SECOND) >= 0.97


def test_tokens_of_each_key_and_of_all_are_settled_on_both_levels() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        made = {"limits": ["30_000 tokens/min"], "each": ["20_000 tokens/min"]}
        queues = [process(**made) for _ in range(3)]
        with anyio.move_on_after(150):
            await gather(
                partial(backlog, server, queues[0], "large", 600, 150),
                partial(backlog, server, queues[1], "small", 100),
                partial(backlog, server, queues[2], "tiny", 100, 90),
            )

    run(main)
    assert server.most(60 * SECOND) <= 30_000
    assert server.used(30_000, 60 * SECOND) >= 0.9
    for key in ("large", "small", "tiny"):
        assert of(server, key).most(60 * SECOND) <= 20_000


def test_a_key_alone_uses_its_window_with_costs_settled() -> None:
    """What its jobs really took is corrected in its own record, too; otherwise it would use a quarter."""
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(limits=["1_000_000 tokens/min"], each=["shared", "20_000 tokens/min"])
        with anyio.move_on_after(150):
            await backlog(server, queue, "a", 400, 100)

    run(main)
    assert server.most(60 * SECOND) <= 20_000
    assert server.used(20_000, 60 * SECOND) >= 0.9


def test_an_overrun_delays_the_key_that_made_it_and_no_other() -> None:
    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(each=["100 tokens/10s"])
        async with queue["a"].slot(cost={"tokens": 1}) as slot:
            slot.settle(tokens=100)
        await anyio.sleep(1)
        with pytest.raises(SlotTimeout):
            await queue["a"].run(nothing, cost={"tokens": 1}, timeout=5)
        await queue["b"].run(nothing, cost={"tokens": 100}, timeout=1)

    run(main)


def test_windows_move_with_a_key_that_waits_for_the_others() -> None:
    """The common limit holds key a back again and again; its window is kept at its real starts."""
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queues = [process(limits=["8/5s"], each=["shared", "6/2s"]) for _ in "abc"]
        with anyio.move_on_after(60):
            await gather(*(partial(backlog, server, *each) for each in zip(queues, "abc", strict=True)))

    run(main)
    assert server.most(5 * SECOND) <= 8
    for key in "abc":
        assert of(server, key).most(2 * SECOND) <= 6


def test_a_pause_of_all_keys_costs_a_key_none_of_its_window() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process()

        async def pauses() -> None:
            for _ in range(5):
                await anyio.sleep(3)
                await queue.pause()
                await anyio.sleep(4)
                await queue.resume()

        with anyio.move_on_after(40):
            await gather(partial(backlog, server, queue, "a"), pauses)

    run(main)
    assert of(server, "a").most(10 * SECOND) <= 20
    assert len(server.seen) >= 60


@pytest.mark.parametrize(("rate", "keys"), [(100, "a"), (500, "abc")])
def test_no_job_counts_more_often_than_it_ran(rate: int, keys: str) -> None:
    """Many slots are granted again, some several times, because the answers came too late."""
    behind = MemoryStore(clock=virtual_micros)

    async def main() -> None:
        options: dict[str, Any] = {"rate": rate, "each": ["100_000 tokens/min"]}
        stores = [Unsteady(behind, seed=seed) for seed in range(len(keys))]
        queues = [IntervalQueue("api", store=store, **options) for store in stores]

        async def jobs(queue: IntervalQueue, key: str) -> None:
            for _ in range(20):
                await queue[key].run(nothing, cost={"tokens": 100})

        await gather(*(partial(jobs, *each) for each in zip(queues, keys, strict=True)))
        assert sum([store.again for store in stores]) >= 5
        for key in keys:
            state = await queues[0][key].inspect()
            assert [each.taken for each in state.limits] == [20 * 100]

    virtual_time(main)


def test_idle_keys_leave_nothing_behind_once_their_windows_are_empty() -> None:
    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(each=["2/5m"])
        for number in range(20):
            await queue[f"key-{number}"].run(nothing)
        assert len(await queue.keys()) == 20
        await anyio.sleep(300)
        assert len(await queue.keys()) == 20  # they still count
        await queue["key-0"].run(
            nothing
        )  # a lapsed record wouldn't be known, and one that is lost counts full
        await anyio.sleep(80)
        await queue["other"].run(nothing)
        assert {state.name for state in await queue.keys()} == {"api:key-0", "api:other"}

    run(main)


@pytest.mark.parametrize(
    ("each", "says"),
    [
        (["10/s", "100/day from utc"], "can't be a limit of each key"),
        (["10/s", "fast"], "'fast' is not a limit"),
        (["200/s", "5/min"], "faster than the common pace"),
        (["10/s", "5/min", "6/min"], "^each= has two limits of starts for 1m"),
        (b"10/s", "^each=b'10/s' must be a rate, 'shared', or a list"),
        ([], r"^each=\[\] must be"),
        ({"10/s"}, "^each={'10/s'} must be"),
        ([Limit(5, "1d", edge="utc")], "can't be a limit of each key"),
    ],
)
def test_what_no_key_can_have_is_refused_by_name(each: list[str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        IntervalQueue("api", rate="100/s", each=each)


def test_each_without_a_rate_says_what_to_use_instead() -> None:
    with pytest.raises(
        InvalidOption, match="leave out each=: then rate, interval and limits hold for each key"
    ):
        IntervalQueue("api", limits=["500/min"], each=["10/s", "100/min"])


def test_a_cost_that_no_window_of_a_key_allows_is_refused_by_name() -> None:
    queue = IntervalQueue(
        "api", rate=10, each=["500 tokens/min"], limits=["900 tokens/min"], store="memory://"
    )

    async def main() -> None:
        with pytest.raises(
            InvalidOption, match="more than the limit of 500 tokens/m of each key ever allows"
        ):
            await queue["a"].run(anyio.sleep_forever, cost={"tokens": 501})
        with pytest.raises(
            InvalidOption, match="no limit of 'words'; its limits: 500 tokens/m, 900 tokens/m"
        ):
            await queue["a"].run(anyio.sleep_forever, cost={"words": 1})

    virtual_time(main)


def test_handles_with_other_limits_of_keys_are_told() -> None:
    async def main(process: Callable[..., IntervalQueue]) -> None:
        async with process()["a"].slot():
            pass
        with pytest.raises(
            ConfigMismatch,
            match=r"each=\['20/10s'\], but this handle has each=\['21/10s'\]:",
        ):
            async with process(each=["shared", "21/10s"])["a"].slot():
                pass
        with pytest.raises(ConfigMismatch, match="each="):
            async with process(each="shared")["a"].slot():
                pass
        adopting = process(each=["shared", "10 tokens/min"], on_mismatch="adopt")["a"]
        async with adopting.slot():
            pass
        with pytest.raises(InvalidOption, match="no limit of 'tokens'; its limits: 20/10s"):
            await adopting.run(nothing, cost={"tokens": 1})
        updating = process(each=["shared", "21/10s"], on_mismatch="update")["a"]
        async with updating.slot():
            pass
        assert [each.limit for each in (await updating.inspect()).limits] == ["21/10s"]
        async with process(each="shared", on_mismatch="update")["a"].slot():
            pass
        assert (await updating.inspect()).limits == ()

    run(main)


def test_limits_of_a_key_change_while_it_waits() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(each=["shared", "5/s"], limits=["1_000/s"])
        mine, server_of_both = queue["a"], Server()

        async def changes() -> None:
            await anyio.sleep(10)
            await mine.configure(limits=["10/s"])
            server.seen.clear()
            await anyio.sleep(10)
            assert server.most(SECOND) == 10
            server_of_both.seen = [*server.seen]
            await mine.configure(limits=[])
            await anyio.sleep(2)
            server.seen.clear()

        with anyio.move_on_after(30):
            await gather(
                partial(backlog, server, process(each=["shared", "5/s"], limits=["1_000/s"]), "a"), changes
            )
        assert server_of_both.used(10, SECOND) >= 0.95
        assert server.most(SECOND) >= 95

    run(main)


def test_the_limits_of_all_keys_change_while_they_have_their_own() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        made = {"each": ["shared", "20/s"], "limits": ["5/s", "1_000_000 tokens/s"]}

        async def changes() -> None:
            await anyio.sleep(10)
            await process(**made).configure(limits=["2_000_000 tokens/s", "1_000/s"])
            await anyio.sleep(3)
            server.seen.clear()

        with anyio.move_on_after(30):
            await gather(partial(backlog, server, process(**made), "a", 7), changes)
        assert of(server, "a").most(SECOND) <= 20 * 7
        assert of(server, "a").used(20 * 7, SECOND) >= 0.95

    run(main)


def test_a_slower_common_pace_voids_what_a_key_with_limits_has() -> None:
    """With the pace, the tolerance of a key changes, and with that how long its units count."""
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(each=["1/s", "3/5s"])

        async def changes() -> None:
            for rate in (2, 100, 10, 50):
                await anyio.sleep(12.3)
                await queue.configure(rate=rate)

        with anyio.move_on_after(60):
            await gather(partial(backlog, server, queue, "a"), changes)

    run(main)
    assert of(server, "a").most(5 * SECOND) <= 3
    assert of(server, "a").used(3, 5 * SECOND) >= 0.9


def test_what_is_left_is_shown_and_quoted_with_whose_limit_it_is() -> None:
    async def main(process: Callable[..., IntervalQueue]) -> None:
        queue = process(limits=["9/min", "10 tokens/min"], each=["shared", "2/min", "8 tokens/30s"])
        for _ in range(2):
            async with queue["a"].slot(cost={"tokens": 4}):
                pass
        state = await queue["a"].inspect()
        assert [(each.limit, each.of_key, each.taken) for each in state.limits] == [
            ("2/m", True, 2),
            ("8 tokens/30s", True, 8),
            ("9/m", False, 2),
            ("10 tokens/m", False, 8),
        ]
        assert state.binds == "2/m"
        assert [(each.limit, each.taken) for each in (await queue.inspect()).limits] == [
            ("9/m", 2),
            ("10 tokens/m", 8),
        ]
        for key, cost, least in (("a", 1, 59), ("b", 2, 0), ("b", 3, 59)):
            wait = await queue[key].quote({"tokens": cost})
            assert wait is not None
            assert least <= wait < least + 3, (key, cost, wait)
        with pytest.raises(SlotTimeout):
            await queue["a"].run(nothing, timeout=30)

    run(main)


def test_a_dead_process_of_a_key_leaves_its_units_counted_and_delays_nobody() -> None:
    server = Server()

    async def main(process: Callable[..., IntervalQueue]) -> None:
        dead = process()
        async with anyio.create_task_group() as group:
            group.start_soon(partial(backlog, server, dead, "a"))
            await anyio.sleep(12)
            dead._open().cut = True  # type: ignore[attr-defined] # from now on it never answers
            group.cancel_scope.cancel()
        began = len(server.seen)
        with anyio.move_on_after(30):
            await backlog(server, process(), "a")
        assert len(server.seen) - began >= 0.75 * 20 * 3

    run(main)
    assert server.most(10 * SECOND) <= 20
