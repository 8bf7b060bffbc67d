"""The conformance suite of stores that keep schedules: a store is accepted if it passes these tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intervalq.store import Scheduling, Store, open_store, scheduling, swapped
from intervalq.testing._suite import Suite, fresh_names, in_portal

_TEXTS = (None, '{"a":1}', '{"a":2}', '{"é":"\\u0000 \\\\ \'"}')
_SWAPS = st.lists(
    st.tuples(
        st.integers(0, 1),  # which of two schedules
        st.sampled_from(_TEXTS),
        st.sampled_from(_TEXTS),
        st.integers(998, 1_001),  # the earliest instant, when the clock reads 1,000
    ),
    max_size=12,
)


class ScheduleSuite(Suite):
    """Subclass it as `class TestMyStore(ScheduleSuite)` with a `store_url` fixture that returns a URL.

    The store may be in use by others: every test works on schedules of random names and removes them.
    """

    rounds = 20
    """How often each of several threads, with a store of its own, adds one to the same text."""

    @pytest.fixture
    def opened(self, portal: BlockingPortal, store_url: str) -> Iterator[Store]:
        """The store under test."""
        store = open_store(store_url)
        yield store
        portal.call(store.aclose)

    @pytest.fixture
    def store(self, opened: Store) -> Scheduling:
        """Its part for schedules."""
        return scheduling(opened)

    @pytest.fixture
    def fresh(self, portal: BlockingPortal, store: Scheduling) -> Iterator[Callable[[], str]]:
        """A function that gives names of schedules, which are removed at the end."""

        async def remove(name: str) -> None:
            found = await store.read_schedules([name])
            await store.swap_schedule(name, found.texts.get(name), None)

        yield from fresh_names(lambda name: portal.call(remove, name))

    def test_random_swaps_give_the_answers_of_the_rule(
        self, portal: BlockingPortal, store: Scheduling, fresh: Callable[[], str]
    ) -> None:
        """Hypothesis finds the shortest sequence of swaps that a store answers otherwise."""

        @settings(max_examples=20, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
        @given(_SWAPS)
        def run(swaps: list[tuple[int, str | None, str | None, int]]) -> None:
            portal.call(compare, swaps)

        async def compare(swaps: list[tuple[int, str | None, str | None, int]]) -> None:
            names = fresh(), fresh()
            model: dict[str, str | None] = dict.fromkeys(names)
            for place, known, text, earliest in swaps:
                name = names[place]
                expected = swapped(model[name], known, text, earliest, 1_000)
                got = await store.swap_schedule(name, known, text, earliest=earliest, now=1_000)
                assert got == expected, (name, swaps)
                model[name] = expected.text
            seen = await store.read_schedules(names, now=7)
            assert seen == (7, {name: text for name, text in model.items() if text is not None})

        run()

    @in_portal
    async def test_all_are_listed_and_removed_ones_are_not(
        self, store: Scheduling, fresh: Callable[[], str]
    ) -> None:
        """A removed one can be created again."""
        first, second = fresh(), fresh()
        for name in (first, second):
            assert (await store.swap_schedule(name, None, "1")).done
        assert {first, second} <= {*(await store.read_schedules()).texts}
        assert (await store.swap_schedule(first, "1", None)).done
        assert first not in (await store.read_schedules()).texts
        assert (await store.read_schedules([first, second])).texts == {second: "1"}
        assert (await store.read_schedules([])).texts == {}
        assert (await store.swap_schedule(first, None, "2")).text == "2"

    @in_portal
    async def test_the_clock_is_the_stores_own_and_decides(
        self, store: Scheduling, fresh: Callable[[], str]
    ) -> None:
        """Nothing is done before `earliest`."""
        name, before = fresh(), time.time_ns() // 1_000
        now = (await store.read_schedules([name])).now
        assert abs(now - before) < 60_000_000
        early = await store.swap_schedule(name, None, "1", earliest=now + 3_600_000_000)
        assert (early.done, early.text) == (False, None)
        done = await store.swap_schedule(name, None, "1", earliest=now)
        assert done.done
        assert done.now >= now

    def test_of_those_who_swap_at_the_same_time_one_wins(
        self, portal: BlockingPortal, store: Scheduling, store_url: str, fresh: Callable[[], str]
    ) -> None:
        """Each of four threads adds one to a number until it has won `rounds` times: no win may be lost."""
        name, threads = fresh(), 4

        async def count() -> None:
            other = open_store(store_url)
            mine, wins = scheduling(other), 0
            try:
                known = (await mine.read_schedules([name])).texts.get(name)
                while wins < self.rounds:
                    answer = await mine.swap_schedule(name, known, str(int(known or 0) + 1))
                    wins += answer.done
                    known = answer.text
            finally:
                await other.aclose()

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(anyio.run, count) for _ in range(threads)]:
                done.result()
        seen = portal.call(store.read_schedules, [name])
        assert seen.texts == {name: str(threads * self.rounds)}
